"""The frame of a screen: centred columns, its title with a status, and its keys."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.layout import WidgetPlacement
from textual.screen import Screen
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


class CenteredLayout:
    """Mix-in of a container: centres each child that has a `max-width`.

    Textual's own `align` moves all children together.  This is a plain class, not a widget,
    because a style sheet finds a widget by the first widget class among its bases.
    """

    def process_layout(self, placements: list[WidgetPlacement]) -> list[WidgetPlacement]:
        """Called at each layout; `self.size` may still be the previous size."""
        widths = [place.region.width + place.margin.width for place in placements]
        available = max(widths, default=0)
        if isinstance(self, Screen):  # all its children may be narrower than the terminal
            available = self.app.size.width
        centered = []
        for place, width in zip(placements, widths, strict=True):
            margin = max(0, available - width) // 2
            offset = margin if place.widget.styles.max_width is not None else 0
            centered.append(place._replace(region=place.region.translate((offset, 0))))
        return centered


class CenteredColumn(CenteredLayout, Vertical):
    pass
