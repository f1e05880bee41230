"""A damaged file of chats: what can be read goes into a new one, and the old one is kept aside."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.chat.history import file_lock, schema

_LOCK_TIMEOUT = 20.0
"""Seconds to wait for another process that does the same."""
_MAX_ROWID_GAP = 1_000_000
"""Rows that are looked for one by one between those that a damaged place divides."""


@dataclass(frozen=True, slots=True)
class HistoryRepair:
    """What was done."""

    damaged_copy: Path
    """The damaged file, as it was."""
    recovered_chats: int
    """How many of them were saved."""


def repair_file(path: Path) -> HistoryRepair | None:
    """Put a sound file in its place; None where another process has just done so.

    Raises OSError and sqlite3.Error; the damaged file is there then as it was.
    """
    with closing(_acquire_repair_lock(path.with_name("mending.lock"))):
        if _is_intact(path):
            return None
        new = path.with_name(f"{path.name}.new")
        _remove_database(new)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        chats = _copy_readable_rows(path, new)
        return HistoryRepair(_swap_files(path, new), chats)


def _acquire_repair_lock(path: Path) -> file_lock.FileLock:
    """When no other process is at it.  Raises OSError where that takes too long."""
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while (held := file_lock.acquire(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(110, "another localspec has been mending it for long", str(path))
        time.sleep(0.05)
    return held


def _is_intact(path: Path) -> bool:
    try:
        with closing(schema.open_read_only(path)) as connection:
            schema.check_integrity(connection)
    except schema.DATABASE_ERRORS:
        return False
    return True


def _swap_files(path: Path, new: Path) -> Path:
    """The new file is in the place of the old; where that is now."""
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    aside, n = path.with_name(f"{path.name}.corrupt-{utc}"), 1
    while aside.exists():
        n += 1
        aside = path.with_name(f"{path.name}.corrupt-{utc}-{n}")
    for end in ("", "-wal"):
        old = path.with_name(path.name + end)
        if old.exists() and (not end or old.stat().st_size):
            _link_or_move(old, aside.with_name(aside.name + end))
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    os.replace(new, path)
    _sync_folder(path.parent)
    return aside


def _link_or_move(old: Path, aside: Path) -> None:
    """Under both names where links are possible: at no moment is there none."""
    try:
        os.link(old, aside)
    except OSError:
        os.replace(old, aside)


def _sync_folder(folder: Path) -> None:
    """The names, too, are on the disk."""
    if os.name == "posix":
        with suppress(OSError):
            file = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)


def _remove_database(path: Path) -> None:
    for end in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + end).unlink(missing_ok=True)


# --- what can be read ---------------------------------------------------------------------


def _copy_readable_rows(damaged: Path, new: Path) -> int:
    """Copy all rows that can be read; how many chats these are."""
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        schema.create_tables(connection)
        connection.execute("BEGIN")
        with suppress(*schema.DATABASE_ERRORS), closing(_open_damaged(damaged)) as source:
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


def _copy_table(source: sqlite3.Connection, connection: sqlite3.Connection, table: str) -> None:
    """By the places of the columns: new ones are added at the end, and names may be damaged."""
    names = schema.list_columns(connection, table)
    for row in _iterate_rows(source, table):
        marks = ",".join("?" * len(row))
        insert = f"INSERT OR IGNORE INTO {table} ({','.join(names[: len(row)])}) VALUES ({marks})"
        with suppress(*schema.DATABASE_ERRORS):  # a value that cannot be
            connection.execute(insert, row)


def _iterate_rows(source: sqlite3.Connection, table: str) -> Iterator[tuple[Any, ...]]:
    """From both ends to where it breaks off, then one by one what lies between."""
    known: set[int] = set()
    whole = yield from _scan(source, table, "ASC", known)
    if whole:
        return
    below = max(known, default=0)
    yield from _scan(source, table, "DESC", known)
    above = min((id_ for id_ in known if id_ > below), default=below)
    for id_ in range(below + 1, min(above, below + _MAX_ROWID_GAP)):
        with suppress(*schema.DATABASE_ERRORS):
            row = source.execute(f"SELECT * FROM {table} WHERE rowid = ?", (id_,)).fetchone()
            if row is not None:
                yield row


def _scan(
    source: sqlite3.Connection, table: str, order: str, known: set[int]
) -> Generator[tuple[Any, ...], None, bool]:
    """The rows in one order until the first that is known or broken; whether all were read."""
    try:
        for id_, *row in source.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid {order}"):
            if id_ in known:
                return False
            known.add(id_)
            yield tuple(row)
    except schema.DATABASE_ERRORS:
        return False
    return True


def _restore_references(connection: sqlite3.Connection) -> None:
    """Turns without their chat get one; events without their turn are nothing."""
    connection.execute(
        "INSERT INTO chats SELECT chat, substr(question, 1, 80), 0, '', '{}', '{}', max(id), '', "
        "count(*), 0, 0, 0 FROM turns WHERE chat NOT IN (SELECT id FROM chats) GROUP BY chat"
    )
    connection.execute("DELETE FROM events WHERE turn NOT IN (SELECT key FROM turns)")
    connection.execute(
        "UPDATE state SET clock = 1 + max((SELECT coalesce(max(touched), 0) FROM chats), "
        "(SELECT coalesce(max(changed), 0) FROM turns))"
    )
