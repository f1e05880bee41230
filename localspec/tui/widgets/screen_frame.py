"""The first and the last line of a screen: its title with a status, and its keys."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

from localspec.tui.key_bindings import fit_footer


class TitleLine(Horizontal):
    """The title at the left, a status at the right."""

    def __init__(self, title: str) -> None:
        super().__init__(id="title")
        self._title = title

    def compose(self) -> ComposeResult:
        yield Static(self._title, id="brand", markup=False)
        yield Static("", id="machine", markup=False)

    def show_status(self, text: str) -> None:
        self.query_one("#machine", Static).update(Content(text), layout=False)


class KeyLine(Static):
    """As many whole key hints as fit."""

    def __init__(self) -> None:
        super().__init__(id="hints", markup=False)
        self._keys = ""

    def show_keys(self, keys: str) -> None:
        """`keys`: as `format_footer` gives them."""
        self._keys = keys
        self.refresh()

    def render(self) -> Content:
        return Content(fit_footer(self._keys, self.content_size.width))
