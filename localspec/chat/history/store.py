"""The chats that were kept: listed, searched, read, written and removed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.conversation import Conversation, Turn
from localspec.chat.history import file_lock, records, schema
from localspec.chat.history.database import HistoryDatabase
from localspec.chat.history.records import (
    ChatListEntry,
    ChatLocation,
    ChatMetadata,
    SavedChat,
    SearchHit,
)
from localspec.chat.history.search_index import SearchIndex
from localspec.errors import InUseError, LocalspecError, NotFoundError
from localspec.protocol.events import Event, Notice

_EXCERPT_MARGIN = 60
"""Characters of an excerpt before what was found, and twice as many after."""


@dataclass(frozen=True, slots=True)
class RemovalResult:
    """What became of chats that were to go."""

    chats: int
    wiped: bool
    """False where another process kept the file's last traces from being overwritten."""


class ChatHistory:
    """All chats of a person on this computer; several programs may have it open."""

    def __init__(self, base: HistoryDatabase) -> None:
        self._database = base
        self._search_index = SearchIndex(base.path.with_name("words.sqlite"))

    @classmethod
    def open(cls, path: Path | None = None, *, create: bool = True) -> ChatHistory:
        """The person's own, or that in another file; see Base."""
        return cls(HistoryDatabase(path or paths.chats_file(), create=create))

    def open_again(self) -> ChatHistory:
        """The same once more, for a thread that searches: nobody who writes waits for it."""
        return ChatHistory.open(self._database.path, create=False)

    @property
    def write_error(self) -> LocalspecError | None:
        """Why nothing can be written; None where it can be."""
        return self._database.write_error

    def take_notices(self) -> list[Notice]:
        """What a person should be told, once."""
        told, self._database.notices = self._database.notices, []
        return told

    def close(self) -> None:
        self._database.close()

    # --- reading --------------------------------------------------------------------------

    def list_chats(self, limit: int = -1, offset: int = 0) -> list[ChatListEntry]:
        """Chats, the last used first; their turns are not read."""
        query = (
            f"SELECT {records.LIST_COLUMNS} FROM chats "
            "ORDER BY touched DESC, id DESC LIMIT ? OFFSET ?"
        )
        return _load_list_entries(
            self._database.run_read(lambda db: db.execute(query, (limit, offset)).fetchall())
        )

    def find_entry(self, chat: int) -> ChatListEntry:
        """Raises NotFoundError."""
        query = f"SELECT {records.LIST_COLUMNS} FROM chats WHERE id = ?"
        found = _load_list_entries(
            self._database.run_read(lambda db: db.execute(query, (chat,)).fetchall())
        )
        if not found:
            raise chat_not_found(chat)
        return found[0]

    def find_last_id(self) -> int:
        """The chat that was used last.  Raises NotFoundError where there is none."""
        found = self.list_chats(1)
        if not found:
            raise NotFoundError("There is no chat yet.", "Chats begin with: localspec run")
        return found[0].id

    def load_chat(self, chat: int, *, with_events: bool = True) -> SavedChat:
        """A chat with all its branches; without `rounds` its answers are text alone.

        Raises NotFoundError.
        """
        listed = self.find_entry(chat)

        def work(db: sqlite3.Connection) -> SavedChat:
            query = "SELECT seed, system, settings, head, cut FROM chats WHERE id = ?"
            found = db.execute(query, (chat,)).fetchone()
            if found is None:
                raise chat_not_found(chat)
            seed, system, settings, head, cut = found
            turns = records.clear_missing_parents(_load_turns(db, chat, with_events))
            ids = {turn.id for turn in turns}
            head = head if head in ids or head is None else max(ids, default=None)
            seed = seed if isinstance(seed, int) else 0
            conversation = Conversation(seed, str(system), turns, head)
            conversation.dropped = records.load_dropped(cut)
            place = ChatLocation(schema.read_database_id(db), chat)
            return SavedChat(place, listed, conversation, records.load_settings(settings))

        return self._database.run_read(work)

    def load_events(self, chat: int, turn: int) -> Sequence[Event]:
        """Those of one answer, to look at its tokens."""

        def work(db: sqlite3.Connection) -> Sequence[Event]:
            query = "SELECT key FROM turns WHERE chat = ? AND id = ?"
            key = db.execute(query, (chat, turn)).fetchone()
            return _load_events(db, key[0]) if key else ()

        return self._database.run_read(work)

    def search(self, text: str, limit: int = 100) -> Sequence[SearchHit]:
        """Where all words of a text stand, as parts of words too: in titles, then in turns."""
        terms = text.lower().split()
        if not terms:
            return []
        listed = {chat.id: chat for chat in self.list_chats()}
        found = [
            SearchHit(chat, None, chat.title)
            for chat in listed.values()
            if _title_matches(chat, terms)
        ]

        def work(db: sqlite3.Connection) -> list[tuple[int, int, str]]:
            return _search_turns(db, self._search_index.find_candidates(db, terms), terms, limit)

        hits = self._database.run_read(work)
        found += [
            SearchHit(listed[chat], turn, said) for chat, turn, said in hits if chat in listed
        ]
        return found[:limit]

    # --- writing --------------------------------------------------------------------------

    def save_chat(
        self, location: ChatLocation | None, metadata: ChatMetadata, turns: Sequence[Turn] = ()
    ) -> ChatLocation:
        """Write a chat, or begin one, with some of its turns; where it is.

        A turn that is there already is replaced.  Raises NotFoundError where the chat is gone.
        """

        def work(db: sqlite3.Connection) -> ChatLocation:
            clock = schema.advance_clock(db)
            chat = write_chat(db, location, metadata, clock)
            for turn in turns:
                write_turn(db, chat, turn, clock)
            return ChatLocation(schema.read_database_id(db), chat)

        return self._database.run_write(work)

    def append_events(self, location: ChatLocation, turn: int, events: Sequence[Event]) -> None:
        """Add what came of an answer.  Raises NotFoundError where the turn is gone."""

        def work(db: sqlite3.Connection) -> None:
            chat = resolve_chat_id(db, location)
            append_to_answer(db, chat, turn, events, schema.advance_clock(db))

        self._database.run_write(work)

    def remove_turn(self, location: ChatLocation, metadata: ChatMetadata, turn: int) -> None:
        """A turn that was refused was never asked."""

        def work(db: sqlite3.Connection) -> None:
            chat = write_chat(db, location, metadata, schema.advance_clock(db))
            delete_turns(db, "chat = ? AND id = ?", (chat, turn))

        self._database.run_write(work)

    def rename_chat(self, chat: int, title: str) -> None:
        """Raises NotFoundError."""
        words = records.replace_surrogates(" ".join(title.split()))[:200]

        def work(db: sqlite3.Connection) -> int:
            return db.execute("UPDATE chats SET title = ? WHERE id = ?", (words, chat)).rowcount

        if not self._database.run_write(work):
            raise chat_not_found(chat)

    def remove_chats(self, chats: Sequence[int]) -> RemovalResult:
        """Nothing of them is left, in no file of ours.

        Raises NotFoundError, or InUseError where one is open; none is removed then.
        """
        for chat in chats:
            self.find_entry(chat)
        held: list[file_lock.FileLock] = []
        try:
            for chat in chats:
                held.append(self.acquire_lock(chat))

            def work(db: sqlite3.Connection) -> None:
                for chat in chats:
                    delete_turns(db, "chat = ?", (chat,))
                    db.execute("DELETE FROM chats WHERE id = ?", (chat,))

            self._database.run_write(work)
        finally:
            for one in held:
                one.close()
        for chat in chats:
            with suppress(OSError):
                self._lock_path(chat).unlink(missing_ok=True)
        wiped = self._database.vacuum()
        return RemovalResult(len(chats), self._search_index.delete() and wiped)

    def acquire_lock(self, chat: int) -> file_lock.FileLock:
        """So that no other window writes it.  Raises InUseError where one does."""
        if self.write_error is not None:
            raise self.write_error
        try:
            self._lock_path(chat).parent.mkdir(mode=0o700, exist_ok=True)
            held = file_lock.acquire(self._lock_path(chat))
        except OSError:
            return file_lock.FileLock(os.open(os.devnull, os.O_RDONLY), is_exclusive=False)
        if held is None:
            raise InUseError(f"Chat {chat} is open in another window.", "Close it there.")
        return held

    def _lock_path(self, chat: int) -> Path:
        return self._database.path.with_name("open") / f"{chat}.lock"


# --- rows -------------------------------------------------------------------------------


def _load_list_entries(found: Sequence[Sequence[Any]]) -> list[ChatListEntry]:
    listed = []
    for row in found:
        with suppress(ValueError):
            listed.append(records.load_list_entry(row))
    return listed


def _load_turns(db: sqlite3.Connection, chat: int, with_events: bool) -> list[Turn]:
    found = []
    for row in db.execute(f"SELECT {records.TURN_COLUMNS} FROM turns WHERE chat = ?", (chat,)):
        with suppress(ValueError):
            found.append(records.load_turn(row, _load_events(db, row[0]) if with_events else None))
    return found


def _load_events(db: sqlite3.Connection, key: int) -> list[Event]:
    query = "SELECT body FROM events WHERE turn = ? ORDER BY n"
    return [event for (body,) in db.execute(query, (key,)) for event in records.unpack_events(body)]


# --- searching --------------------------------------------------------------------------


def _title_matches(chat: ChatListEntry, terms: Sequence[str]) -> bool:
    title = chat.title.lower()
    return all(term in title for term in terms)


def _search_turns(
    db: sqlite3.Connection, keys: list[int] | None, terms: Sequence[str], limit: int
) -> list[tuple[int, int, str]]:
    """Chat, turn and excerpt of the turns that hold all terms, the latest first."""
    query = "SELECT chat, id, question || char(10) || answer FROM turns"
    if keys is None:
        found = db.execute(f"{query} ORDER BY key DESC")
        return _excerpts(found, terms, limit)
    single = (db.execute(f"{query} WHERE key = ?", (key,)).fetchone() for key in keys)
    return _excerpts((row for row in single if row is not None), terms, limit)


def _excerpts(found: Any, terms: Sequence[str], limit: int) -> list[tuple[int, int, str]]:
    hits: list[tuple[int, int, str]] = []
    for chat, turn, said in found:
        lower = said.lower()
        if all(term in lower for term in terms):
            hits.append((chat, turn, _excerpt(said, lower.index(terms[0]))))
        if len(hits) == limit:
            break
    return hits


def _excerpt(said: str, at: int) -> str:
    begin, end = max(0, at - _EXCERPT_MARGIN), at + 2 * _EXCERPT_MARGIN
    words = " ".join(said[begin:end].split())
    return f"{'…' * (begin > 0)}{words}{'…' * (end < len(said))}"


# --- What is done to the history's tables when a chat grows; all of it inside a transaction.


def chat_not_found(chat: int) -> NotFoundError:
    return NotFoundError(f"There is no chat {chat}.", "See: localspec history list")


def resolve_chat_id(db: sqlite3.Connection, location: ChatLocation) -> int:
    """Its id.  Raises NotFoundError where the file is another one."""
    if schema.read_database_id(db) != location.database_id:
        raise chat_not_found(location.chat_id)
    return location.chat_id


def write_chat(
    db: sqlite3.Connection, location: ChatLocation | None, metadata: ChatMetadata, clock: int
) -> int:
    """Insert it, or all of it but its title and its beginning; its id."""
    said = {
        "system": records.replace_surrogates(metadata.system),
        "settings": records.dump_settings(metadata.settings),
        "pair": records.dump_pair(metadata.pair),
        "head": metadata.head,
        "cut": records.dump_dropped(metadata.dropped),
        "turns": metadata.turn_count,
        "updated": time.time(),
        "touched": clock,
    }
    if location is not None:
        chat = resolve_chat_id(db, location)
        sets = ", ".join(f"{name} = :{name}" for name in said)
        if db.execute(f"UPDATE chats SET {sets} WHERE id = :id", said | {"id": chat}).rowcount:
            return chat
        raise chat_not_found(chat)
    said |= {
        "title": records.replace_surrogates(metadata.title),
        "seed": metadata.seed,
        "created": said["updated"],
    }
    names = ", ".join(f":{name}" for name in said)
    added = db.execute(f"INSERT INTO chats ({', '.join(said)}) VALUES ({names})", said)
    return int(added.lastrowid or 0)


def write_turn(db: sqlite3.Connection, chat: int, turn: Turn, clock: int) -> None:
    delete_turns(db, "chat = ? AND id = ?", (chat, turn.id))
    values = {
        "chat": chat,
        "id": turn.id,
        "parent": turn.parent,
        "question": records.replace_surrogates(turn.question),
        "attached": records.dump_attachments(turn.attachments),
        "answer": records.replace_surrogates(turn.answer),
        "reason": turn.finish_reason,
        "attempt": turn.attempt,
        "inside": turn.starts_in_thinking,
        "changed": clock,
        "model": records.replace_surrogates(turn.model),
    }
    names = ", ".join(f":{name}" for name in values)
    added = db.execute(f"INSERT INTO turns ({', '.join(values)}) VALUES ({names})", values)
    add_events(db, int(added.lastrowid or 0), turn.events)


def add_events(db: sqlite3.Connection, key: int, events: Sequence[Event]) -> None:
    """As one more checkpoint."""
    if events:
        query = "SELECT 1 + coalesce(max(n), -1) FROM events WHERE turn = ?"
        (n,) = db.execute(query, (key,)).fetchone()
        values = (key, n, records.pack_events(events))
        db.execute("INSERT INTO events (turn, n, body) VALUES (?, ?, ?)", values)


def append_to_answer(
    db: sqlite3.Connection, chat: int, turn: int, events: Sequence[Event], clock: int
) -> None:
    """Add events to an answer.  Raises NotFoundError where the turn is gone."""
    key = db.execute("SELECT key FROM turns WHERE chat = ? AND id = ?", (chat, turn)).fetchone()
    if key is None:
        raise chat_not_found(chat)
    more = Turn("").with_events(events)
    add_events(db, key[0], events)
    db.execute(
        "UPDATE turns SET answer = answer || ?, reason = ?, inside = max(inside, ?), "
        "changed = ? WHERE key = ?",
        (
            records.replace_surrogates(more.answer),
            more.finish_reason,
            more.starts_in_thinking,
            clock,
            key[0],
        ),
    )
    touch_chat(db, chat, clock)


def delete_turns(db: sqlite3.Connection, where: str, values: tuple[int, ...]) -> None:
    """Turns, with their events."""
    chosen = f"SELECT key FROM turns WHERE {where}"
    db.execute(f"DELETE FROM events WHERE turn IN ({chosen})", values)
    db.execute(f"DELETE FROM turns WHERE {where}", values)


def touch_chat(db: sqlite3.Connection, chat: int, clock: int) -> None:
    values = (time.time(), clock, chat)
    db.execute("UPDATE chats SET updated = ?, touched = ? WHERE id = ?", values)
