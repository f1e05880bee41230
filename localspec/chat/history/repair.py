"""Repairing a damaged history: readable rows go into a new file; the old file is kept."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from localspec import data_files
from localspec.chat.history import schema

_LOCK_TIMEOUT = 20.0  # Seconds to wait for another process that repairs the same file.
_MAX_ROWID_GAP = 1_000_000  # The most row ids to try one by one across a damaged part.


class HistoryRepair(Struct, frozen=True):
    damaged_copy: Path  # The damaged file, unchanged.
    recovered_chats: int


def repair_file(path: Path) -> HistoryRepair | None:
    """Replace the damaged file by a repaired one; None if another process has already
    done so.

    Raises OSError and sqlite3.Error; then the damaged file is unchanged.
    """
    with closing(_acquire_repair_lock(path.with_name("repair.lock"))):
        with (
            suppress(*schema.DATABASE_ERRORS),
            closing(schema.open_read_only(path)) as connection,
        ):
            schema.check_integrity(connection)
            return None
        new = path.with_name(f"{path.name}.new")
        for suffix in ("", "-wal", "-shm", "-journal"):
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        chats = _copy_readable_rows(path, new)
        return HistoryRepair(_swap_files(path, new), chats)


def _acquire_repair_lock(path: Path) -> data_files.FileLock:
    """Wait until no other process repairs the file. Raises TimeoutError."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while (lock := data_files.lock(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(
                110, "another localspec is still repairing it", str(path)
            )
        time.sleep(0.05)
    return lock


def _swap_files(path: Path, new: Path) -> Path:
    """Put the new file in place of the old one. Returns the old file's new path."""
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    backup, n = path.with_name(f"{path.name}.corrupt-{utc}"), 1
    while backup.exists():
        n += 1
        backup = path.with_name(f"{path.name}.corrupt-{utc}-{n}")
    for suffix in ("", "-wal"):
        old = path.with_name(path.name + suffix)
        if old.exists() and (not suffix or old.stat().st_size):
            copy = backup.with_name(backup.name + suffix)
            try:  # with a hard link a file of the original name exists at every moment
                os.link(old, copy)
            except OSError:
                os.replace(old, copy)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(new, path)
    with suppress(OSError):
        data_files.sync_folder(path.parent)
    return backup


def _copy_readable_rows(damaged: Path, new: Path) -> int:
    """Copy all readable rows. Returns the number of chats."""
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        schema.create_tables(connection)
        connection.execute("BEGIN")
        with (
            suppress(*schema.DATABASE_ERRORS),
            closing(_open_damaged(damaged)) as source,
        ):
            for table in ("chats", "turns", "events"):
                _copy_table(source, connection, table)
            (name,) = source.execute("SELECT name FROM state").fetchone()
            connection.execute("UPDATE state SET name = ?", (str(name),))
        _restore_references(connection)
        connection.execute("COMMIT")
        (chats,) = connection.execute("SELECT count(*) FROM chats").fetchone()
    return int(chats)


def _open_damaged(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    connection.text_factory = lambda body: body.decode("utf-8", "replace")
    return connection


def _copy_table(
    source: sqlite3.Connection, connection: sqlite3.Connection, table: str
) -> None:
    """Copy rows by column position: new columns come last, and column names may be
    damaged.
    """
    names = schema.list_columns(connection, table)
    for row in _iterate_rows(source, table):
        values = ",".join("?" * len(row))
        insert = f"INSERT OR IGNORE INTO {table} ({','.join(names[: len(row)])}) VALUES ({values})"
        with suppress(*schema.DATABASE_ERRORS):  # an invalid value
            connection.execute(insert, row)


def _iterate_rows(source: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """Read forwards and backwards up to the damaged part, then try the row ids in
    between.
    """
    seen: set[int] = set()
    is_complete = yield from _scan(source, table, "ASC", seen)
    if is_complete:
        return
    below = max(seen, default=0)
    yield from _scan(source, table, "DESC", seen)
    above = min((id_ for id_ in seen if id_ > below), default=below)
    for id_ in range(below + 1, min(above, below + _MAX_ROWID_GAP)):
        with suppress(*schema.DATABASE_ERRORS):
            row = source.execute(
                f"SELECT * FROM {table} WHERE rowid = ?", (id_,)
            ).fetchone()
            if row is not None:
                yield row


def _scan(
    source: sqlite3.Connection, table: str, order: str, seen: set[int]
) -> Generator[tuple[Any, ...], None, bool]:
    """Yield rows up to the first seen or unreadable one.

    Returns whether all rows were read.
    """
    try:
        for id_, *row in source.execute(
            f"SELECT rowid, * FROM {table} ORDER BY rowid {order}"
        ):
            if id_ in seen:
                return False
            seen.add(id_)
            yield tuple(row)
    except schema.DATABASE_ERRORS:
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
