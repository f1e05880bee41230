"""The end of a log, scrolled: only lines that are seen are drawn; it follows what is added."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

_MAX_LINES = 20_000
"""Lines that are kept."""


class LogView(ScrollView, can_focus=True):
    """Lines of plain, cleaned text, wrapped at the edge."""

    COMPONENT_CLASSES = {"log-view--found", "tail--here"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.following = True
        """Whether the end is shown, whatever is added."""
        self._wrapped_rows: list[tuple[int, int, int]] = []
        """Number of the line, and from where to where."""
        self._width = 0
        self._search_text = ""
        self.matches: list[int] = []
        """Numbers of the lines in which it is."""
        self._match_index = -1
        """The place among them where one stands."""

    # --- what there is --------------------------------------------------------------------

    def set_lines(self, lines: Iterable[str]) -> None:
        """These and no others."""
        self.lines = [line.expandtabs(4) for line in lines][-_MAX_LINES:]
        self._rewrap()

    def append_lines(self, lines: Iterable[str]) -> None:
        """Below those that are there."""
        before = len(self.lines)
        self.lines += [line.expandtabs(4) for line in lines]
        if len(self.lines) > _MAX_LINES:
            self.set_lines(self.lines[-_MAX_LINES * 3 // 4 :])  # not a line at a time
            return
        self._wrapped_rows += self._wrap_lines(before)
        self._update_size()

    def _wrap_lines(self, first: int = 0) -> Iterator[tuple[int, int, int]]:
        width = self._width
        for number in range(first, len(self.lines)) if width > 0 else ():
            line = self.lines[number]
            if len(line) <= width and cell_len(line) <= width:
                yield number, 0, len(line)
                continue
            at = 0
            for piece in chop_cells(line, width):
                yield number, at, at + len(piece)
                at += len(piece)

    def _rewrap(self) -> None:
        self._width = self.size.width - 2
        self._wrapped_rows = list(self._wrap_lines())
        self._update_size()

    def _update_size(self) -> None:
        self._update_matches()
        self.virtual_size = Size(self.size.width, len(self._wrapped_rows))
        if self.following:
            self.follow_end()
        self.refresh()

    def follow_end(self) -> None:
        """To the end, and along with it."""
        self.following = True
        self.scroll_end(animate=False, immediate=True, x_axis=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value < old_value:
            self.following = False
        if new_value >= self.max_scroll_y:
            self.following = True

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width - 2 != self._width:
            self._rewrap()
        elif self.following:
            self.follow_end()

    # --- what is looked for ---------------------------------------------------------------

    def find_text(self, search_text: str) -> int:
        """Show the last line that holds this, whatever its case; how many do."""
        self._search_text, self._match_index = search_text, -1
        self._update_matches()
        self.go_to_match(-1)
        self.refresh()
        return len(self.matches)

    def _update_matches(self) -> None:
        here = self.matches[self._match_index] if 0 <= self._match_index < len(self.matches) else -1
        lower = self._search_text.lower()
        self.matches = [n for n, line in enumerate(self.lines) if lower in line.lower()]
        if not lower:
            self.matches = []
        self._match_index = self.matches.index(here) if here in self.matches else -1

    def go_to_match(self, by: int) -> int:
        """To the next place that was found, or the one before; which that is, from 1 on."""
        if not self.matches:
            return 0
        start = len(self.matches) if self._match_index < 0 and by < 0 else self._match_index
        self._match_index = (start + by) % len(self.matches)
        number = self.matches[self._match_index]
        row = next((y for y, (n, _, _) in enumerate(self._wrapped_rows) if n == number), 0)
        self.following = False
        middle = max(0, row - self.size.height // 2)
        self.scroll_to(y=middle, animate=False, immediate=True, force=True)
        self.refresh()
        return self._match_index + 1

    # --- how it is drawn ------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        row = y + round(self.scroll_y)
        plain = self.rich_style
        if row >= len(self._wrapped_rows):
            return Strip.blank(self.size.width, plain)
        number, start, end = self._wrapped_rows[row]
        segments = [Segment(" ", plain), *self._highlight_matches(number, start, end, plain)]
        return Strip(segments).adjust_cell_length(self.size.width, plain)

    def _highlight_matches(
        self, number: int, start: int, end: int, plain: Style
    ) -> Iterator[Segment]:
        """A piece of a line, with what is looked for marked."""
        line, at = self.lines[number], start
        here = (
            0 <= self._match_index < len(self.matches) and self.matches[self._match_index] == number
        )
        mark = self.get_component_rich_style(f"log-view--{'here' if here else 'found'}")
        for place in (
            re.finditer(re.escape(self._search_text), line, re.I) if self._search_text else ()
        ):
            left, right = max(start, place.start()), min(end, place.end())
            if left < right:
                yield Segment(line[at:left], plain)
                yield Segment(line[left:right], mark)
                at = right
        yield Segment(line[at:end], plain)
