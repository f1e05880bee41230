"""The chats of the app: the history, the sessions that are open, and the rows on Home."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from localspec import data_files, launch, paths
from localspec.chat import export
from localspec.chat.history import ChatHistory, ChatListEntry, SearchHit, name_models
from localspec.chat.session import ChatSession
from localspec.chat.settings import ChatSettings
from localspec.errors import LocalspecError, NotFoundError
from localspec.launch import ResolvedPair, recent_pairs
from localspec.protocol.events import Notice
from localspec.tui.home_rows import HomeRow, HomeSection
from localspec.tui.text.wrapping import one_line
from localspec.units import count

if TYPE_CHECKING:
    from localspec.tui.app_options import AppOptions

MAX_RECENT = 5
_MAX_MATCHES = 20
_MAX_LISTED_MATCHES = 100  # Turns, in the list of all chats.
_PINNED = "Pinned"  # The heading of pinned chats.
_MAX_TURNS_WITH_TOKENS = 40
"""A longer chat is opened without its tokens, which take seconds to load."""
_MIN_SEARCH_LENGTH = 3
"""Chats are not searched for fewer ASCII characters. One of Chinese may be a word.

The search index has three letters of a word, too: for fewer, all turns would be read.
"""


class SavedChats:
    """Opens the history at the first access, on the thread that needs it."""

    def __init__(self, *, private: bool = False) -> None:
        # Whether the user has turned saving off: applies to new chats.
        self.private = private
        self._lock = threading.Lock()
        self._history: ChatHistory | None = None
        self._notices: list[Notice] = []
        self._is_opened = False

    @property
    def history(self) -> ChatHistory | None:
        """None if saving is off, or if the history cannot be opened."""
        if self.private:
            return None
        with self._lock:
            if not self._is_opened:
                self._is_opened = True
                self._open()
            return self._history

    def _open(self) -> None:
        """Leaves a notice if chats cannot be saved."""
        error: LocalspecError | None
        try:
            self._history = ChatHistory.open()
        except LocalspecError as failure:
            error = failure
        else:
            error = self._history.write_error
            self._notices += self._history.take_notices()
        if error is not None:
            text = f"Chats are not saved: {error.message}"
            self._notices.append(Notice("warning", "not-saved", text, error.hint))

    def take_notices(self) -> list[Notice]:
        notices = self._notices
        self._notices = []
        return notices

    def close(self) -> None:
        with self._lock:
            if self._history is not None:
                self._history.close()


class ChatSessions:
    """A chat stays open when its screen closes.

    A pair opens the chat that used it last.
    """

    def __init__(self, options: AppOptions) -> None:
        self._options = options
        self._sessions: list[ChatSession] = []
        """The last opened first; the pair of a session may change."""
        self._drafts: dict[int, str] = {}
        """Of saved chats that another chat of their pair has replaced, by chat id."""

    @property
    def history(self) -> ChatHistory | None:
        if self._options.chats is None:
            return None
        return self._options.chats.history

    def for_pair(self, pair: ResolvedPair) -> ChatSession:
        """The open chat that used the pair last, or a new one."""
        session = self._find(pair)
        if session is None:
            settings = self._new_settings(pair)
            session = ChatSession(
                pair, self._options.seed, self.history, settings=settings
            )
        self._put_first(session)
        return session

    def _find(self, pair: ResolvedPair) -> ChatSession | None:
        session = self._find_equal(pair)
        has_files_only = pair == ResolvedPair(pair.target, pair.draft)
        if session is None and has_files_only:
            return self._find_by_files(pair)
        return session

    def _find_by_files(self, pair: ResolvedPair) -> ChatSession | None:
        """For the list of recent pairs, which keeps the files but no settings.

        A default draft may be left out where it does not pay; one in that list is
        always used.
        """
        for session in self._sessions:
            if session.pair.files == pair.files and not session.pair.default_draft:
                return session
        return None

    def _find_equal(self, pair: ResolvedPair) -> ChatSession | None:
        for session in self._sessions:
            if session.pair == pair:
                return session
        return None

    def _find_open(self, chat_id: int) -> ChatSession | None:
        for session in self._sessions:
            if session.recorder.chat_id == chat_id:
                return session
        return None

    def _put_first(self, session: ChatSession) -> None:
        others = [other for other in self._sessions if other is not session]
        self._sessions = [session, *others]

    def _new_settings(self, pair: ResolvedPair) -> ChatSettings:
        """The settings of a new chat: the pair's, with the user's preferences."""
        options = self._options
        settings = ChatSettings.from_catalog(pair.suggested_settings)
        sampling = settings.sampling
        if options.temperature is not None:
            sampling = replace(sampling, temperature=options.temperature)
        return replace(
            settings,
            sampling=sampling,
            overflow=options.overflow,
            show_thinking=options.show_thinking,
            spec=launch.preferred_drafter(pair, options.spec),
            exact=options.exact,
        )

    def count_turns(self, pair: ResolvedPair) -> int:
        session = self._find(pair)
        return len(session.conversation.questions) if session else 0

    def resume_chat(self, chat_id: int) -> ChatSession:
        """Opens a saved chat, or returns its session if it is open.

        Raises NotFoundError if the chat or a file of its pair is missing, and whatever
        `launch.resolve_pair` raises.
        """
        assert self.history is not None, "a saved chat comes from the history"
        entry = self.history.find_entry(chat_id)
        session = self._find_open(chat_id)
        if session is not None and session.recorder.lock_error is not None:
            self._sessions.remove(session)  # The other window may have closed it.
            session.close()
            session = None
        if session is not None:
            session.recorder.title = entry.title  # it may have been renamed
            self._put_first(session)
            return session
        with_events = entry.turn_count <= _MAX_TURNS_WITH_TOKENS
        saved = self.history.load_chat(chat_id, with_events=with_events)
        saved_pair = saved.list_entry.pair
        # An imported chat names no model that is here.
        model, draft, _ = recent_pairs.resolve_default(
            saved_pair.model or None, saved_pair.draft
        )
        pair = replace(
            launch.resolve_pair(model, draft),
            requested_refs=launch.make_portable_refs(model, draft),
        )
        session = ChatSession(
            pair,
            history=self.history,
            saved_chat=saved,
            settings=self._new_settings(pair),
        )
        session.draft = self._drafts.pop(chat_id, "")
        previous = self._find_equal(pair)
        if previous is not None:
            self._replace(previous, session)
        self._put_first(session)
        return session

    def _replace(self, previous: ChatSession, session: ChatSession) -> None:
        """Closes the chat that used the pair last; what was typed in it is kept."""
        previous.close()
        self._sessions.remove(previous)
        if previous.recorder.chat_id is not None:
            self._drafts[previous.recorder.chat_id] = previous.draft
        elif previous.draft:  # a new chat: nothing else leads back to it
            session.typed_texts.append(previous.draft)

    def rename_chat(self, chat_id: int, title: str) -> None:
        """Raises NotFoundError."""
        session = self._find_open(chat_id)
        if session is not None:
            session.recorder.rename(title)
        elif self.history is not None:
            self.history.rename_chat(chat_id, title)

    def delete_chat(self, chat_id: int) -> None:
        """Raises InUseError if another window has the chat open."""
        session = self._find_open(chat_id)
        if session is not None:
            session.close()
            self._sessions.remove(session)
        if self.history is not None:
            self.history.remove_chats([chat_id])

    def close_all(self) -> None:
        for session in self._sessions:
            session.close()
        if self._options.chats is not None:
            self._options.chats.close()


def recent_section(history: ChatHistory | None, now: datetime) -> HomeSection:
    """The pinned chats, then those that were used last."""
    rows: list[HomeRow] = []
    if history is not None:
        with suppress(LocalspecError):  # reported when it is opened or written
            pinned = _find_pinned(history)
            chats = history.list_chats(MAX_RECENT + len(pinned))
            others = [chat for chat in chats if chat not in pinned][:MAX_RECENT]
            models = name_models([*pinned, *others])
            for chat in pinned:
                rows.append(_chat_row(chat, models[chat.id], now, is_pinned=True))
            for chat in others:
                rows.append(_chat_row(chat, models[chat.id], now))
    return HomeSection("Recent chats", tuple(rows), "home.chats")


def all_rows(
    history: ChatHistory, now: datetime, limit: int = -1
) -> tuple[HomeRow, ...]:
    """The pinned chats, then the others, those used last first. Raises LocalspecError.

    Ten thousand take a second, so they are work for a thread; the first `limit` do not.
    """
    pinned = _find_pinned(history)
    pinned_ids = {chat.id for chat in pinned}
    others = [chat for chat in history.list_chats(limit) if chat.id not in pinned_ids]
    models = name_models([*pinned, *others])
    rows = []
    for chat in pinned:
        row = _chat_row(chat, models[chat.id], now)
        rows.append(replace(row, is_pinned=True, period=_PINNED))
    for chat in others:
        row = _chat_row(chat, models[chat.id], now)
        rows.append(replace(row, period=format_period(chat.updated, now)))
    return tuple(rows)


def group_by_period(rows: Iterable[HomeRow]) -> list[HomeSection]:
    groups: dict[str, list[HomeRow]] = {}
    for row in rows:
        groups.setdefault(row.period, []).append(row)
    return [HomeSection(period, tuple(group)) for period, group in groups.items()]


def turn_rows(
    history: ChatHistory, search_text: str, now: datetime
) -> tuple[HomeRow, ...]:
    """One row for each chat that has all words in a turn. Raises LocalspecError."""
    if not is_searchable(search_text):
        return ()
    return _hit_rows(history.search_turns(search_text, _MAX_LISTED_MATCHES), now)


def search_section(
    history: ChatHistory, search_text: str, now: datetime
) -> HomeSection:
    """One row for each chat with a match. The first search takes a second."""
    rows: tuple[HomeRow, ...] = ()
    if is_searchable(search_text):
        with suppress(LocalspecError):
            rows = _hit_rows(history.search(search_text, _MAX_MATCHES), now)
    return HomeSection("In your chats", rows)


def _hit_rows(hits: Iterable[SearchHit], now: datetime) -> tuple[HomeRow, ...]:
    """A row for the first hit of each chat; one in a turn is shown when it opens."""
    first_hits: dict[int, SearchHit] = {}
    for hit in hits:
        first_hits.setdefault(hit.list_entry.id, hit)
    models = name_models(hit.list_entry for hit in first_hits.values())
    rows = []
    for chat_id, hit in first_hits.items():
        found = hit if hit.turn is not None else None
        rows.append(_chat_row(hit.list_entry, models[chat_id], now, found))
    return tuple(rows)


def is_searchable(search_text: str) -> bool:
    """Whether the words of chats are searched for such a text."""
    return len(search_text) >= _MIN_SEARCH_LENGTH or not search_text.isascii()


def _find_pinned(history: ChatHistory) -> list[ChatListEntry]:
    pinned = []
    for chat_id in data_files.read_list(paths.DataFile.PINNED_CHATS, int):
        with suppress(NotFoundError):  # deleted
            pinned.append(history.find_entry(chat_id))
    return pinned


def pin_or_unpin(chat_id: int) -> str:
    """Returns why it cannot be saved; empty if it was."""
    before = data_files.read_list(paths.DataFile.PINNED_CHATS, int)
    pinned = [id_ for id_ in before if id_ != chat_id]
    if chat_id not in before:
        pinned.append(chat_id)
    if data_files.write_json(paths.DataFile.PINNED_CHATS, pinned):
        return ""
    path = one_line(str(paths.DataFile.PINNED_CHATS.path))
    return f"Not saved: {path} cannot be written."


def export_chat(history: ChatHistory, chat_id: int, name: str) -> Path:
    """Writes a new file in the format of its name. Raises LocalspecError.

    It takes as long as the chat, so it has a connection of its own, and a thread.
    """
    path = Path(os.path.expanduser(paths.parse_typed_path(name))).absolute()
    with closing(history.open_again()) as connection:
        chat = connection.load_chat(chat_id, with_events=False)
        text = export.render(chat, path.suffix)  # Its pictures are read now.
    export.save_file(path, text, overwrite=False)
    return path


def _chat_row(
    chat: ChatListEntry,
    model: str,
    now: datetime,
    found: SearchHit | None = None,
    *,
    is_pinned: bool = False,
) -> HomeRow:
    description = model if found is None else found.excerpt
    note = format_day(chat.updated, now)
    if is_pinned:
        note = f"pinned · {note}"
    return HomeRow(
        name=one_line(chat.title) or "(untitled)",
        description=one_line(description),
        size=count(chat.turn_count, "turn"),
        note=note,
        chat_id=chat.id,
        is_pinned=is_pinned,
        found=found,
    )


def _local_time(timestamp: float) -> datetime | None:
    """None for a time that no calendar has, of a damaged history."""
    try:
        return datetime.fromtimestamp(timestamp).astimezone()
    except (OverflowError, ValueError, OSError):
        return None


def format_day(timestamp: float, now: datetime) -> str:
    """A short date in local time: today, yesterday, a weekday, or the date."""
    then = _local_time(timestamp)
    if then is None:
        return ""
    days = (now.date() - then.date()).days
    if days == 0:
        return f"today {then:%H:%M}"
    if days == 1:
        return "yesterday"
    if 1 < days < 7:
        return f"{then:%A}"
    return f"{then:%Y-%m-%d}"


def format_period(timestamp: float, now: datetime) -> str:
    """The heading of a chat in the list of all chats, in local time."""
    then = _local_time(timestamp)
    if then is None:
        return "Without a date"
    days = (now.date() - then.date()).days
    if days <= 0:
        return "Today"
    if days == 1:
        return "Yesterday"
    if days < 7:
        return "This week"
    if (then.year, then.month) == (now.year, now.month):
        return "This month"
    return f"{then:%B %Y}"
