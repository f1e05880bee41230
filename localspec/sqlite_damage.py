"""Which errors of SQLite mean that the file is damaged, and not that it is busy or full."""

from __future__ import annotations

import sqlite3
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
        with path.open("rb") as file:
            header = file.read(_WRITE_VERSION_OFFSET + 1)
    except OSError:
        return False
    if len(header) <= _WRITE_VERSION_OFFSET:
        return False
    return header[_WRITE_VERSION_OFFSET] > _LAST_WRITE_VERSION


def damage_error(message: str) -> sqlite3.DatabaseError:
    """An error for what SQLite itself does not find."""
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
