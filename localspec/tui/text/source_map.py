"""Finds the source of drawn text: a copy is the source, a click is on its address.

Drawn text has the visible characters of its source in the same order, without marks of
Markdown, and with decoration between them: bullets, frames, the numbers of code blocks.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

_MARKS = set("*_~`[]()#>|-+=.\\:\"'<")
_FENCES = ("```", "~~~")
_WORD = re.compile(r"\S+")


class DrawnPlace(Struct, frozen=True, order=True):
    """A row, and a character within it."""

    row: int
    column: int


class DrawnRun(Struct, frozen=True):
    """Characters that are side by side, both as drawn and in the source."""

    row: int
    column: int
    position: int  # In the source.
    length: int


def find_runs(source: str, rows: Sequence[str]) -> tuple[list[DrawnRun], bool]:
    """Where the drawn characters are in their source, in order.

    Also returns whether each letter of the source was found. Else it is drawn in another
    order, such as the cells of a table's row.

    The rows ` • a bold` and `   word` of the source `- a **bold** word` have the runs
    `a` at 2, `bold` at 6 and `word` at 13.
    """
    runs: list[DrawnRun] = []
    n_drawn = 0
    position = 0
    for number, row in enumerate(rows):
        for word in _WORD.finditer(row):
            text = word[0]
            found = _find(source, text[0], position)
            if found >= 0 and source.startswith(text, found):
                runs.append(DrawnRun(number, word.start(), found, len(text)))
                n_drawn += _count_letters(text)
                position = found + len(text)
                continue
            # The source has marks within the word, or the drawing has decoration.
            for column, character in enumerate(text, word.start()):
                found = _find(source, character, position)
                if found >= 0:
                    runs.append(DrawnRun(number, column, found, 1))
                    n_drawn += character.isalnum()
                    position = found + 1
    return runs, n_drawn == _count_letters(source)


def _find(source: str, character: str, position: int) -> int:
    """The next place of a character, if nothing but marks is before it; else -1."""
    while position < len(source):
        if source[position] == character:
            return position
        if not source[position].isspace() and source[position] not in _MARKS:
            return -1
        position += 1
    return -1


def _count_letters(text: str) -> int:
    if text.isalnum():
        return len(text)
    return sum(map(str.isalnum, text))


class SourceMap:
    """The source of some rows, and the position in it of each drawn character.

    The rows ` • a bold` and `   word` of the source `- a **bold** word` have the source
    positions 2 (a), 6 to 9 (bold) and 13 to 16 (word). A bullet has none.
    """

    def __init__(
        self,
        source: str,
        rows: Sequence[str],
        first_row: int = 0,
        inserted: Sequence[range] = (),
    ) -> None:
        """`inserted`: parts of `source`, in order, that are drawn but are not copied."""
        self.n_rows = len(rows)
        self.first_row = first_row
        # Both in ascending order, one for each drawn character of the source.
        self._places: list[DrawnPlace] = []
        self._positions: list[int] = []
        runs, self._is_complete = find_runs(source, rows)
        for run in runs:
            for index in range(run.length):
                position = run.position + index
                if any(position in part for part in inserted):
                    continue
                position -= sum(len(part) for part in inserted if part.stop <= position)
                self._places.append(DrawnPlace(run.row, run.column + index))
                self._positions.append(position)
        for part in reversed(inserted):
            source = source[: part.start] + source[part.stop :]
        self.source = source

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
