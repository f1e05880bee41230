"""The field above Home's list: narrows what is listed, and looks further where that is wanted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.message import Message
from textual.widgets import Input

from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.models.remote import Found


class Finder(Input):
    """Not seen until it is wanted."""

    class Answered(Message):
        """The hub did, or why not."""

        def __init__(self, found: tuple[Found, ...], error: LocalspecError | None = None) -> None:
            super().__init__()
            self.found, self.error = found, error

    def __init__(self, search: Callable[[str], tuple[Found, ...]]) -> None:
        """`search` may take its time and raise LocalspecError."""
        super().__init__(placeholder="name, use or repository; enter searches the hub", id="filter")
        self._look = search
        self.display, self.cursor_blink = False, False

    @property
    def wanted(self) -> str:
        return self.value.strip()

    def show(self) -> None:
        self.display = True
        self.screen.set_focus(self)  # at once: letters may follow close behind

    def hide(self) -> None:
        self.value, self.display = "", False

    def search(self) -> None:
        """Ask the hub, on a thread."""
        text = self.wanted

        def work() -> None:
            try:
                found = self._look(text)
            except LocalspecError as error:
                self.post_message(self.Answered((), error))
            else:
                self.post_message(self.Answered(found))

        threading.Thread(target=work, daemon=True, name="search").start()
