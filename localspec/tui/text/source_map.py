"""Finds the source of drawn text: a copy is the source, a click is on its address.

Drawn text has the visible characters of its source in the same order, without marks of
Markdown, and with decoration between them: bullets, frames, the numbers of code blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

_MARKS = set("*_~`[]()#>|-+=.\\:\"'<")
_FENCES = ("```", "~~~")


class DrawnPlace(Struct, frozen=True, order=True):
    """A row, and a character within it."""

    row: int
    column: int


class SourceMap:
    """The source of some rows, and the position in it of each drawn character.

    The rows ` • a bold` and `   word` of the source `- a **bold** word` have the source
    positions 2 (a), 6 to 9 (bold) and 13 to 16 (word). A bullet has none.
    """

    def __init__(self, source: str, rows: Sequence[str], first_row: int = 0) -> None:
        self.source = source
        self.n_rows = len(rows)
        self.first_row = first_row
        # Both in ascending order, one for each drawn character of the source.
        self._places: list[DrawnPlace] = []
        self._positions: list[int] = []
        position = 0
        n_drawn = 0
        for number, row in enumerate(rows):
            for column, character in enumerate(row):
                if character.isspace():
                    continue
                found = self._find(character, position)
                if found >= 0:
                    self._places.append(DrawnPlace(number, column))
                    self._positions.append(found)
                    n_drawn += character.isalnum()
                    position = found + 1
        n_letters = sum(character.isalnum() for character in source)
        # Else it is drawn in another order, such as the cells of a table's row.
        self._is_complete = n_drawn == n_letters

    def _find(self, character: str, position: int) -> int:
        """The next place of a character, if nothing but marks is before it; else -1."""
        source = self.source
        while position < len(source):
            if source[position] == character:
                return position
            if not source[position].isspace() and source[position] not in _MARKS:
                return -1
            position += 1
        return -1

    def _index(self, place: DrawnPlace) -> int:
        """How many characters are drawn before a place."""
        own_place = DrawnPlace(place.row - self.first_row, place.column)
        return bisect_left(self._places, own_place)

    def position_at(self, place: DrawnPlace) -> int:
        """The source position of what is drawn at a place; -1 if it is not known."""
        index = self._index(place)
        own_place = DrawnPlace(place.row - self.first_row, place.column)
        if self._is_complete and own_place in self._places[index : index + 1]:
            return self._positions[index]
        return -1

    def cut(self, start: DrawnPlace | None, end: DrawnPlace | None) -> str:
        """The source of what is drawn from `start` up to `end`; None: without limit."""
        first_index = 0
        last_index = len(self._places)
        if start is not None:
            first_index = self._index(start)
        if end is not None:
            last_index = self._index(end)
        if first_index >= last_index:
            return ""
        is_all = first_index == 0 and last_index == len(self._places)
        is_code = self.source.startswith(_FENCES)
        if not self._is_complete or (start is None and end is None):
            return self.source
        if is_all and not is_code:
            return self.source
        first = 0
        if start is not None:
            first = self._positions[first_index]
            begins_row = (
                first_index == 0
                or self._places[first_index - 1].row < self._places[first_index].row
            )
            if begins_row:
                first = self._with_indent(first)
        return self.source[first : self._positions[last_index - 1] + 1]

    def _with_indent(self, position: int) -> int:
        """The beginning of the line, if only blanks are between it and the position."""
        start = position
        while start > 0 and self.source[start - 1] in " \t":
            start -= 1
        is_line_start = start == 0 or self.source[start - 1] == "\n"
        return start if is_line_start else position

    def moved(self, by: int) -> SourceMap:
        """The same, `by` rows further down."""
        self.first_row += by
        return self
