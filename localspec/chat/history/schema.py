"""The tables of the history database, its checks, and opening it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import InUseError
from localspec.sqlite_damage import damage_error, has_unknown_write_version

SCHEMA_VERSION = 3
"""1 had no pictures, and 2 no calls of tools."""
BUSY_TIMEOUT = 2.0  # Seconds to wait for another writing process.
MAX_CHECKED_BYTES = 32 * 1024 * 1024
"""Larger files are not checked when they are opened: it takes a while."""

TABLES = {
    "chats": """id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, seed INTEGER NOT NULL,
        system TEXT NOT NULL, settings TEXT NOT NULL, pair TEXT NOT NULL, head INTEGER,
        cut TEXT NOT NULL, turns INTEGER NOT NULL, created REAL NOT NULL, updated REAL NOT NULL,
        touched INTEGER NOT NULL""",
    "turns": """key INTEGER PRIMARY KEY AUTOINCREMENT, chat INTEGER NOT NULL, id INTEGER NOT NULL,
        parent INTEGER, question TEXT NOT NULL, attached TEXT NOT NULL, answer TEXT NOT NULL,
        reason TEXT, attempt INTEGER NOT NULL, inside INTEGER NOT NULL, changed INTEGER NOT NULL,
        model TEXT NOT NULL DEFAULT '', pictures TEXT NOT NULL DEFAULT '[]',
        calls TEXT NOT NULL DEFAULT '', UNIQUE (chat, id)""",
    "events": """key INTEGER PRIMARY KEY, turn INTEGER NOT NULL, n INTEGER NOT NULL,
        body BLOB NOT NULL, UNIQUE (turn, n)""",
    "state": "name TEXT NOT NULL, clock INTEGER NOT NULL",
}
"""Table -> its columns.

`state` has one row: the id of the database (`name`), and a counter of changes, which
orders all rows.
"""
LATER_TABLES = {"pictures": "sha256 TEXT PRIMARY KEY, body BLOB NOT NULL"}
"""Tables that files of version 1 lack.

They are made after all others. So the rows of those begin at the same pages in every
file, which the repair relies on.
"""
LATER_COLUMNS = {
    "pictures": "pictures TEXT NOT NULL DEFAULT '[]'",
    "calls": "calls TEXT NOT NULL DEFAULT ''",
}
"""What `turns` of versions 1 and 2 lacks. SQLite adds a column before the constraints."""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the file, create its tables if it is new, and upgrade earlier ones.

    Raises InUseError if a newer version wrote it, and sqlite3.Error.
    """
    connection = _connect(str(path), uri=False)
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > SCHEMA_VERSION:
            raise InUseError(
                "The chats were written by a newer localspec.",
                "They are read-only here; update localspec to write.",
            )
        # Before anything is written to it.
        is_small = path.stat().st_size <= MAX_CHECKED_BYTES
        if version == SCHEMA_VERSION:
            check_tables(connection)
            if is_small:
                check_integrity(connection, path)
        elif version and is_small:
            _check_pages(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        if version < SCHEMA_VERSION:
            create_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open the file without changing anything. Raises sqlite3.Error."""
    uri = path.absolute().as_uri()
    try:
        return _open_checked(f"{uri}?mode=ro")
    except sqlite3.OperationalError:
        # If the folder is not writable, SQLite cannot create its -shm file there.
        return _open_checked(f"{uri}?mode=ro&immutable=1")


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables that are missing, and add what those of earlier versions lack.

    Raises sqlite3.DatabaseError if one is damaged, and then changes nothing.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        _create_missing(connection)
        check_tables(connection)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _create_missing(connection: sqlite3.Connection) -> None:
    columns_of_turns = list_columns(connection, "turns")
    if columns_of_turns:
        for name, declaration in LATER_COLUMNS.items():
            if name not in columns_of_turns:
                connection.execute(f"ALTER TABLE turns ADD COLUMN {declaration}")
    for name, columns in TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
    connection.execute("CREATE INDEX IF NOT EXISTS touched ON chats (touched)")
    for name, columns in LATER_TABLES.items():
        connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
    if connection.execute("SELECT count(*) FROM state").fetchone() == (0,):
        connection.execute("INSERT INTO state VALUES (?, 0)", (os.urandom(8).hex(),))


def list_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return the column names; empty if there is no such table."""
    return [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]


def list_types(connection: sqlite3.Connection, table: str) -> list[str]:
    """Return the declared types of the columns, such as TEXT."""
    return [
        kind for _, _, kind, *_ in connection.execute(f"PRAGMA table_info({table})")
    ]


class SchemaEntry(Struct, frozen=True):
    """A table or an index, as SQLite's own table of them describes it."""

    kind: str
    table: str
    sql: str  # The statement that makes it, with single spaces.
    first_page: int  # Where its rows begin.


def read_schema(connection: sqlite3.Connection) -> dict[str, SchemaEntry]:
    """The tables and indexes by name."""
    found: dict[str, SchemaEntry] = {}
    query = "SELECT name, type, tbl_name, sql, rootpage FROM sqlite_schema"
    for name, kind, table, sql, page in connection.execute(query):
        one_line = " ".join(str(sql).split())
        found[str(name)] = SchemaEntry(str(kind), str(table), one_line, page)
    return found


def check_tables(connection: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError unless all is as `create_tables` makes it.

    SQLite's own check reads no names: to it, a table `chats` with a column `paiq` is
    as good as any. Nor does it read the statements of its own tables. The pages where
    rows begin may differ.
    """
    found = read_schema(connection)
    for name, entry in _read_new_schema().items():
        if name not in found:
            raise damage_error(f"{name} is missing")
        as_found = replace(found[name], first_page=entry.first_page)
        if as_found != entry:
            raise damage_error(f"{name} is damaged")


@cache
def _read_new_schema() -> dict[str, SchemaEntry]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _create_missing(connection)
        return read_schema(connection)


def check_integrity(connection: sqlite3.Connection, path: Path) -> None:
    """Raise sqlite3.DatabaseError if the file at `path`, which is open, is damaged."""
    check_tables(connection)
    _check_pages(connection, path)
    (n_states,) = connection.execute("SELECT count(*) FROM state").fetchone()
    if n_states != 1:
        raise damage_error("not one row of the file's state")


def _check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """As `check_integrity`, for tables of any version."""
    if has_unknown_write_version(path):
        raise damage_error("the header is damaged")
    try:
        (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    except UnicodeDecodeError:  # The result quotes damaged text.
        raise damage_error("not ok") from None
    if result != "ok":
        raise damage_error(str(result))


def advance_clock(connection: sqlite3.Connection) -> int:
    """Increment the change counter and return it."""
    connection.execute("UPDATE state SET clock = clock + 1")
    (clock,) = connection.execute("SELECT clock FROM state").fetchone()
    return int(clock)


def read_database_id(connection: sqlite3.Connection) -> str:
    (name,) = connection.execute("SELECT name FROM state").fetchone()
    return str(name)


def _open_checked(uri: str) -> sqlite3.Connection:
    connection = _connect(uri, uri=True)
    try:
        connection.execute("SELECT count(*) FROM chats").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(name: str, *, uri: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        name,
        timeout=BUSY_TIMEOUT,
        isolation_level=None,
        check_same_thread=False,
        uri=uri,
    )
    connection.text_factory = lambda body: body.decode("utf-8", "replace")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    return connection
