"""Which files' contents have been read and hashed, so that none is hashed at every start.

A file that was touched since counts as not verified.  The record is a cache: where it cannot be
read or written, everything runs without it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from localspec import paths
from localspec.models.local_files.local_model import GgufFileStat

_TABLE = """
CREATE TABLE IF NOT EXISTS verified (
    path TEXT PRIMARY KEY,
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    at REAL NOT NULL
) WITHOUT ROWID
"""
_BUSY_TIMEOUT = 1.0
"""Seconds to wait for another process that writes."""

ChecksumRecord = dict[str, tuple[int, int, str]]


def load() -> ChecksumRecord:
    """Size, time of change and sha256 of every file that was hashed, by its real path."""
    if not _database_path().exists():
        return {}
    try:
        with _connect() as base:
            rows = base.execute("SELECT path, size, mtime_ns, sha256 FROM verified").fetchall()
    except (sqlite3.Error, OSError):
        return {}
    return {path: (size, mtime, digest) for path, size, mtime, digest in rows}


def lookup(record: ChecksumRecord, file_stat: GgufFileStat) -> str | None:
    """The sha256 that a file had when it was hashed, unless it was touched since."""
    found = record.get(str(file_stat.real_path))
    return found[2] if found and found[:2] == (file_stat.size, file_stat.mtime_ns) else None


def save(file_stat: GgufFileStat, sha256: str) -> None:
    """Keep what a file's contents are."""
    row = (str(file_stat.real_path), file_stat.size, file_stat.mtime_ns, sha256, time.time())
    try:
        with _connect() as base, base:
            base.execute("INSERT OR REPLACE INTO verified VALUES (?, ?, ?, ?, ?)", row)
    except (sqlite3.Error, OSError, UnicodeEncodeError):
        return


def discard(real: Path) -> None:
    """A file is gone."""
    try:
        with _connect() as base, base:
            base.execute("DELETE FROM verified WHERE path = ?", (str(real),))
    except (sqlite3.Error, OSError, UnicodeEncodeError):
        return


def _database_path() -> Path:
    return paths.data_dir() / "verified.sqlite"


@contextmanager
def _connect() -> Iterator[sqlite3.Connection]:
    _database_path().parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(_database_path(), timeout=_BUSY_TIMEOUT)) as base:
        try:
            base.execute(_TABLE)
        except sqlite3.OperationalError:  # in use, a full disk
            raise
        except sqlite3.DatabaseError:
            base.close()
            _database_path().replace(_database_path().with_suffix(".damaged"))
            raise
        yield base
