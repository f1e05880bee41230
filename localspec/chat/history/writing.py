"""What is done to the history's tables when a chat grows; all of it inside a transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from localspec.chat.history import rows, tables
from localspec.chat.history.kept import About, Place
from localspec.chat.turn import Turn
from localspec.errors import NotFoundError
from localspec.protocol.events import Event


def no_chat(chat: int) -> NotFoundError:
    return NotFoundError(f"There is no chat {chat}.", "See: localspec history list")


def chat_at(db: sqlite3.Connection, place: Place) -> int:
    """Its id.  Raises NotFoundError where the file is another one."""
    if tables.name(db) != place.file:
        raise no_chat(place.chat)
    return place.chat


def put_chat(db: sqlite3.Connection, place: Place | None, about: About, clock: int) -> int:
    """Insert it, or all of it but its title and its beginning; its id."""
    said = {
        "system": rows.plain(about.system),
        "settings": rows.of_settings(about.settings),
        "pair": rows.of_pair(about.pair),
        "head": about.head,
        "cut": rows.of_cut(about.cut),
        "turns": about.turns,
        "updated": time.time(),
        "touched": clock,
    }
    if place is not None:
        chat = chat_at(db, place)
        sets = ", ".join(f"{name} = :{name}" for name in said)
        if db.execute(f"UPDATE chats SET {sets} WHERE id = :id", said | {"id": chat}).rowcount:
            return chat
        raise no_chat(chat)
    said |= {"title": rows.plain(about.title), "seed": about.seed, "created": said["updated"]}
    names = ", ".join(f":{name}" for name in said)
    added = db.execute(f"INSERT INTO chats ({', '.join(said)}) VALUES ({names})", said)
    return int(added.lastrowid or 0)


def put_turn(db: sqlite3.Connection, chat: int, turn: Turn, clock: int) -> None:
    drop(db, "chat = ? AND id = ?", (chat, turn.id))
    values = {
        "chat": chat,
        "id": turn.id,
        "parent": turn.parent,
        "question": rows.plain(turn.question),
        "attached": rows.of_attached(turn.attached),
        "answer": rows.plain(turn.answer),
        "reason": turn.reason,
        "attempt": turn.attempt,
        "inside": turn.begins_inside,
        "changed": clock,
        "model": rows.plain(turn.model),
    }
    names = ", ".join(f":{name}" for name in values)
    added = db.execute(f"INSERT INTO turns ({', '.join(values)}) VALUES ({names})", values)
    add_events(db, int(added.lastrowid or 0), turn.events)


def add_events(db: sqlite3.Connection, key: int, events: Sequence[Event]) -> None:
    """As one more checkpoint."""
    if events:
        query = "SELECT 1 + coalesce(max(n), -1) FROM events WHERE turn = ?"
        (n,) = db.execute(query, (key,)).fetchone()
        values = (key, n, rows.packed(events))
        db.execute("INSERT INTO events (turn, n, body) VALUES (?, ?, ?)", values)


def lengthen(
    db: sqlite3.Connection, chat: int, turn: int, events: Sequence[Event], clock: int
) -> None:
    """Add events to an answer.  Raises NotFoundError where the turn is gone."""
    key = db.execute("SELECT key FROM turns WHERE chat = ? AND id = ?", (chat, turn)).fetchone()
    if key is None:
        raise no_chat(chat)
    more = Turn("").heard(events)
    add_events(db, key[0], events)
    db.execute(
        "UPDATE turns SET answer = answer || ?, reason = ?, inside = max(inside, ?), "
        "changed = ? WHERE key = ?",
        (rows.plain(more.answer), more.reason, more.begins_inside, clock, key[0]),
    )
    touch(db, chat, clock)


def drop(db: sqlite3.Connection, where: str, values: tuple[int, ...]) -> None:
    """Turns, with their events."""
    chosen = f"SELECT key FROM turns WHERE {where}"
    db.execute(f"DELETE FROM events WHERE turn IN ({chosen})", values)
    db.execute(f"DELETE FROM turns WHERE {where}", values)


def touch(db: sqlite3.Connection, chat: int, clock: int) -> None:
    values = (time.time(), clock, chat)
    db.execute("UPDATE chats SET updated = ?, touched = ? WHERE id = ?", values)
