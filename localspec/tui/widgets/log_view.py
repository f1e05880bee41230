"""A scrolling log view that renders only visible lines and follows the end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.strip import Strip

from localspec.tui.widgets.text_view import FollowingView

_MAX_LINES = 20_000  # Older lines are dropped.


class LogView(FollowingView, can_focus=True):
    """Lines of sanitized text, wrapped at the edge."""

    COMPONENT_CLASSES = {"log-view--found", "log-view--here"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._wrapped_rows: list[tuple[int, int, int]] = []
        """For each row on the screen: index of the line, start and end within it."""
        self._width = 0
        self._search_text = ""
        # Indices of the lines that contain the search text.
        self.matches: list[int] = []
        self._match_index = -1  # Index into `matches` of the current match; -1: none.

    def set_lines(self, lines: Iterable[str]) -> None:
        self.lines = [line.expandtabs(4) for line in lines][-_MAX_LINES:]
        self._rewrap()

    def append_lines(self, lines: Iterable[str]) -> None:
        before = len(self.lines)
        self.lines += [line.expandtabs(4) for line in lines]
        if len(self.lines) > _MAX_LINES:  # in large steps: all lines are wrapped again
            self.set_lines(self.lines[-_MAX_LINES * 3 // 4 :])
            return
        self._wrapped_rows += self._wrap_lines(before)
        self._update_size()

    def _wrap_lines(self, first: int = 0) -> Iterator[tuple[int, int, int]]:
        """The rows of the lines from the index `first` on."""
        width = self._width
        if width <= 0:
            return
        for number, line in enumerate(self.lines[first:], first):
            pieces = [line]
            if len(line) > width or cell_len(line) > width:
                pieces = chop_cells(line, width)
            start = 0
            for piece in pieces:
                yield number, start, start + len(piece)
                start += len(piece)

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

    def on_resize(self, event: events.Resize) -> None:
        if event.size.width - 2 != self._width:
            self._rewrap()
        elif self.following:
            self.follow_end()

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
            for number, line in enumerate(self.lines):
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
        for row, (number, _, _) in enumerate(self._wrapped_rows):
            if number == line_number:
                return row
        return 0

    def render_line(self, y: int) -> Strip:
        row = y + round(self.scroll_y)
        plain = self.rich_style
        if row >= len(self._wrapped_rows):
            return Strip.blank(self.size.width, plain)
        number, start, end = self._wrapped_rows[row]
        segments = [
            Segment(" ", plain),
            *self._highlight_matches(number, start, end, plain),
        ]
        return Strip(segments).adjust_cell_length(self.size.width, plain)

    def _highlight_matches(
        self, number: int, start: int, end: int, plain: Style
    ) -> Iterator[Segment]:
        line = self.lines[number]
        position = start
        suffix = "here" if self._current_match_line() == number else "found"
        highlight = self.get_component_rich_style(f"log-view--{suffix}")
        pattern = re.escape(self._search_text) or r"\Z"
        for match in re.finditer(pattern, line, re.I):
            left = max(start, match.start())
            right = min(end, match.end())
            if left < right:
                yield Segment(line[position:left], plain)
                yield Segment(line[left:right], highlight)
                position = right
        yield Segment(line[position:end], plain)
