"""The search field of Home.

It searches the saved chats while one types, and the hub on request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual import on
from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input

from localspec.chat.history import ChatHistory
from localspec.errors import LocalspecError
from localspec.tui import saved_chats
from localspec.tui.home_rows import HomeSection
from localspec.tui.notices import problem_text
from localspec.tui.scheduling import LatestOnlyWorker, run_on_thread

if TYPE_CHECKING:
    from localspec.models.hub.client import HubClient, HubSearchResult


class SearchField(Input):
    """Hidden until opened. Results of an earlier text are dropped."""

    BINDINGS = [  # noqa: RUF012
        Binding("up", "screen.move_pointer(-1)", show=False),
        Binding("down", "screen.move_pointer(1)", show=False),
    ]

    class ResultsChanged(Message):
        """Of the chats or of the hub."""

    def __init__(
        self, history: Callable[[], ChatHistory | None], hub: Callable[[], HubClient]
    ) -> None:
        super().__init__(placeholder="a model, a use, or words of a chat", id="filter")
        self.display = False
        self.cursor_blink = False
        self._history = history
        self._hub = hub
        self._worker = LatestOnlyWorker(self, "chats")
        self.chat_results = HomeSection("In your chats", ())
        self.hub_results: tuple[HubSearchResult, ...] = ()

    @property
    def text(self) -> str:
        return self.value.strip()

    def open_field(self) -> None:
        self.display = True
        self.screen.set_focus(self)  # at once: the next letters may follow immediately

    def close_field(self) -> None:
        self.value = ""
        self.display = False

    @on(Input.Changed)
    def _search_chats(self) -> None:
        """On a thread, with its own database connection."""
        self.hub_results = ()
        self.chat_results = replace(self.chat_results, rows=())
        text = self.text
        history = self._history()
        if history is None:
            return

        def work() -> None:
            now = datetime.now().astimezone()
            with closing(history.open_again()) as connection:
                section = saved_chats.search_section(connection, text, now)
            self.call_later(self._set_chat_results, text, section)  # thread-safe

        self._worker.submit(work, failed=self._show_failure)

    def _show_failure(self, error: LocalspecError) -> None:
        self.notify(problem_text(error), severity="error", markup=False)

    def _set_chat_results(self, text: str, section: HomeSection) -> None:
        if text == self.text:
            self.chat_results = section
            self.post_message(self.ResultsChanged())

    def search_hub(self, text: str) -> None:
        """On a thread; nothing else here uses the network."""

        def work() -> None:
            self.call_later(self._set_hub_results, self._hub().search(text))

        run_on_thread(self, "search", work, failed=self._hub_failed)

    def _set_hub_results(self, results: tuple[HubSearchResult, ...]) -> None:
        self.hub_results = results
        if not results:
            self.notify("No models with that name on the hub.", markup=False)
        self.post_message(self.ResultsChanged())

    def _hub_failed(self, error: LocalspecError) -> None:
        self.hub_results = ()
        self._show_failure(error)
        self.post_message(self.ResultsChanged())
