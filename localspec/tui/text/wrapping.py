"""Word wrapping, of whole texts and of streamed text."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from textwrap import wrap

from msgspec import Struct
from rich.cells import cell_len, set_cell_size

from localspec.sanitize import sanitize
from localspec.tui.text.source_map import SourceMap

_PIECE_PATTERN = re.compile(r"\n|[^\S\n]+|\S+")
_TAB = " " * 4
_MAX_WORD_PIECE = 256
"""A word that is longer is wrapped in pieces: Chinese has no blanks between words."""
_MAX_SHOWN_CHARACTERS = 200_000
"""Of a longer text a part is shown, so that a frame costs no more than so many."""
_MAX_SHOWN_LINES = 20_000
_SLICE_CHARACTERS = 50_000
_MAX_LINE_CHARACTERS = 2_000  # Of what is shown in one line, or wrapped from one.
_MAX_MEASURED = 512  # Characters of a line whose cells are counted.


def fit_to_width(text: str, width: int) -> str:
    """Cuts or pads text to exactly `width` terminal cells; a wide character takes two."""
    text = text[:_MAX_LINE_CHARACTERS]
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - 1)).rstrip() + "…"[:width]
    return set_cell_size(text, width)


def wrap_words(text: str, width: int) -> list[str]:
    """Sanitized lines, at least one.

    They do not break at hyphens, so that commands stay whole.
    """
    text = one_line(text)
    return wrap(text, max(10, width), break_on_hyphens=False) or [""]


def one_line(text: str) -> str:
    """Sanitized text for one line of the screen; what could not be read is cut off.

    For all that others decide: names, titles, paths, messages of errors.
    """
    if len(text) > _MAX_LINE_CHARACTERS:
        text = f"{text[:_MAX_LINE_CHARACTERS]} …"
    return sanitize(text, multiline=False)


def slice_text(text: str) -> Iterator[str]:
    """A text in pieces, for a thread that works on it: no key is read within a piece.

    A piece ends with a line, where it can: control sequences do not go on beyond it.
    """
    start = 0
    while start < len(text):
        end = start + _SLICE_CHARACTERS
        if end < len(text):
            last_line_feed = text.rfind("\n", start, end)
            if last_line_feed >= 0:
                end = last_line_feed + 1
        yield text[start:end]
        start = end


def shorten(text: str, *, keep_end: bool = False) -> tuple[str, int]:
    """The part of a very long text that is shown, and how many characters are not."""
    shown = text
    if len(shown) > _MAX_SHOWN_CHARACTERS:
        if keep_end:
            shown = shown[-_MAX_SHOWN_CHARACTERS:]
        else:
            shown = shown[:_MAX_SHOWN_CHARACTERS]
    if shown.count("\n") > _MAX_SHOWN_LINES:
        lines = shown.split("\n")
        if keep_end:
            shown = "\n".join(lines[-_MAX_SHOWN_LINES:])
        else:
            shown = "\n".join(lines[:_MAX_SHOWN_LINES])
    return shown, len(text) - len(shown)


class CharacterRows:
    """The rows of a text that is too long to be wrapped by words.

    Lines are cut after so many characters as fit in any case: `width` of ASCII, half as
    many of other scripts, whose characters may be two cells wide.
    """

    def __init__(self, text: str, width: int) -> None:
        self.rows: list[str] = []
        self._lines = text.split("\n")
        self._tops: list[int] = []  # The first row of each line.
        for line in self._lines:
            self._tops.append(len(self.rows))
            drawn = line.expandtabs(len(_TAB)) if "\t" in line else line
            n_characters = width
            if not drawn.isascii():
                n_characters = width // 2
            n_characters = max(1, n_characters)
            is_whole = len(drawn) <= n_characters
            if not is_whole and len(drawn) <= _MAX_MEASURED:
                is_whole = cell_len(drawn) <= width
            if is_whole:
                self.rows.append(drawn)
                continue
            for start in range(0, len(drawn), n_characters):
                self.rows.append(drawn[start : start + n_characters])

    def source_map(self, y: int) -> SourceMap:
        """Of the line that has row `y`; of a very long line, of this row only."""
        number = bisect_right(self._tops, y) - 1
        line = self._lines[number]
        first = self._tops[number]
        if len(line) > _MAX_SHOWN_LINES:
            return SourceMap(self.rows[y], [self.rows[y]], y)
        end = len(self.rows)
        if number + 1 < len(self._tops):
            end = self._tops[number + 1]
        return SourceMap(line, self.rows[first:end], first)


class TextRun(Struct, frozen=True):
    """A piece of a line, and the number of its owner (a token)."""

    text: str
    owner: int


class WrappedText:
    """Lines of at most `width` cells; one word may consist of several runs.

    Text is only appended, so only the last line changes; its last word may move to a
    new line.
    """

    def __init__(self, width: int) -> None:
        self.width = max(1, width)
        self.lines: list[list[TextRun]] = [[]]
        # The line where each owner's text begins.
        self.start_lines: dict[int, int] = {}
        self._line_width = 0
        self._word_start = 0  # Index of the current word's first run in the last line.
        self._word_width = 0

    @property
    def rows(self) -> list[str]:
        return ["".join(run.text for run in line) for line in self.lines]

    def append(self, text: str, owner: int) -> None:
        """Appends sanitized text; tabs become four spaces."""
        for part in _PIECE_PATTERN.findall(text.replace("\t", _TAB)):
            if part == "\n":
                self._record_start(owner)
                self._start_line()
            elif part.isspace():
                available = self.width - self._line_width
                # Spaces beyond the edge are dropped.
                self._append_run(part[:available], owner)
                self._word_start = len(self.lines[-1])
                self._word_width = 0
            else:
                for start in range(0, len(part), _MAX_WORD_PIECE):
                    self._append_letters(part[start : start + _MAX_WORD_PIECE], owner)
        if not text:
            self._record_start(owner)

    def _append_letters(self, part: str, owner: int) -> None:
        size = cell_len(part)
        if self._line_width + size > self.width and self._word_start:
            self._carry_word_over()
        while self._line_width + size > self.width:
            if self._line_width >= self.width:
                self._start_line()
                continue
            fitting = _longest_prefix(part, self.width - self._line_width)
            if not fitting and self._line_width == 0:
                fitting = part[0]  # wider than a line: it is drawn anyway
            self._append_run(fitting, owner)
            part = part[len(fitting) :]
            size = cell_len(part)
            if part:
                self._start_line()
        self._append_run(part, owner)
        self._word_width += size

    def _carry_word_over(self) -> None:
        """Moves the current word, which does not fit, to a new line.

        Owners whose text began with the word now begin on the new line.
        """
        line = self.lines[-1]
        word = line[self._word_start :]
        width = self._word_width
        del line[self._word_start :]
        line_number = len(self.lines) - 1
        owners_before = {run.owner for run in line}
        self._start_line()
        for run in word:
            began_here = self.start_lines.get(run.owner) == line_number
            if began_here and run.owner not in owners_before:
                self.start_lines[run.owner] = line_number + 1
        self.lines[-1] = word
        self._line_width = width
        self._word_width = width

    def _append_run(self, text: str, owner: int) -> None:
        self._record_start(owner)
        if text:
            self.lines[-1].append(TextRun(text, owner))
            self._line_width += cell_len(text)

    def _record_start(self, owner: int) -> None:
        self.start_lines.setdefault(owner, len(self.lines) - 1)

    def _start_line(self) -> None:
        self.lines.append([])
        self._line_width = 0
        self._word_start = 0
        self._word_width = 0


def _longest_prefix(text: str, cells: int) -> str:
    if text.isascii():
        return text[:cells]
    if not cells:
        return ""
    end = len(set_cell_size(text, cells).rstrip(" "))
    return text[:end]
