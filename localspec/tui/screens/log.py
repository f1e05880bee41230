"""The engine's last words, as it wrote them to its log."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from localspec import paths
from localspec.clean import clean

_LAST = 64 * 1024
"""Bytes that are shown."""


class LogScreen(ModalScreen[None]):
    """The end of engine.log; empty, it says what would be here."""

    BINDINGS = [Binding("escape,q,ctrl+l", "close", "Close")]  # noqa: RUF012

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="sheet"):
            yield Static(Content(_text()), markup=False)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).scroll_end(animate=False)

    def action_close(self) -> None:
        self.dismiss()


def _text() -> str:
    path = paths.state() / "engine.log"
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST))
            said = clean(file.read().decode("utf-8", "replace"))
    except OSError:
        said = ""
    where = clean(str(path), multiline=False)
    return f"{said}\n{where}" if said else f"What llama.cpp says is kept in {where}: nothing yet."
