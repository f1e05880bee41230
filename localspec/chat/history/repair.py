"""Repairing a damaged history: readable rows go into a new file; the old file is kept."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec import data_files, sqlite_damage
from localspec.chat.history import schema
from localspec.paths import DataFile

_LOCK_TIMEOUT = 20.0  # Seconds to wait for another process that repairs the same file.
_PAGE_SIZE = 4096  # SQLite's default; no file of ours has another.
_HEADER_SIZE = 100  # The first bytes of the first page.
_FORMAT_BYTES = slice(18, 20)
"""Of SQLite's header: 2 and 2 if there may be a write-ahead log."""
_VALID_FOR_BYTES = slice(92, 96)
"""If not equal to the counter of changes, SQLite takes the size from the file."""
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "INTEGER": (int,),
    "REAL": (float, int),
    "TEXT": (str,),
    "BLOB": (bytes,),
}
_MAX_ROWID_GAP = 1_000_000  # The most row ids to try one by one across a damaged part.


class HistoryRepair(Struct, frozen=True):
    damaged_copy: Path  # The damaged file, unchanged.
    recovered_chats: int


def repair_file(path: Path) -> HistoryRepair | None:
    """Replace the damaged file by a repaired one.

    Returns None if another process has already done so. Raises OSError and
    sqlite3.Error; then the damaged file is unchanged.
    """
    with closing(_acquire_repair_lock(path.with_name(DataFile.REPAIR_LOCK.path.name))):
        if _is_intact(path):
            return None
        new = path.with_name(f"{path.name}.new")
        for suffix in ("", "-wal", "-shm", "-journal"):
            _add_suffix(new, suffix).unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        n_chats = _copy_readable_rows(path, new)
        damaged_copy = _swap_files(path, new)
        return HistoryRepair(damaged_copy, n_chats)


def _is_intact(path: Path) -> bool:
    try:
        with closing(schema.open_read_only(path)) as connection:
            schema.check_integrity(connection, path)
    except sqlite_damage.DATABASE_ERRORS:
        return False
    return True


def _acquire_repair_lock(path: Path) -> data_files.FileLock:
    """Wait until no other process repairs the file. Raises TimeoutError."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while True:
        lock = data_files.lock(path)
        if lock is not None:
            return lock
        if time.monotonic() > deadline:
            message = "another localspec is still repairing it"
            raise TimeoutError(errno.ETIMEDOUT, message, str(path))
        time.sleep(0.05)


def _swap_files(path: Path, new: Path) -> Path:
    """Put the new file in place of the old one. Returns the old file's new path."""
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    backup = path.with_name(f"{path.name}.corrupt-{utc}")
    n = 1
    while backup.exists():
        n += 1
        backup = path.with_name(f"{path.name}.corrupt-{utc}-{n}")
    _keep_file(path, backup)
    log = _add_suffix(path, "-wal")
    if log.exists() and log.stat().st_size:
        _keep_file(log, _add_suffix(backup, "-wal"))
    for suffix in ("-wal", "-shm"):
        _add_suffix(path, suffix).unlink(missing_ok=True)
    os.replace(new, path)
    with suppress(OSError):
        data_files.sync_folder(path.parent)
    return backup


def _keep_file(file: Path, copy: Path) -> None:
    if not file.exists():
        return
    try:
        # With a hard link, a file of the original name exists at every moment.
        os.link(file, copy)
    except OSError:
        os.replace(file, copy)


def _add_suffix(path: Path, suffix: str) -> Path:
    """SQLite's names: `chats.sqlite` and `-wal` give `chats.sqlite-wal`."""
    return path.with_name(path.name + suffix)


def _copy_readable_rows(damaged: Path, new: Path) -> int:
    """Copy all readable rows. Returns the number of chats."""
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        schema.create_tables(connection)
        first_page = new.read_bytes()[:_PAGE_SIZE]
        own_tables = first_page[:_HEADER_SIZE] + _read_after_header(damaged)
        connection.execute("BEGIN")
        with _with_first_page(damaged, own_tables) as mended:
            has_own_tables = _has_our_tables(mended, connection)
            if has_own_tables:
                _copy_tables(mended, connection)
        if not has_own_tables:
            with _with_first_page(damaged, first_page) as mended:
                _copy_tables(mended, connection)
        _copy_tables(damaged, connection)
        _restore_references(connection)
        connection.execute("COMMIT")
        (chats,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    return int(chats)


def _has_our_tables(damaged: Path, connection: sqlite3.Connection) -> bool:
    """Whether the table of tables on the first page seems undamaged."""
    with (
        suppress(*sqlite_damage.DATABASE_ERRORS),
        closing(_open_damaged(damaged)) as source,
    ):
        theirs = schema.read_schema(source)
        ours = schema.read_schema(connection)
        return _without_later_pages(theirs) == _without_later_pages(ours)
    return False


def _without_later_pages(
    entries: dict[str, schema.SchemaEntry],
) -> dict[str, schema.SchemaEntry]:
    """Without the pages of tables that an upgrade adds: they depend on when it was."""
    same = dict(entries)
    for name, entry in entries.items():
        if entry.table in schema.LATER_TABLES:
            same[name] = replace(entry, first_page=0)
    return same


def _read_after_header(damaged: Path) -> bytes:
    """The first page of the file without the header. Raises OSError."""
    with damaged.open("rb") as file:
        return file.read(_PAGE_SIZE)[_HEADER_SIZE:]


@contextmanager
def _with_first_page(damaged: Path, first_page: bytes) -> Iterator[Path]:
    """A copy of the damaged file with another first page, while this lasts.

    The first page holds the header, and where the rows of each table begin. In every
    file of ours the tables were made in one order, so both are as in a new file. The
    header alone can hide rows: one that says 16 pages hides those on the last two of 18.
    """
    copy = damaged.with_name(f"{damaged.name}.first-page")
    copied_log = _add_suffix(copy, "-wal")
    try:
        with suppress(OSError):  # The disk may be full: then this copy is missing.
            shutil.copyfile(damaged, copy)
            log = _add_suffix(damaged, "-wal")
            if log.exists():
                shutil.copyfile(log, copied_log)
            page = bytearray(first_page)
            page[_FORMAT_BYTES] = b"\2\2"
            page[_VALID_FOR_BYTES] = b"\xff" * 4
            with copy.open("r+b") as file:
                file.write(page)
        yield copy
    finally:
        for suffix in ("", "-wal", "-shm"):
            _add_suffix(copy, suffix).unlink(missing_ok=True)


def _copy_tables(damaged: Path, connection: sqlite3.Connection) -> None:
    """Copy the readable rows that are not there yet, and the database's id."""
    with (
        suppress(*sqlite_damage.DATABASE_ERRORS),
        closing(_open_damaged(damaged)) as source,
    ):
        for table in ("chats", "turns", "events", *schema.LATER_TABLES):
            _copy_table(source, connection, table)
        (name,) = source.execute("SELECT name FROM state").fetchone()
        connection.execute("UPDATE state SET name = ?", (str(name),))


def _open_damaged(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda body: body.decode("utf-8", "replace")
    return connection


def _copy_table(
    source: sqlite3.Connection, connection: sqlite3.Connection, table: str
) -> None:
    """Copy rows by the position of their columns.

    The names of the columns may be damaged, and new columns come last, so an earlier
    version's row of 9 columns fills the first 9.
    """
    names = schema.list_columns(connection, table)
    types = schema.list_types(connection, table)
    for row in _iterate_rows(source, table):
        if not _may_be_row(row, types):
            continue
        columns = ",".join(names[: len(row)])
        values = ",".join("?" * len(row))
        insert = f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({values})"
        with suppress(*sqlite_damage.DATABASE_ERRORS):  # A value is invalid.
            connection.execute(insert, row)


def _may_be_row(row: Sequence[object], types: Sequence[str]) -> bool:
    """Whether the values are of the columns' types, but for one that is damaged.

    A damaged number of a page leads to rows of another table, of which many are not.
    """
    n_wrong = 0
    for value, declared in zip(row, types, strict=False):
        if value is not None and not isinstance(value, _PYTHON_TYPES[declared]):
            n_wrong += 1
    return n_wrong <= 1


def _iterate_rows(source: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Read from both ends up to the damaged part, then each row in between.

    If the page of rows 40 to 60 of 100 is damaged, rows 1 to 39 are read forwards, 100
    to 61 backwards, and 40 to 60 are tried one by one.
    """
    seen: set[int] = set()
    is_complete = yield from _scan(source, table, "ASC", seen)
    if is_complete:
        return
    last_before = max(seen, default=0)
    yield from _scan(source, table, "DESC", seen)
    ids_after = [id_ for id_ in seen if id_ > last_before]
    first_after = min(ids_after, default=last_before)
    end = min(first_after, last_before + _MAX_ROWID_GAP)
    query = f"SELECT * FROM {table} WHERE rowid = ?"
    for id_ in range(last_before + 1, end):
        with suppress(*sqlite_damage.DATABASE_ERRORS):
            row = source.execute(query, (id_,)).fetchone()
            if row is not None:
                yield row


def _scan(
    source: sqlite3.Connection, table: str, order: str, seen: set[int]
) -> Generator[tuple[Any, ...], None, bool]:
    """Yield rows up to the first seen or unreadable one.

    Returns whether all rows were read.
    """
    query = f"SELECT rowid, * FROM {table} ORDER BY rowid {order}"
    try:
        for id_, *row in source.execute(query):
            if id_ in seen:
                return False
            seen.add(id_)
            yield tuple(row)
    except sqlite_damage.DATABASE_ERRORS:
        return False
    return True


def _restore_references(connection: sqlite3.Connection) -> None:
    """Create the chats that turns refer to, and delete events without a turn."""
    connection.execute(
        "INSERT INTO chats SELECT chat, substr(question, 1, 80), 0, '', '{}', '{}', max(id), '', "
        "count(*), 0, 0, 0 FROM turns WHERE chat NOT IN (SELECT id FROM chats) GROUP BY chat"
    )
    connection.execute("DELETE FROM events WHERE turn NOT IN (SELECT key FROM turns)")
    connection.execute(
        "UPDATE state SET clock = 1 + max((SELECT coalesce(max(touched), 0) FROM chats), "
        "(SELECT coalesce(max(changed), 0) FROM turns))"
    )
