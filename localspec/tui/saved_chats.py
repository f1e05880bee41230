"""The saved chats, and their rows on Home."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime

from localspec.chat.history import ChatHistory, ChatListEntry, SearchHit
from localspec.errors import LocalspecError
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize
from localspec.tui.home_rows import HomeRow, HomeSection

MAX_RECENT = 5
_MAX_MATCHES = 20
_MIN_SEARCH_LENGTH = 2
"""Chats are not searched for fewer characters."""


class SavedChats:
    """Opens the history at the first access, on the thread that needs it."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private
        """Whether the user has turned saving off."""
        self._lock = threading.Lock()
        self._history: ChatHistory | None = None
        self._notices: list[Notice] = []
        self._is_opened = False

    def set_saving(self, enabled: bool) -> None:
        """Applies to new chats."""
        self.private = not enabled

    @property
    def history(self) -> ChatHistory | None:
        """None if saving is off, or if the history cannot be opened."""
        if self.private:
            return None
        with self._lock:
            if not self._is_opened:
                self._is_opened = True
                self._open_history()
            return self._history

    def _open_history(self) -> None:
        try:
            self._history = ChatHistory.open()
        except LocalspecError as error:
            self._notices.append(_not_saved_notice(error))
            return
        self._notices += self._history.take_notices()
        if self._history.write_error is not None:
            self._notices.append(_not_saved_notice(self._history.write_error))

    def take_notices(self) -> list[Notice]:
        """Notices since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def close(self) -> None:
        with self._lock:
            if self._history is not None:
                self._history.close()


def _not_saved_notice(error: LocalspecError) -> Notice:
    return Notice("warning", "not-saved", f"Chats are not saved: {error.message}", error.hint)


def recent_section(history: ChatHistory | None, now: datetime) -> HomeSection:
    try:
        rows = [_chat_row(chat, now) for chat in history.list_chats(MAX_RECENT)] if history else []
    except LocalspecError:  # reported when it is opened or written
        rows = []
    return HomeSection("Recent chats", tuple(rows))


def search_section(history: ChatHistory, search_text: str, now: datetime) -> HomeSection:
    """One row per chat with a match.  The first search takes a second."""
    first: dict[int, SearchHit] = {}
    try:
        for hit in (
            history.search(search_text, _MAX_MATCHES)
            if len(search_text) >= _MIN_SEARCH_LENGTH
            else ()
        ):
            first.setdefault(hit.list_entry.id, hit)
    except LocalspecError:
        first = {}
    rows = [
        _chat_row(hit.list_entry, now, hit.excerpt if hit.turn else "") for hit in first.values()
    ]
    return HomeSection("In your chats", tuple(rows))


def _chat_row(chat: ChatListEntry, now: datetime, excerpt: str = "") -> HomeRow:
    title = sanitize(chat.title, multiline=False) or "(untitled)"
    description = sanitize(excerpt or chat.pair.name, multiline=False)
    turns = f"{chat.turn_count} turn{'s' * (chat.turn_count != 1)}"
    return HomeRow(
        title,
        description,
        turns,
        format_day(chat.updated, now),
        chat_id=chat.id,
        is_excerpt=bool(excerpt),
    )


def format_day(timestamp: float, now: datetime) -> str:
    """A short date in local time: today, yesterday, a weekday, or the date."""
    try:
        then = datetime.fromtimestamp(timestamp).astimezone()
    except (OverflowError, ValueError, OSError):
        return ""
    days = (now.date() - then.date()).days
    if days == 0:
        return f"today {then:%H:%M}"
    if days == 1:
        return "yesterday"
    return f"{then:%A}" if 1 < days < 7 else f"{then:%Y-%m-%d}"


def insert_section(
    sections: Sequence[HomeSection], chats_section: HomeSection
) -> list[HomeSection]:
    """Inserts the chats after the section \"Ready to run\"."""
    if not chats_section.rows:
        return list(sections)
    index = next((n + 1 for n, s in enumerate(sections) if s.heading == "Ready to run"), 0)
    return [*sections[:index], chats_section, *sections[index:]]
