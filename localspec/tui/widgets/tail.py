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

_MOST = 20_000
"""Lines that are kept."""


class Tail(ScrollView, can_focus=True):
    """Lines of plain, cleaned text, wrapped at the edge."""

    COMPONENT_CLASSES = {"tail--found", "tail--here"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.following = True
        """Whether the end is shown, whatever is added."""
        self._rows: list[tuple[int, int, int]] = []
        """Number of the line, and from where to where."""
        self._width = 0
        self._wanted = ""
        self.found: list[int] = []
        """Numbers of the lines in which it is."""
        self._here = -1
        """The place among them where one stands."""

    # --- what there is --------------------------------------------------------------------

    def put(self, lines: Iterable[str]) -> None:
        """These and no others."""
        self.lines = [line.expandtabs(4) for line in lines][-_MOST:]
        self._rewrap()

    def add(self, lines: Iterable[str]) -> None:
        """Below those that are there."""
        before = len(self.lines)
        self.lines += [line.expandtabs(4) for line in lines]
        if len(self.lines) > _MOST:
            self.put(self.lines[-_MOST * 3 // 4 :])  # not a line at a time
            return
        self._rows += self._wrapped(before)
        self._changed()

    def _wrapped(self, first: int = 0) -> Iterator[tuple[int, int, int]]:
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
        self._rows = list(self._wrapped())
        self._changed()

    def _changed(self) -> None:
        self._look()
        self.virtual_size = Size(self.size.width, len(self._rows))
        if self.following:
            self.follow()
        self.refresh()

    def follow(self) -> None:
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
            self.follow()

    # --- what is looked for ---------------------------------------------------------------

    def find(self, wanted: str) -> int:
        """Show the last line that holds this, whatever its case; how many do."""
        self._wanted, self._here = wanted, -1
        self._look()
        self.leap(-1)
        self.refresh()
        return len(self.found)

    def _look(self) -> None:
        here = self.found[self._here] if 0 <= self._here < len(self.found) else -1
        lower = self._wanted.lower()
        self.found = [n for n, line in enumerate(self.lines) if lower in line.lower()]
        if not lower:
            self.found = []
        self._here = self.found.index(here) if here in self.found else -1

    def leap(self, by: int) -> int:
        """To the next place that was found, or the one before; which that is, from 1 on."""
        if not self.found:
            return 0
        start = len(self.found) if self._here < 0 and by < 0 else self._here
        self._here = (start + by) % len(self.found)
        number = self.found[self._here]
        row = next((y for y, (n, _, _) in enumerate(self._rows) if n == number), 0)
        self.following = False
        middle = max(0, row - self.size.height // 2)
        self.scroll_to(y=middle, animate=False, immediate=True, force=True)
        self.refresh()
        return self._here + 1

    # --- how it is drawn ------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        row = y + round(self.scroll_y)
        plain = self.rich_style
        if row >= len(self._rows):
            return Strip.blank(self.size.width, plain)
        number, start, end = self._rows[row]
        segments = [Segment(" ", plain), *self._drawn(number, start, end, plain)]
        return Strip(segments).adjust_cell_length(self.size.width, plain)

    def _drawn(self, number: int, start: int, end: int, plain: Style) -> Iterator[Segment]:
        """A piece of a line, with what is looked for marked."""
        line, at = self.lines[number], start
        here = 0 <= self._here < len(self.found) and self.found[self._here] == number
        mark = self.get_component_rich_style(f"tail--{'here' if here else 'found'}")
        for place in re.finditer(re.escape(self._wanted), line, re.I) if self._wanted else ():
            left, right = max(start, place.start()), min(end, place.end())
            if left < right:
                yield Segment(line[at:left], plain)
                yield Segment(line[left:right], mark)
                at = right
        yield Segment(line[at:end], plain)
