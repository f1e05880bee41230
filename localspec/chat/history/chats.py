"""The chats that were kept: listed, searched, read, written and removed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec import paths
from localspec.chat.conversation import Conversation
from localspec.chat.history import locks, rows, tables, writing
from localspec.chat.history.base import Base
from localspec.chat.history.kept import About, Found, Kept, Listed, Place
from localspec.chat.history.words import Words
from localspec.chat.history.writing import no_chat
from localspec.chat.turn import Turn
from localspec.errors import InUseError, LocalspecError, NotFoundError
from localspec.protocol.events import Event, Notice

_AROUND = 60
"""Characters of an excerpt before what was found, and twice as many after."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of chats that were to go."""

    chats: int
    wiped: bool
    """False where another process kept the file's last traces from being overwritten."""


class History:
    """All chats of a person on this computer; several programs may have it open."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._words = Words(base.path.with_name("words.sqlite"))

    @classmethod
    def open(cls, path: Path | None = None, *, create: bool = True) -> History:
        """The person's own, or that in another file; see Base."""
        return cls(Base(path or paths.chats(), create=create))

    def beside(self) -> History:
        """The same once more, for a thread that searches: nobody who writes waits for it."""
        return History.open(self._base.path, create=False)

    @property
    def refusal(self) -> LocalspecError | None:
        """Why nothing can be written; None where it can be."""
        return self._base.refusal

    def notices(self) -> list[Notice]:
        """What a person should be told, once."""
        told, self._base.notices = self._base.notices, []
        return told

    def close(self) -> None:
        self._base.close()

    # --- reading --------------------------------------------------------------------------

    def list(self, limit: int = -1, start: int = 0) -> list[Listed]:
        """Chats, the last used first; their turns are not read."""
        query = f"SELECT {rows.LISTED} FROM chats ORDER BY touched DESC, id DESC LIMIT ? OFFSET ?"
        return _all_listed(self._base.read(lambda db: db.execute(query, (limit, start)).fetchall()))

    def about(self, chat: int) -> Listed:
        """Raises NotFoundError."""
        query = f"SELECT {rows.LISTED} FROM chats WHERE id = ?"
        found = _all_listed(self._base.read(lambda db: db.execute(query, (chat,)).fetchall()))
        if not found:
            raise no_chat(chat)
        return found[0]

    def last(self) -> int:
        """The chat that was used last.  Raises NotFoundError where there is none."""
        found = self.list(1)
        if not found:
            raise NotFoundError("There is no chat yet.", "Chats begin with: localspec run")
        return found[0].id

    def read(self, chat: int, *, rounds: bool = True) -> Kept:
        """A chat with all its branches; without `rounds` its answers are text alone.

        Raises NotFoundError.
        """
        listed = self.about(chat)

        def work(db: sqlite3.Connection) -> Kept:
            query = "SELECT seed, system, settings, head, cut FROM chats WHERE id = ?"
            found = db.execute(query, (chat,)).fetchone()
            if found is None:
                raise no_chat(chat)
            seed, system, settings, head, cut = found
            turns = rows.grown(_turns(db, chat, rounds))
            ids = {turn.id for turn in turns}
            head = head if head in ids or head is None else max(ids, default=None)
            seed = seed if isinstance(seed, int) else 0
            conversation = Conversation(seed, str(system), turns, head)
            conversation.cut = rows.cut(cut)
            place = Place(tables.name(db), chat)
            return Kept(place, listed, conversation, rows.settings(settings))

        return self._base.read(work)

    def events(self, chat: int, turn: int) -> Sequence[Event]:
        """Those of one answer, to look at its tokens."""

        def work(db: sqlite3.Connection) -> Sequence[Event]:
            query = "SELECT key FROM turns WHERE chat = ? AND id = ?"
            key = db.execute(query, (chat, turn)).fetchone()
            return _events(db, key[0]) if key else ()

        return self._base.read(work)

    def search(self, text: str, limit: int = 100) -> Sequence[Found]:
        """Where all words of a text stand, as parts of words too: in titles, then in turns."""
        terms = text.lower().split()
        if not terms:
            return []
        listed = {chat.id: chat for chat in self.list()}
        found = [Found(chat, None, chat.title) for chat in listed.values() if _holds(chat, terms)]

        def work(db: sqlite3.Connection) -> list[tuple[int, int, str]]:
            return _said(db, self._words.candidates(db, terms), terms, limit)

        hits = self._base.read(work)
        found += [Found(listed[chat], turn, said) for chat, turn, said in hits if chat in listed]
        return found[:limit]

    # --- writing --------------------------------------------------------------------------

    def keep(self, place: Place | None, about: About, turns: Sequence[Turn] = ()) -> Place:
        """Write a chat, or begin one, with some of its turns; where it is.

        A turn that is there already is replaced.  Raises NotFoundError where the chat is gone.
        """

        def work(db: sqlite3.Connection) -> Place:
            clock = tables.tick(db)
            chat = writing.put_chat(db, place, about, clock)
            for turn in turns:
                writing.put_turn(db, chat, turn, clock)
            return Place(tables.name(db), chat)

        return self._base.write(work)

    def go_on(self, place: Place, turn: int, events: Sequence[Event]) -> None:
        """Add what came of an answer.  Raises NotFoundError where the turn is gone."""

        def work(db: sqlite3.Connection) -> None:
            chat = writing.chat_at(db, place)
            writing.lengthen(db, chat, turn, events, tables.tick(db))

        self._base.write(work)

    def take_out(self, place: Place, about: About, turn: int) -> None:
        """A turn that was refused was never asked."""

        def work(db: sqlite3.Connection) -> None:
            chat = writing.put_chat(db, place, about, tables.tick(db))
            writing.drop(db, "chat = ? AND id = ?", (chat, turn))

        self._base.write(work)

    def rename(self, chat: int, title: str) -> None:
        """Raises NotFoundError."""
        words = rows.plain(" ".join(title.split()))[:200]

        def work(db: sqlite3.Connection) -> int:
            return db.execute("UPDATE chats SET title = ? WHERE id = ?", (words, chat)).rowcount

        if not self._base.write(work):
            raise no_chat(chat)

    def remove(self, chats: Sequence[int]) -> Removed:
        """Nothing of them is left, in no file of ours.

        Raises NotFoundError, or InUseError where one is open; none is removed then.
        """
        for chat in chats:
            self.about(chat)
        held: list[locks.Hold] = []
        try:
            for chat in chats:
                held.append(self.hold(chat))

            def work(db: sqlite3.Connection) -> None:
                for chat in chats:
                    writing.drop(db, "chat = ?", (chat,))
                    db.execute("DELETE FROM chats WHERE id = ?", (chat,))

            self._base.write(work)
        finally:
            for one in held:
                one.close()
        for chat in chats:
            with suppress(OSError):
                self._lock_of(chat).unlink(missing_ok=True)
        wiped = self._base.wipe()
        return Removed(len(chats), self._words.forget() and wiped)

    def hold(self, chat: int) -> locks.Hold:
        """So that no other window writes it.  Raises InUseError where one does."""
        if self.refusal is not None:
            raise self.refusal
        try:
            self._lock_of(chat).parent.mkdir(mode=0o700, exist_ok=True)
            held = locks.hold(self._lock_of(chat))
        except OSError:
            return locks.Hold(os.open(os.devnull, os.O_RDONLY), sure=False)
        if held is None:
            raise InUseError(f"Chat {chat} is open in another window.", "Close it there.")
        return held

    def _lock_of(self, chat: int) -> Path:
        return self._base.path.with_name("open") / f"{chat}.lock"


# --- rows -------------------------------------------------------------------------------


def _all_listed(found: Sequence[Sequence[Any]]) -> list[Listed]:
    listed = []
    for row in found:
        with suppress(ValueError):
            listed.append(rows.listed(row))
    return listed


def _turns(db: sqlite3.Connection, chat: int, rounds: bool) -> list[Turn]:
    found = []
    for row in db.execute(f"SELECT {rows.TURN} FROM turns WHERE chat = ?", (chat,)):
        with suppress(ValueError):
            found.append(rows.turn(row, _events(db, row[0]) if rounds else None))
    return found


def _events(db: sqlite3.Connection, key: int) -> list[Event]:
    query = "SELECT body FROM events WHERE turn = ? ORDER BY n"
    return [event for (body,) in db.execute(query, (key,)) for event in rows.unpacked(body)]


# --- searching --------------------------------------------------------------------------


def _holds(chat: Listed, terms: Sequence[str]) -> bool:
    title = chat.title.lower()
    return all(term in title for term in terms)


def _said(
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
    begin, end = max(0, at - _AROUND), at + 2 * _AROUND
    words = " ".join(said[begin:end].split())
    return f"{'…' * (begin > 0)}{words}{'…' * (end < len(said))}"
