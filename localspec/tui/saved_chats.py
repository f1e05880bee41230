"""The saved chats, and their rows on Home."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from localspec import data_files, paths
from localspec.chat import export
from localspec.chat.history import ChatHistory, ChatListEntry, SearchHit
from localspec.errors import LocalspecError, NotFoundError
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize
from localspec.tui.home_rows import HomeRow, HomeSection
from localspec.units import count

MAX_RECENT = 5
_PINNED_FILE = "pinned.json"
_MAX_MATCHES = 20
_MIN_SEARCH_LENGTH = 2  # Chats are not searched for fewer characters.


class SavedChats:
    """Opens the history at the first access, on the thread that needs it."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private  # Whether the user has turned saving off.
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
    """The pinned chats first."""
    rows: list[HomeRow] = []
    try:
        if history is not None:
            top = _pinned_chats(history)
            chats = history.list_chats(MAX_RECENT + len(top))
            rest = [chat for chat in chats if chat not in top][:MAX_RECENT]
            rows = [_chat_row(chat, now, is_pinned=chat in top) for chat in (*top, *rest)]
    except LocalspecError:  # reported when it is opened or written
        pass
    return HomeSection("Recent chats", tuple(rows))


def _load_pinned() -> list[int]:
    body = data_files.read_json(_PINNED_FILE)
    return [id_ for id_ in body if isinstance(id_, int)] if isinstance(body, list) else []


def _pinned_chats(history: ChatHistory) -> list[ChatListEntry]:
    """Without those that were deleted."""
    chats = []
    for id_ in _load_pinned():
        with suppress(NotFoundError):
            chats.append(history.find_entry(id_))
    return chats


def pin_or_unpin(chat_id: int) -> str:
    """Returns why it cannot be saved; empty if it was."""
    pinned = _load_pinned()
    ids = [id_ for id_ in pinned if id_ != chat_id]
    if data_files.write_json(_PINNED_FILE, ids if chat_id in pinned else [*ids, chat_id]):
        return ""
    path = sanitize(str(paths.data_dir() / _PINNED_FILE), multiline=False)
    return f"Not saved: {path} cannot be written."


def export_chat(history: ChatHistory, chat_id: int, name: str) -> Path:
    """Writes a new file in the format of its name. Raises LocalspecError."""
    path = Path(os.path.expanduser(name)).absolute()
    text = export.render(history.load_chat(chat_id, with_events=False), path.suffix)
    export.save_file(path, text, overwrite=False)
    return path


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
        _chat_row(hit.list_entry, now, hit if hit.turn is not None else None)
        for hit in first.values()
    ]
    return HomeSection("In your chats", tuple(rows))


def _chat_row(
    chat: ChatListEntry, now: datetime, found: SearchHit | None = None, *, is_pinned: bool = False
) -> HomeRow:
    title = sanitize(chat.title, multiline=False) or "(untitled)"
    description = sanitize(found.excerpt if found else chat.pair.name, multiline=False)
    return HomeRow(
        title,
        description,
        count(chat.turn_count, "turn"),
        f"{'pinned · ' * is_pinned}{format_day(chat.updated, now)}",
        chat_id=chat.id,
        is_pinned=is_pinned,
        found=found,
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
