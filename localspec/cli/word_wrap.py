"""Text in lines no wider than the terminal, broken between words.

`wrap` breaks a text that is complete. `WordWriter` writes one that is still being
generated, and never redraws: a word is written when it ends, because only then it is
known whether it fits. For example, at a width of 8 the tokens `one t`, `wo thr`, `ee`
are written as `one`, ` two` and, at the end, a new line and `three`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from localspec.report.lines import cell_width

_PIECE = re.compile(r"\n|[^\S\n\xa0]+|(?:[^\s]|\xa0)+")
_RESET = "\x1b[0m"
_TAB = " " * 4


class StyledText(NamedTuple):
    text: str
    codes: str = ""  # ANSI codes that turn the style on; empty for none.

    def render(self) -> str:
        return f"{self.codes}{self.text}{_RESET}" if self.codes else self.text


StyledLine = tuple[StyledText, ...]


def render_line(line: StyledLine) -> str:
    return "".join(part.render() for part in line)


def wrap(
    parts: Iterable[StyledText], width: int, *, indent: StyledLine = ()
) -> list[StyledLine]:
    """Break text into lines of at most `width` cells; later lines begin with `indent`.

    Blanks where a line is broken are dropped, as are those at the end of a line.
    """
    lines: list[StyledLine] = []
    writer = WordWriter(lambda: width, lines.append, indent)
    for part in parts:
        writer.write(part)
    writer.end()
    return lines


class WordWriter:
    """Breaks text that arrives in parts, and calls `write_line` for each line."""

    def __init__(
        self,
        width: Callable[[], int],
        write_line: Callable[[StyledLine], object],
        indent: StyledLine = (),
        write_part: Callable[[str], object] | None = None,
    ) -> None:
        """`write_part` receives words at once; then lines are reported empty."""
        self._width = width
        self._write_line = write_line
        self._write_part = write_part
        self._indent = indent
        self._indent_width = sum(cell_width(part.text) for part in indent)
        self._indent_cells = 0  # Of the line that is written.
        self._line: list[StyledText] = []
        self._column = 0
        self._is_begun = False  # A line may have text and no cells.
        self._line_width = width()
        self._blanks = ""  # Written only if a word follows on the line.
        self._blank_codes = ""
        self._word: list[StyledText] = []
        self._word_cells = 0
        self._is_long_word = False  # The word was wider than a line, and is cut.

    @property
    def is_at_line_start(self) -> bool:
        return not self._is_begun and not self._word and not self._blanks

    def write(self, part: StyledText) -> None:
        for match in _PIECE.finditer(part.text.replace("\t", _TAB)):
            piece = match[0]
            if piece == "\n":
                self._end_word()
                self._blanks = ""
                self._break_line(indent=())
            elif piece[0].isspace() and piece[0] != "\xa0":
                self._end_word()
                self._blanks += piece
                self._blank_codes = part.codes
            else:
                for text in _split_at_wide(piece):
                    self._add_to_word(StyledText(text, part.codes))

    def end(self) -> None:
        """Write all that is left, and end the line if there is one."""
        self._end_word()
        self._blanks = ""
        if self._is_begun:
            self._break_line(indent=())

    def _add_to_word(self, part: StyledText) -> None:
        cells = cell_width(part.text)
        is_wide = not part.text.isascii() and cells > 1 and len(part.text) == 1
        if is_wide and part.text not in _NEVER_FIRST:  # a line may be broken before it
            self._end_word()
        self._word.append(part)
        self._word_cells += cells
        indent_cells = self._indent_width if self._can_indent() else 0
        if self._is_long_word or self._word_cells > self._line_width - indent_cells:
            self._write_long_word()

    def _write_long_word(self) -> None:
        """Write the beginning of a word wider than a line, cut where lines end."""
        if not self._is_long_word:
            self._is_long_word = True
            self._place_blanks(self._line_width)
        parts = self._word
        self._word = []
        self._word_cells = 0
        for part in parts:
            for character in part.text:
                cells = cell_width(character)
                has_text = self._column > self._indent_cells
                if has_text and self._column + cells > self._line_width:
                    self._break_line(self._indent)
                self._put(StyledText(character, part.codes), cells)

    def _end_word(self) -> None:
        self._is_long_word = False
        if self._word:
            word = self._word
            cells = self._word_cells
            self._word = []
            self._word_cells = 0
            self._place_blanks(cells)
            for part in word:
                self._put(part, cell_width(part.text))

    def _place_blanks(self, word_cells: int) -> None:
        """Write the blanks before a word, or break the line instead."""
        blanks = self._blanks
        self._blanks = ""
        is_indent = self._column == 0
        needed = self._column + len(blanks) + word_cells
        if is_indent:
            # Indentation stays where there is room for it.
            room = min(self._line_width // 2, self._line_width - word_cells)
            blanks = blanks[: max(0, room)]
        elif needed > self._line_width:
            self._break_line(self._indent)
            return
        if blanks:
            self._put(StyledText(blanks, self._blank_codes), len(blanks))

    def _put(self, part: StyledText, cells: int) -> None:
        self._column += cells
        self._is_begun = True
        if self._write_part is not None:
            self._write_part(part.render())
        elif self._line and self._line[-1].codes == part.codes:
            self._line[-1] = StyledText(self._line[-1].text + part.text, part.codes)
        else:
            self._line.append(part)

    def _break_line(self, indent: StyledLine) -> None:
        self._write_line(tuple(self._line))
        self._line = []
        self._column = 0
        self._is_begun = False
        self._line_width = self._width()
        if self._can_indent():
            for part in indent:
                self._put(part, cell_width(part.text))
        self._indent_cells = self._column

    def _can_indent(self) -> bool:
        """Half of a line is for its text, and a wide character at least."""
        n_left = self._line_width - self._indent_width
        return n_left >= max(self._indent_width, 2)


_NEVER_FIRST = set("、。，．：；？！）」』】》〉〕…ー々")
"""Punctuation of Chinese and Japanese that ends a line rather than begins one."""


def _split_at_wide(word: str) -> Iterator[str]:
    """A word in parts: runs of narrow characters, and each wide character by itself."""
    if word.isascii():
        yield word
        return
    narrow = ""
    for character in word:
        if cell_width(character) > 1:
            if narrow:
                yield narrow
            narrow = ""
            yield character
        else:
            narrow += character
    if narrow:
        yield narrow
