"""Which errors of SQLite mean that the file is damaged, and not that it is busy or full."""

from __future__ import annotations

import sqlite3

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


def is_damage(error: Exception) -> bool:
    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGE_CODES or code == _SHORT_READ_CODE


def damage_error(message: str) -> sqlite3.DatabaseError:
    """An error for what SQLite itself does not find."""
    error = sqlite3.DatabaseError(message)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
