"""A scrolling log view that renders only visible lines and follows the end."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from msgspec import Struct
from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Size
from textual.selection import Selection
from textual.strip import Strip

from localspec.tui.widgets.text_view import FollowingView

_MAX_LINES = 20_000  # Older lines are dropped.
_KEPT_LINES = (
    15_000  # Of more: all lines are wrapped again then, so it is a large step.
)
_MAX_MEASURED = 2_000  # Characters of a line whose cells are counted.
_TAB_WIDTH = 4
_MARGIN = 1  # Cells at the left and right.


class LogRow(Struct, frozen=True):
    """A row of the screen: the part of a drawn line from `start` to `end`."""

    line: int
    start: int
    end: int


class LogPlace(Struct, frozen=True):
    """A character of a drawn line."""

    line: int
    column: int


class LogView(FollowingView, can_focus=True):
    """Lines of sanitized text, wrapped at the edge."""

    COMPONENT_CLASSES = {"log-view--found", "log-view--here"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._drawn_lines: list[str] = []  # Their tabs are blanks.
        self._rows: list[LogRow] = []
        self._width = 0
        self._search_text = ""
        # Indices of the lines that contain the search text.
        self.matches: list[int] = []
        self._match_index = -1  # Index into `matches` of the current match; -1: none.

    # --- lines
    # ----------------------------------------------------------------------------

    def set_lines(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)[-_MAX_LINES:]
        self._drawn_lines = [line.expandtabs(_TAB_WIDTH) for line in self.lines]
        self._rewrap()

    def append_lines(self, lines: Iterable[str]) -> None:
        n_before = len(self.lines)
        self.lines += lines
        if len(self.lines) > _MAX_LINES:
            self.set_lines(self.lines[-_KEPT_LINES:])
            return
        added = self.lines[n_before:]
        self._drawn_lines += [line.expandtabs(_TAB_WIDTH) for line in added]
        self._rows += self._wrap_lines(n_before)
        self._update_size()

    def _wrap_lines(self, first: int = 0) -> Iterator[LogRow]:
        """The rows of the lines from the index `first` on."""
        if self._width <= 0:
            return
        for number, line in enumerate(self._drawn_lines[first:], first):
            start = 0
            for length in _row_lengths(line, self._width):
                yield LogRow(number, start, start + length)
                start += length

    def _rewrap(self) -> None:
        self._width = self.size.width - 2 * _MARGIN
        self._rows = list(self._wrap_lines())
        self._update_size()

    def _update_size(self) -> None:
        self._update_matches()
        self.virtual_size = Size(self.size.width, len(self._rows))
        if self.following:
            self.follow_end()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width - 2 * _MARGIN != self._width:
            self._rewrap()
        elif self.following:
            self.follow_end()

    # --- search
    # ----------------------------------------------------------------------------

    def find_text(self, search_text: str) -> int:
        """Shows the last line that matches, ignoring case.

        Returns the number of lines that match.
        """
        self._search_text = search_text
        self._match_index = -1
        self._update_matches()
        self.go_to_match(-1)
        self.refresh()
        return len(self.matches)

    def _update_matches(self) -> None:
        if not self._search_text and not self.matches:
            return  # a streamed log must not be searched at each line
        current = self._current_match_line()
        self.matches = []
        searched = self._search_text.lower()
        if searched:
            for number, line in enumerate(self._drawn_lines):
                if searched in line.lower():
                    self.matches.append(number)
        self._match_index = -1
        if current in self.matches:
            self._match_index = self.matches.index(current)

    def _current_match_line(self) -> int:
        """Index of the line with the current match; -1: none."""
        if not 0 <= self._match_index < len(self.matches):
            return -1
        return self.matches[self._match_index]

    def go_to_match(self, by: int) -> int:
        """Moves by `by` matches, wrapping around.

        Returns the number of the match, from 1; 0: there is none.
        """
        if not self.matches:
            return 0
        start = self._match_index
        if start < 0 and by < 0:
            start = len(self.matches)
        self._match_index = (start + by) % len(self.matches)
        row = self._first_row_of(self.matches[self._match_index])
        self.following = False
        middle = max(0, row - self.size.height // 2)
        self.scroll_to(y=middle, animate=False, immediate=True, force=True)
        self.refresh()
        return self._match_index + 1

    def _first_row_of(self, line_number: int) -> int:
        row = bisect_left(self._rows, line_number, key=lambda row: row.line)
        return row if row < len(self._rows) else 0

    # --- drawing
    # ----------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        number = y + round(self.scroll_y)
        plain = self.rich_style
        if number >= len(self._rows):
            return Strip.blank(self.size.width, plain)
        segments = [Segment(" " * _MARGIN, plain)]
        segments += self._highlight_matches(self._rows[number], plain)
        strip = Strip(segments).adjust_cell_length(self.size.width, plain)
        return self.mark_selection(strip, number)

    def _highlight_matches(self, row: LogRow, plain: Style) -> Iterator[Segment]:
        """The row in pieces; a match may begin or end in another row of its line."""
        line = self._drawn_lines[row.line]
        position = row.start
        suffix = "here" if self._current_match_line() == row.line else "found"
        highlight = self.get_component_rich_style(f"log-view--{suffix}")
        pattern = re.escape(self._search_text) or r"\Z"
        for match in re.finditer(pattern, line, re.I):
            left = max(row.start, match.start())
            right = min(row.end, match.end())
            if left < right:
                yield Segment(line[position:left], plain)
                yield Segment(line[left:right], highlight)
                position = right
        yield Segment(line[position : row.end], plain)

    # --- copying
    # ----------------------------------------------------------------------------

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The marked part of the lines as they are in the log: whole, and with tabs."""
        if not self._rows:
            return None
        start = self._place_at(selection.start or Offset(0, 0))
        end = self._place_at(selection.end or Offset(0, len(self._rows)))
        first_column = self._source_column(start)
        last_column = self._source_column(end)
        if start.line == end.line:
            return self.lines[start.line][first_column:last_column], "\n"
        lines = [
            self.lines[start.line][first_column:],
            *self.lines[start.line + 1 : end.line],
            self.lines[end.line][:last_column],
        ]
        return "\n".join(lines), "\n"

    def _place_at(self, offset: Offset) -> LogPlace:
        if offset.y >= len(self._rows):
            last = len(self.lines) - 1
            return LogPlace(last, len(self._drawn_lines[last]))
        row = self._rows[max(0, offset.y)]
        column = row.start + max(0, offset.x - _MARGIN)
        return LogPlace(row.line, min(row.end, column))

    def _source_column(self, place: LogPlace) -> int:
        """The character of the line that is drawn at a place.

        In `a<tab>b`, drawn as `a   b`, `b` is drawn at 4 and is the character 2.
        """
        line = self.lines[place.line]
        if "\t" not in line:
            return place.column
        for column in range(len(line)):
            if len(line[: column + 1].expandtabs(_TAB_WIDTH)) > place.column:
                return column
        return len(line)


def _row_lengths(line: str, width: int) -> Iterator[int]:
    """How many characters of a line are in each of its rows."""
    if len(line) > _MAX_MEASURED:
        # As many as fit in any case: a character has at most two cells.
        step = width if line.isascii() else max(1, width // 2)
        for start in range(0, len(line), step):
            yield min(step, len(line) - start)
    elif len(line) <= width and cell_len(line) <= width:
        yield len(line)
    else:
        yield from map(len, chop_cells(line, width))
