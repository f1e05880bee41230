"""Cache of file checksums, so that files are not hashed at every start.

A file that was modified since counts as not verified.  If the cache cannot be read or written,
everything works without it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from localspec import paths
from localspec.models.local_files.local_model import GgufFileStat, stat_gguf

_TABLE = """
CREATE TABLE IF NOT EXISTS verified (
    path TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    at REAL NOT NULL
) WITHOUT ROWID
"""
_CHUNK_BYTES = 1 << 20
_BUSY_TIMEOUT = 1.0
"""Seconds to wait for another writing process."""

ChecksumRecord = dict[str, tuple[int, int, str]]
"""Size, mtime in ns and sha256 by real path."""


def load() -> ChecksumRecord:
    if not os.path.exists(_database_path()):
        return {}
    try:
        with _connect() as database:
            rows = database.execute("SELECT path, size, mtime_ns, sha256 FROM verified").fetchall()
    except (sqlite3.Error, OSError):
        return {}
    return {path: (size, mtime, digest) for path, size, mtime, digest in rows}


def lookup(record: ChecksumRecord, file_stat: GgufFileStat) -> str | None:
    """The recorded sha256, unless the file was modified since."""
    entry = record.get(str(file_stat.real_path))
    return entry[2] if entry and entry[:2] == (file_stat.size, file_stat.mtime_ns) else None


def verify(path: Path, sha256: str, on_bytes_read: Callable[[int], None]) -> bool:
    """Whether a file has this checksum; reads it unless its checksum is recorded.

    `on_bytes_read` receives the bytes read so far; an exception from it stops the reading.
    """
    file_stat = stat_gguf(path)
    if file_stat is None:
        return False
    if lookup(load(), file_stat) == sha256:
        return True
    import hashlib  # noqa: PLC0415  loads OpenSSL

    hasher, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
            done += len(chunk)
            on_bytes_read(done)
    if hasher.hexdigest() != sha256:
        return False
    save(path, sha256)
    return True


def save(path: Path, sha256: str) -> None:
    """Record the checksum of a file that was just hashed."""
    file_stat = stat_gguf(path)
    if file_stat is None:
        return
    row = (str(file_stat.real_path), file_stat.size, file_stat.mtime_ns, sha256, time.time())
    try:
        with _connect() as database, database:
            database.execute("INSERT OR REPLACE INTO verified VALUES (?, ?, ?, ?, ?)", row)
    except (sqlite3.Error, OSError, UnicodeEncodeError):
        return


def discard(real_path: Path) -> None:
    try:
        with _connect() as database, database:
            database.execute("DELETE FROM verified WHERE path = ?", (str(real_path),))
    except (sqlite3.Error, OSError, UnicodeEncodeError):
        return


def _database_path() -> Path:
    return paths.data_dir() / "verified.sqlite"


@contextmanager
def _connect() -> Iterator[sqlite3.Connection]:
    _database_path().parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(_database_path(), timeout=_BUSY_TIMEOUT)) as database:
        try:
            database.execute(_TABLE)
        except sqlite3.OperationalError:  # in use, or a full disk
            raise
        except sqlite3.DatabaseError:
            database.close()
            _database_path().replace(_database_path().with_suffix(".damaged"))
            raise
        yield database
