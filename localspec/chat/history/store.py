"""The chat history: listing, searching, loading, saving and deleting chats."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from msgspec import Struct, to_builtins

from localspec import data_files, paths, sqlite_damage
from localspec.chat.conversation import Conversation, Turn
from localspec.chat.history import records, schema
from localspec.chat.history.database import HistoryDatabase, create_private_file
from localspec.chat.history.records import (
    ChatListEntry,
    ChatLocation,
    ChatMetadata,
    NewChat,
    SavedChat,
    SearchHit,
)
from localspec.chat.pictures import PictureReader, no_pictures
from localspec.chat.titles import clean_title
from localspec.errors import InUseError, LocalspecError, NotFoundError
from localspec.paths import DataFile
from localspec.protocol.events import Event, Notice

# Characters of an excerpt before the match; twice as many follow it.
_EXCERPT_MARGIN = 60
_TRIGRAM = 3  # Shorter terms are not in the index.
_HASH = re.compile("[0-9a-f]{64}")  # A SHA-256.

_NO_PICTURES = "[]"


class RemovalResult(Struct, frozen=True):
    chats: int
    wiped: bool  # False if another process prevented overwriting the deleted data.


class ChatHistory:
    """All saved chats of a user. Several processes may have it open."""

    def __init__(self, base: HistoryDatabase) -> None:
        self._database = base
        self._search_index = SearchIndex(
            base.path.with_name(DataFile.SEARCH_INDEX.path.name)
        )

    @classmethod
    def open(cls, path: Path | None = None, *, create: bool = True) -> ChatHistory:
        """Open the user's history, or that in `path`. Raises as `HistoryDatabase`."""
        return cls(HistoryDatabase(path or paths.chats_file(), create=create))

    def open_again(self) -> ChatHistory:
        """Open a second connection, so that a long search does not block saving."""
        return ChatHistory.open(self._database.path, create=False)

    @property
    def write_error(self) -> LocalspecError | None:
        """Why the history is read-only; None if it can be written."""
        return self._database.write_error

    def take_notices(self) -> list[Notice]:
        notices = self._database.notices
        self._database.notices = []
        return notices

    def close(self) -> None:
        self._database.close()

    # --- reading
    # --------------------------------------------------------------------------

    def list_chats(self, limit: int = -1) -> list[ChatListEntry]:
        """List chats, the most recently used first."""
        return self._read_entries("ORDER BY touched DESC, id DESC LIMIT ?", limit)

    def find_entry(self, chat: int) -> ChatListEntry:
        """Raises NotFoundError."""
        entries = self._read_entries("WHERE id = ?", chat)
        if not entries:
            raise _chat_not_found(chat)
        return entries[0]

    def _read_entries(self, clause: str, value: int) -> list[ChatListEntry]:
        query = f"SELECT {records.LIST_COLUMNS} FROM chats {clause}"
        rows = self._database.run_read(
            lambda db: db.execute(query, (value,)).fetchall()
        )
        entries = []
        for row in rows:
            with suppress(ValueError):  # a damaged row
                entries.append(records.load_list_entry(row))
        return entries

    def find_last_id(self) -> int:
        """The id of the most recently used chat.

        Raises NotFoundError if there is none.
        """
        entries = self.list_chats(1)
        if not entries:
            raise NotFoundError("There are no chats yet.", "Start one: localspec run")
        return entries[0].id

    def load_chat(self, chat: int, *, with_events: bool = True) -> SavedChat:
        """Load a chat with all branches.

        Without `with_events`, answers have only their text. Raises NotFoundError.
        """
        entry = self.find_entry(chat)

        def work(db: sqlite3.Connection) -> SavedChat:
            query = "SELECT seed, system, settings, head, cut FROM chats WHERE id = ?"
            row = db.execute(query, (chat,)).fetchone()
            if row is None:
                raise _chat_not_found(chat)
            seed, system, settings, head, cut = row
            if not isinstance(seed, int):
                seed = 0
            turns = records.clear_missing_parents(
                _load_turns(db, chat, with_events=with_events)
            )
            ids = {turn.id for turn in turns}
            if head is not None and head not in ids:
                head = max(ids, default=None)
            conversation = Conversation(seed, str(system), turns, head)
            conversation.dropped = records.load_dropped(cut)
            chat_settings, conversation.system_since = records.load_settings(settings)
            location = ChatLocation(schema.read_database_id(db), chat)
            return SavedChat(
                location, entry, conversation, chat_settings, self.read_picture
            )

        return self._database.run_read(work)

    def read_picture(self, sha256: str) -> bytes | None:
        """The file of a picture; None if it is not there, or damaged."""

        def work(db: sqlite3.Connection) -> bytes | None:
            if not schema.list_columns(db, "pictures"):  # a file of version 1
                return None
            query = "SELECT body FROM pictures WHERE sha256 = ?"
            row = db.execute(query, (sha256,)).fetchone()
            if row is None or not isinstance(row[0], bytes):
                return None
            body: bytes = row[0]
            return body if hashlib.sha256(body).hexdigest() == sha256 else None

        return self._database.run_read(work)

    def search(self, text: str, limit: int = 100) -> Sequence[SearchHit]:
        """Find titles, then turns, that contain all words of `text`.

        A word is also found inside a longer one, and whichever of its two forms was
        saved: macOS writes `ü` as `u` and a combining mark.
        """
        hits: dict[int, SearchHit] = {}
        entries = self.list_chats()
        for form in _forms(text):
            terms = tuple(form.lower().split())
            for entry in entries:
                if terms and _contains_all(entry.title, terms):
                    hit = SearchHit(entry, None, entry.title, terms)
                    hits.setdefault(entry.id, hit)
        return [*hits.values(), *self.search_turns(text, limit)][:limit]

    def search_turns(self, text: str, limit: int = 100) -> list[SearchHit]:
        """Find turns that contain all words of `text`, the latest first."""
        hits: dict[tuple[int, int | None], SearchHit] = {}
        for form in _forms(text):
            for hit in self._search_form(form, limit):
                hits.setdefault((hit.list_entry.id, hit.turn), hit)
        return list(hits.values())[:limit]

    def _search_form(self, text: str, limit: int) -> Iterator[SearchHit]:
        terms = tuple(text.lower().split())
        if not terms:
            return

        def work(db: sqlite3.Connection) -> list[tuple[int, int, str]]:
            candidates = self._search_index.find_candidates(db, terms)
            return _search_turns(db, candidates, terms, limit)

        for chat, turn, excerpt in self._database.run_read(work):
            for entry in self._read_entries("WHERE id = ?", chat):
                yield SearchHit(entry, turn, excerpt, terms)

    # --- writing
    # --------------------------------------------------------------------------

    def save_chat(
        self,
        location: ChatLocation | None,
        metadata: ChatMetadata,
        turns: Sequence[Turn] = (),
        read_picture: PictureReader = no_pictures,
    ) -> ChatLocation:
        """Write a chat and some of its turns, replacing saved turns of the same ids.

        Creates a new chat if `location` is None. `read_picture` gives the files of
        pictures that are not saved yet. Raises NotFoundError if the chat was deleted.
        """

        def work(db: sqlite3.Connection) -> ChatLocation:
            clock = schema.advance_clock(db)
            chat = _write_chat(db, location, metadata, clock)
            for turn in turns:
                _write_turn(db, chat, turn, clock)
                _write_pictures(db, turn, read_picture)
            if turns:
                now = time.time()
                db.execute("UPDATE chats SET updated = ? WHERE id = ?", (now, chat))
            return ChatLocation(schema.read_database_id(db), chat)

        return self._database.run_write(work)

    def import_chats(self, chats: Sequence[NewChat]) -> list[int | None]:
        """Write new chats, all of them or none. Returns the id of each.

        If one saved chat has all turns of a new one, that is not written, and its id is
        None. Imported chats are listed after those that were used here.
        """

        def work(db: sqlite3.Connection) -> list[int | None]:
            clock = schema.advance_clock(db)
            saved = _hash_saved_turns(db)
            ids: list[int | None] = []
            for new in chats:
                hashes = {_hash_turn(turn.question, turn.answer) for turn in new.turns}
                if any(hashes <= others for others in saved):
                    ids.append(None)
                    continue
                chat = _write_chat(db, None, new.metadata, clock)
                for turn in new.turns:
                    _write_turn(db, chat, turn, clock)
                    _write_pictures(db, turn, new.pictures.get)
                db.execute(
                    "UPDATE chats SET created = ?, updated = ?, touched = 0 "
                    "WHERE id = ?",
                    (new.created, new.updated, chat),
                )
                saved.append(hashes)
                ids.append(chat)
            return ids

        return self._database.run_write(work)

    def append_events(
        self, location: ChatLocation, turn: int, events: Sequence[Event]
    ) -> None:
        """Append events to an answer. Raises NotFoundError if the turn was deleted."""

        def work(db: sqlite3.Connection) -> None:
            chat = _resolve_chat_id(db, location)
            clock = schema.advance_clock(db)
            _append_to_answer(db, chat, turn, events=events, clock=clock)

        self._database.run_write(work)

    def remove_turn(
        self, location: ChatLocation, metadata: ChatMetadata, turn: int
    ) -> None:
        def work(db: sqlite3.Connection) -> None:
            chat = _write_chat(db, location, metadata, schema.advance_clock(db))
            _delete_turns(db, "chat = ? AND id = ?", (chat, turn))
            _delete_unused_pictures(db)

        self._database.run_write(work)

    def rename_chat(self, chat: int, title: str) -> None:
        """Raises NotFoundError."""
        new_title = records.replace_surrogates(clean_title(title))

        def work(db: sqlite3.Connection) -> int:
            return db.execute(
                "UPDATE chats SET title = ? WHERE id = ?", (new_title, chat)
            ).rowcount

        if not self._database.run_write(work):
            raise _chat_not_found(chat)

    def remove_chats(self, chats: Sequence[int]) -> RemovalResult:
        """Delete chats and overwrite their data.

        Raises NotFoundError, or InUseError if one of them is open; then none is
        deleted.
        """
        for chat in chats:
            self.find_entry(chat)

        def work(db: sqlite3.Connection) -> None:
            for chat in chats:
                _delete_turns(db, "chat = ?", (chat,))
                db.execute("DELETE FROM chats WHERE id = ?", (chat,))
            _delete_unused_pictures(db)

        with ExitStack() as locks:
            for chat in chats:
                locks.enter_context(closing(self.acquire_lock(chat)))
            self._database.run_write(work)
        for chat in chats:
            with suppress(OSError):
                self._lock_path(chat).unlink(missing_ok=True)
        wiped = self._database.vacuum()
        return RemovalResult(len(chats), self._search_index.delete() and wiped)

    def acquire_lock(self, chat: int) -> data_files.FileLock:
        """Keep other windows from writing the chat.

        Raises InUseError if one has it open.
        """
        if self.write_error is not None:
            raise self.write_error
        try:
            self._lock_path(chat).parent.mkdir(mode=0o700, exist_ok=True)
            lock = data_files.lock(self._lock_path(chat))
        except OSError:
            # This disk has no locks.
            null = os.open(os.devnull, os.O_RDONLY)
            return data_files.FileLock(null, is_exclusive=False)
        if lock is None:
            raise InUseError(
                f"Chat {chat} is open in another window.", "Close it there."
            )
        return lock

    def _lock_path(self, chat: int) -> Path:
        return (
            self._database.path.with_name(DataFile.CHAT_LOCKS.path.name)
            / f"{chat}.lock"
        )


# --- reading rows; damaged ones are skipped
# ---------------------------------------------


def _load_turns(db: sqlite3.Connection, chat: int, *, with_events: bool) -> list[Turn]:
    columns = f"{records.TURN_COLUMNS}, {_later_columns(db)}"
    query = f"SELECT {columns} FROM turns WHERE chat = ?"
    turns = []
    for row in db.execute(query, (chat,)):
        key = row[0]
        events = _load_events(db, key) if with_events else None
        with suppress(ValueError):
            turns.append(records.load_turn(row, events))
    return turns


def _later_columns(db: sqlite3.Connection) -> str:
    """What to select as the pictures and the calls of a turn.

    A file of an earlier version that cannot be written is not upgraded, and lacks them.
    """
    present = schema.list_columns(db, "turns")
    pictures = "pictures" if "pictures" in present else "'[]'"
    calls = "calls" if "calls" in present else "''"
    return f"{pictures}, {calls}"


def _load_events(db: sqlite3.Connection, key: object) -> list[Event]:
    query = "SELECT body FROM events WHERE turn = ? ORDER BY n"
    events = []
    for (body,) in db.execute(query, (key,)):
        events += records.unpack_events(body)
    return events


# --- searching
# --------------------------------------------------------------------------


class SearchIndex:
    """A full-text index of all turns; its file can be deleted at any time.

    It stores trigrams (SQLite FTS5), so it finds parts of words, and text without
    spaces. Without FTS5, or if the file cannot be written, a search reads all turns.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_checked = False

    def find_candidates(
        self, database: sqlite3.Connection, terms: Sequence[str]
    ) -> list[int] | None:
        """Return the keys of turns that may match all terms, latest first.

        None means any turn.
        """
        indexed_terms = [term for term in terms if len(term) >= _TRIGRAM]
        if not indexed_terms:
            return None
        quoted = [term.replace('"', '""') for term in indexed_terms]
        match = " ".join(f'"{term}"' for term in quoted)
        query = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid DESC"
        try:
            create_private_file(self._path)
            connection = sqlite3.connect(self._path, timeout=0.2, isolation_level=None)
            with closing(connection) as index:
                self._update(database, index)
                return [key for (key,) in index.execute(query, (match,))]
        except OSError:
            self.delete()
            return None
        except sqlite_damage.DATABASE_ERRORS as error:
            # Otherwise it is in use. (Without FTS5 it is empty, and not missed.)
            if sqlite_damage.is_damage(error, self._path):
                self.delete()
            return None

    def delete(self) -> bool:
        """Delete the index; the next search rebuilds it.

        Returns False if that failed.
        """
        for suffix in ("", "-journal"):
            with suppress(OSError):
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        return not self._path.exists()

    def _update(self, database: sqlite3.Connection, index: sqlite3.Connection) -> None:
        """Index the turns changed since the last search; all turns of another database."""
        index.execute("PRAGMA synchronous = OFF")
        index.execute("BEGIN IMMEDIATE")
        index.execute("CREATE TABLE IF NOT EXISTS seen (name TEXT, clock INTEGER)")
        index.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 "
            "(said, tokenize = 'trigram case_sensitive 1')"
        )
        self._check(index)
        state = database.execute("SELECT name, clock FROM state").fetchone()
        name, last_clock = state
        row = index.execute("SELECT clock FROM seen WHERE name = ?", (name,)).fetchone()
        clock = 0
        if row is not None:
            clock = row[0]
            if not isinstance(clock, int) or clock > last_clock:
                raise sqlite_damage.damage_error("the clock is damaged")
        else:
            index.execute("DELETE FROM words")
            index.execute("DELETE FROM seen")
            index.execute("INSERT INTO seen VALUES (?, 0)", (name,))
        query = (
            f"SELECT key, changed, question, answer, {_later_columns(database)} "
            "FROM turns WHERE changed > ? ORDER BY changed"
        )
        for key, changed, *texts in database.execute(query, (clock,)):
            index.execute("DELETE FROM words WHERE rowid = ?", (key,))
            text = _searched_text(*texts).lower()
            index.execute("INSERT INTO words (rowid, said) VALUES (?, ?)", (key, text))
            clock = changed
        index.execute("UPDATE seen SET clock = ?", (clock,))
        index.execute("COMMIT")

    def _check(self, index: sqlite3.Connection) -> None:
        """Raise sqlite3.DatabaseError if the index is damaged; only the first time.

        A damaged index is often readable, and misses turns. A check takes a quarter of
        the time in which the index is made: 0.2 s for 12 MB.
        """
        if self._is_checked:
            return
        if self._path.stat().st_size <= schema.MAX_CHECKED_BYTES:
            (result,) = index.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                raise sqlite_damage.damage_error(str(result))
            index.execute("INSERT INTO words (words) VALUES ('integrity-check')")
        self._is_checked = True


def _forms(text: str) -> list[str]:
    """The text in the forms in which it may have been saved, each once."""
    forms = (
        unicodedata.normalize("NFC", text),
        unicodedata.normalize("NFD", text),
        text,
    )
    return list(dict.fromkeys(forms))


def _contains_all(text: str, terms: Sequence[str]) -> bool:
    lower = text.lower()
    return all(term in lower for term in terms)


def _search_turns(
    db: sqlite3.Connection, keys: list[int] | None, terms: Sequence[str], limit: int
) -> list[tuple[int, int, str]]:
    """Chat, turn and excerpt of the turns that contain all terms, the latest first."""
    query = f"SELECT chat, id, question, answer, {_later_columns(db)} FROM turns"
    if keys is None:
        return _excerpts(db.execute(f"{query} ORDER BY key DESC"), terms, limit)
    rows = (db.execute(f"{query} WHERE key = ?", (key,)).fetchone() for key in keys)
    return _excerpts((row for row in rows if row is not None), terms, limit)


def _excerpts(
    rows: Iterable[tuple[int, int, str, str, str, str]],
    terms: Sequence[str],
    limit: int,
) -> list[tuple[int, int, str]]:
    hits: list[tuple[int, int, str]] = []
    for chat, turn, *texts in rows:
        text = _searched_text(*texts)
        if _contains_all(text, terms):
            hits.append((chat, turn, _excerpt(text, terms[0])))
        if len(hits) == limit:
            break
    return hits


def _searched_text(
    question: object, answer: object, pictures: object, calls: object
) -> str:
    """What a search finds of a turn: also names of pictures, and results of calls."""
    parts = [str(question), str(answer)]
    if pictures != _NO_PICTURES:
        parts += [picture.name for picture in records.load_pictures(pictures)]
    for result in records.load_calls(calls).results:
        parts += [result.tool, result.text]
    return "\n".join(parts)


def _excerpt(text: str, term: str) -> str:
    """The text around a term, on one line."""
    at = text.lower().index(term)
    start = max(0, at - _EXCERPT_MARGIN)
    end = at + 2 * _EXCERPT_MARGIN
    excerpt = " ".join(text[start:end].split())
    if start > 0:
        excerpt = f"…{excerpt}"
    if end < len(text):
        excerpt = f"{excerpt}…"
    return excerpt


# --- writing rows; the caller holds a transaction
# -----------------------------------------

# A turn has two numbers. Its `id` counts within its chat: 1, 2, 3. Its `key` is unique in
# the database, so events and the search index refer to it.


def _chat_not_found(chat: int) -> NotFoundError:
    return NotFoundError(f"There is no chat {chat}.", "See: localspec history list")


def _resolve_chat_id(db: sqlite3.Connection, location: ChatLocation) -> int:
    """Return the chat's id. Raises NotFoundError if the database was replaced."""
    if schema.read_database_id(db) != location.database_id:
        raise _chat_not_found(location.chat_id)
    return location.chat_id


def _write_chat(
    db: sqlite3.Connection,
    location: ChatLocation | None,
    metadata: ChatMetadata,
    clock: int,
) -> int:
    """Insert or update a chat and return its id.

    An update keeps title, seed and creation time, and the time of the last turn: a chat
    that is opened, or whose settings are changed, stays in its place in lists.
    """
    settings = to_builtins(metadata.settings)
    settings[records.SYSTEM_SINCE] = metadata.system_since
    cut = ""
    if metadata.dropped.turns:
        cut = json.dumps(to_builtins(metadata.dropped))
    values = {
        "system": records.replace_surrogates(metadata.system),
        "settings": json.dumps(settings),
        "pair": json.dumps(to_builtins(metadata.pair)),
        "head": metadata.head,
        "cut": cut,
        "turns": metadata.turn_count,
        "touched": clock,
    }
    if location is not None:
        chat = _resolve_chat_id(db, location)
        sets = ", ".join(f"{name} = :{name}" for name in values)
        query = f"UPDATE chats SET {sets} WHERE id = :id"
        if not db.execute(query, values | {"id": chat}).rowcount:
            raise _chat_not_found(chat)
        return chat
    title = records.replace_surrogates(metadata.title)
    now = time.time()
    added = {"title": title, "seed": metadata.seed, "created": now, "updated": now}
    return _insert(db, "chats", values | added)


def _hash_saved_turns(db: sqlite3.Connection) -> list[set[bytes]]:
    """The hashes of the turns of each chat."""
    by_chat: dict[int, set[bytes]] = {}
    for chat, question, answer in db.execute(
        "SELECT chat, question, answer FROM turns"
    ):
        by_chat.setdefault(chat, set()).add(_hash_turn(str(question), str(answer)))
    return list(by_chat.values())


def _hash_turn(question: str, answer: str) -> bytes:
    text = records.replace_surrogates(f"{question}\0{answer}")
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _insert(db: sqlite3.Connection, table: str, values: Mapping[str, object]) -> int:
    names = ", ".join(f":{name}" for name in values)
    inserted = db.execute(
        f"INSERT INTO {table} ({', '.join(values)}) VALUES ({names})", values
    )
    return int(inserted.lastrowid or 0)


def _write_turn(db: sqlite3.Connection, chat: int, turn: Turn, clock: int) -> None:
    """Without the files of its pictures, which `_write_pictures` adds."""
    _delete_turns(db, "chat = ? AND id = ?", (chat, turn.id))
    values = {
        "chat": chat,
        "id": turn.id,
        "parent": turn.parent,
        "question": records.replace_surrogates(turn.question),
        "attached": json.dumps([[file.name, file.text] for file in turn.attachments]),
        "answer": records.replace_surrogates(turn.answer),
        "reason": turn.finish_reason,
        "attempt": turn.attempt,
        "inside": turn.starts_in_thinking,
        "changed": clock,
        "model": records.replace_surrogates(turn.model),
        "pictures": _dump_pictures(turn),
        "calls": records.dump_calls(turn),
    }
    _add_events(db, _insert(db, "turns", values), turn.events)


def _dump_pictures(turn: Turn) -> str:
    return json.dumps([to_builtins(picture) for picture in turn.pictures])


def _write_pictures(
    db: sqlite3.Connection, turn: Turn, read_picture: PictureReader
) -> None:
    """Add the files of a turn's pictures that no turn had before."""
    for picture in turn.all_pictures:
        query = "SELECT 1 FROM pictures WHERE sha256 = ?"
        if db.execute(query, (picture.sha256,)).fetchone() is not None:
            continue
        body = read_picture(picture.sha256)
        if body is not None:
            _insert(db, "pictures", {"sha256": picture.sha256, "body": body})


def _add_events(db: sqlite3.Connection, key: int, events: Sequence[Event]) -> None:
    """Add a checkpoint after those that the turn with this key has."""
    if not events:
        return
    query = "SELECT 1 + coalesce(max(n), -1) FROM events WHERE turn = ?"
    (n,) = db.execute(query, (key,)).fetchone()
    _insert(db, "events", {"turn": key, "n": n, "body": records.pack_events(events)})


def _append_to_answer(
    db: sqlite3.Connection, chat: int, turn: int, events: Sequence[Event], clock: int
) -> None:
    query = "SELECT key, pictures, calls FROM turns WHERE chat = ? AND id = ?"
    row = db.execute(query, (chat, turn)).fetchone()
    if row is None:
        raise _chat_not_found(chat)
    key, pictures, calls = row
    _add_events(db, key, events)
    before = Turn(
        "",
        pictures=records.load_pictures(pictures),
        results=records.load_calls(calls).results,
    )
    more = before.with_events(events)
    if more.all_pictures != before.all_pictures:
        query = "UPDATE turns SET pictures = ?, calls = ? WHERE key = ?"
        db.execute(query, (_dump_pictures(more), records.dump_calls(more), key))
    db.execute(
        "UPDATE turns SET answer = answer || :text, reason = :reason, "
        "inside = max(inside, :inside), changed = :clock WHERE key = :key",
        {
            "text": records.replace_surrogates(more.answer),
            "reason": more.finish_reason,
            "inside": more.starts_in_thinking,
            "clock": clock,
            "key": key,
        },
    )
    db.execute(
        "UPDATE chats SET updated = :now, touched = :clock WHERE id = :chat",
        {"now": time.time(), "clock": clock, "chat": chat},
    )


def _delete_turns(db: sqlite3.Connection, where: str, values: tuple[int, ...]) -> None:
    """Their pictures stay until `_delete_unused_pictures`."""
    keys = f"SELECT key FROM turns WHERE {where}"
    db.execute(f"DELETE FROM events WHERE turn IN ({keys})", values)
    db.execute(f"DELETE FROM turns WHERE {where}", values)


def _delete_unused_pictures(db: sqlite3.Connection) -> None:
    """Delete the files of those pictures that no turn of any chat has."""
    saved = {sha256 for (sha256,) in db.execute("SELECT sha256 FROM pictures")}
    if not saved:
        return
    query = "SELECT pictures || calls FROM turns WHERE pictures != ? OR calls != ''"
    for (texts,) in db.execute(query, (_NO_PICTURES,)):
        saved.difference_update(_HASH.findall(str(texts)))
    for sha256 in saved:
        db.execute("DELETE FROM pictures WHERE sha256 = ?", (sha256,))
