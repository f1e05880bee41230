"""The chats that are kept, as Home lists them."""

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
"""Letters of what is looked for, for chats to be searched."""


class SavedChats:
    """Where chats are kept; opened when it is first needed, on whatever thread that is."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private
        """A person wants none to be kept."""
        self._lock = threading.Lock()
        self._history: ChatHistory | None = None
        self._notices: list[Notice] = []
        self._is_opened = False

    def set_saving(self, enabled: bool) -> None:
        """For chats that begin from now on."""
        self.private = not enabled

    @property
    def history(self) -> ChatHistory | None:
        """None where nothing is kept, and nothing can be read either."""
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
        """What a person should be told, once."""
        told, self._notices = self._notices, []
        return told

    def close(self) -> None:
        with self._lock:
            if self._history is not None:
                self._history.close()


def _not_saved_notice(error: LocalspecError) -> Notice:
    return Notice("warning", "not-saved", f"Chats are not saved: {error.message}", error.hint)


def recent_section(history: ChatHistory | None, now: datetime) -> HomeSection:
    """The last few."""
    try:
        rows = [_chat_row(chat, now) for chat in history.list_chats(MAX_RECENT)] if history else []
    except LocalspecError:  # said where it is opened or written
        rows = []
    return HomeSection("Recent chats", tuple(rows))


def search_section(history: ChatHistory, search_text: str, now: datetime) -> HomeSection:
    """Those in which something is said, a line for each; the first time that takes a second."""
    first: dict[int, SearchHit] = {}
    try:
        for found in (
            history.search(search_text, _MAX_MATCHES)
            if len(search_text) >= _MIN_SEARCH_LENGTH
            else ()
        ):
            first.setdefault(found.list_entry.id, found)
    except LocalspecError:
        first = {}
    rows = [
        _chat_row(one.list_entry, now, one.excerpt if one.turn else "") for one in first.values()
    ]
    return HomeSection("In your chats", tuple(rows))


def _chat_row(chat: ChatListEntry, now: datetime, excerpt: str = "") -> HomeRow:
    title = sanitize(chat.title, multiline=False) or "(untitled)"
    about = sanitize(excerpt or chat.pair.name, multiline=False)
    turns = f"{chat.turn_count} turn{'s' * (chat.turn_count != 1)}"
    return HomeRow(
        title,
        about,
        turns,
        format_day(chat.updated, now),
        chat_id=chat.id,
        is_excerpt=bool(excerpt),
    )


def format_day(timestamp: float, now: datetime) -> str:
    """A day as people say it; by this computer's clock and place."""
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
    """After what is ready to run, as the next best thing to open."""
    if not chats_section.rows:
        return list(sections)
    place = next((n + 1 for n, one in enumerate(sections) if one.heading == "Ready to run"), 0)
    return [*sections[:place], chats_section, *sections[place:]]
