"""Which errors of SQLite mean that the file is damaged, and not that it is busy or full."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The errors of a damaged database.

UnicodeDecodeError: SQLite's error message is damaged too.
"""
_DAMAGE_CODES = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    # A statement that does not fit the tables. Statements are right, so the tables are not.
    sqlite3.SQLITE_ERROR,
)
_SHORT_READ_CODE = sqlite3.SQLITE_IOERR | (2 << 8)
"""A read beyond the end of a file that was truncated."""
_WRITE_VERSION_OFFSET = 18
"""Of the file's header: which SQLite may write it."""
_LAST_WRITE_VERSION = 2
"""With a write-ahead log; 1 is without."""


def is_damage(error: Exception, path: Path) -> bool:
    """Whether SQLite's error with this file means that the file is damaged."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_READONLY:
        return has_unknown_write_version(path)
    return code & 0xFF in _DAMAGE_CODES or code == _SHORT_READ_CODE


def has_unknown_write_version(path: Path) -> bool:
    """Whether the file's header says that only a later SQLite may write the file.

    SQLite opens such a file, and refuses to write it as if the file were read-only. No
    SQLite writes such a header, so the byte is damaged.
    """
    try:
        header = _read_beginning(path, _WRITE_VERSION_OFFSET + 1)
    except OSError:
        return False
    if len(header) <= _WRITE_VERSION_OFFSET:
        return False
    return header[_WRITE_VERSION_OFFSET] > _LAST_WRITE_VERSION


_kept_descriptors: dict[tuple[int, int], int] = {}
"""Of database files by device and inode; see `_read_beginning`."""
_descriptors_lock = threading.Lock()


def _read_beginning(path: Path, n_bytes: int) -> bytes:
    """The first bytes of a database file, of which connections may be open.

    On POSIX, whoever closes a descriptor of a file ends all locks of its process on that
    file, also those of SQLite's connections. Another process then takes itself for the
    last one and deletes the write-ahead log that is in use: what is written afterwards
    is lost (https://sqlite.org/howtocorrupt.html, 2.2). So the descriptor stays open,
    one for each file. Raises OSError.
    """
    if os.name != "posix":
        with path.open("rb") as file:
            return file.read(n_bytes)
    with _descriptors_lock:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return b""
        descriptor = _kept_descriptors.get((found.st_dev, found.st_ino))
        if descriptor is None:
            _close_deleted()
            descriptor = os.open(path, os.O_RDONLY)
            opened = os.fstat(descriptor)
            _kept_descriptors[opened.st_dev, opened.st_ino] = descriptor
        return os.pread(descriptor, n_bytes, 0)


def _close_deleted() -> None:
    """Close the descriptors of files that have no name: nobody else can open those."""
    for inode, descriptor in list(_kept_descriptors.items()):
        if os.fstat(descriptor).st_nlink == 0:
            os.close(descriptor)
            del _kept_descriptors[inode]


def damage_error(message: str) -> sqlite3.DatabaseError:
    """An error for what SQLite itself does not find."""
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
