"""The chats that are kept, as Home lists them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import datetime

from localspec.chat.history import Found, History, Listed
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.protocol.events import Notice
from localspec.tui.rows import Row, Section

SHOWN = 5
_MATCHING = 20
_ENOUGH = 2
"""Letters of what is looked for, for chats to be searched."""


class Chats:
    """Where chats are kept; opened when it is first needed, on whatever thread that is."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private
        """A person wants none to be kept."""
        self._lock = threading.Lock()
        self._history: History | None = None
        self._notices: list[Notice] = []
        self._opened = False

    def keep(self, kept: bool) -> None:
        """For chats that begin from now on."""
        self.private = not kept

    @property
    def history(self) -> History | None:
        """None where nothing is kept, and nothing can be read either."""
        if self.private:
            return None
        with self._lock:
            if not self._opened:
                self._opened = True
                self._open()
            return self._history

    def _open(self) -> None:
        try:
            self._history = History.open()
        except LocalspecError as error:
            self._notices.append(_unsaved(error))
            return
        self._notices += self._history.notices()
        if self._history.refusal is not None:
            self._notices.append(_unsaved(self._history.refusal))

    def notices(self) -> list[Notice]:
        """What a person should be told, once."""
        told, self._notices = self._notices, []
        return told

    def close(self) -> None:
        with self._lock:
            if self._history is not None:
                self._history.close()


def _unsaved(error: LocalspecError) -> Notice:
    return Notice("warning", "not-saved", f"Chats are not saved: {error.message}", error.hint)


def recent(history: History | None, now: datetime) -> Section:
    """The last few."""
    try:
        rows = [_row(chat, now) for chat in history.list(SHOWN)] if history else []
    except LocalspecError:  # said where it is opened or written
        rows = []
    return Section("Recent chats", tuple(rows))


def holding(history: History, wanted: str, now: datetime) -> Section:
    """Those in which something is said, a line for each; the first time that takes a second."""
    first: dict[int, Found] = {}
    try:
        for found in history.search(wanted, _MATCHING) if len(wanted) >= _ENOUGH else ():
            first.setdefault(found.listed.id, found)
    except LocalspecError:
        first = {}
    rows = [_row(one.listed, now, one.excerpt if one.turn else "") for one in first.values()]
    return Section("In your chats", tuple(rows))


def _row(chat: Listed, now: datetime, excerpt: str = "") -> Row:
    title = clean(chat.title, multiline=False) or "(untitled)"
    about = clean(excerpt or chat.pair.name, multiline=False)
    turns = f"{chat.turns} turn{'s' * (chat.turns != 1)}"
    return Row(title, about, turns, when(chat.updated, now), chat=chat.id, found=bool(excerpt))


def when(updated: float, now: datetime) -> str:
    """A day as people say it; by this computer's clock and place."""
    try:
        then = datetime.fromtimestamp(updated).astimezone()
    except (OverflowError, ValueError, OSError):
        return ""
    days = (now.date() - then.date()).days
    if days == 0:
        return f"today {then:%H:%M}"
    if days == 1:
        return "yesterday"
    return f"{then:%A}" if 1 < days < 7 else f"{then:%Y-%m-%d}"


def before(sections: Sequence[Section], new: Section) -> list[Section]:
    """After what is ready to run, as the next best thing to open."""
    if not new.rows:
        return list(sections)
    place = next((n + 1 for n, one in enumerate(sections) if one.heading == "Ready to run"), 0)
    return [*sections[:place], new, *sections[place:]]
