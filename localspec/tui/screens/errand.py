"""Commands that run while one watches: their words as they come, and a key that stops them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec.doctor.errand import STOPPED, Errand
from localspec.doctor.finding import Command
from localspec.tui.widgets.tail import Tail

_PERIOD = 0.1
"""Seconds: a compiler says more than one can read."""


class ErrandScreen(ModalScreen[int]):
    """Dismissed with the exit code, once it is known and a person has seen it."""

    BINDINGS = [Binding("escape,enter,q", "leave", "Stop; then: back")]  # noqa: RUF012
    AUTO_FOCUS = "Tail"

    class Ended(Message):
        """The last of them, or the first that failed."""

        def __init__(self, code: int) -> None:
            super().__init__()
            self.code = code

    def __init__(self, title: str, commands: Sequence[Command]) -> None:
        super().__init__()
        self._title = title
        self._said: list[str] = []
        self._lock = threading.Lock()
        self._errand = Errand(commands, self._say)
        self._code: int | None = None

    def compose(self) -> ComposeResult:
        with Vertical(id="sheet"):
            yield Static(self._title, classes="heading", markup=False)
            yield Tail()
            yield Static("It runs.   esc stop", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.set_interval(_PERIOD, self._draw)
        threading.Thread(target=self._run, daemon=True, name="errand").start()

    def on_unmount(self) -> None:
        """Whoever leaves the app does not leave half an installation behind."""
        self._errand.stop()

    def _run(self) -> None:
        self.post_message(self.Ended(self._errand.run()))

    def _say(self, line: str) -> None:
        """On the thread that listens."""
        with self._lock:
            self._said.append(line)

    def _draw(self) -> None:
        with self._lock:
            said, self._said = self._said, []
        if said:
            self.query_one(Tail).add(said)

    @on(Ended)
    def _ended(self, message: Ended) -> None:
        self._draw()
        self._code = message.code
        words = {0: ("Done.", "$success"), STOPPED: ("Stopped.", "$warning")}
        said, style = words.get(message.code, (f"It failed: exit code {message.code}.", "$error"))
        told = Content.assemble((said, f"bold {style}"), "   esc back")
        self.query_one(".hint", Static).update(told)

    def action_leave(self) -> None:
        if self._code is not None:
            self.dismiss(self._code)
            return
        self._errand.stop()
        self.query_one(".hint", Static).update("Stopping: it puts back what it has changed.")
