"""Words of tokens, wrapped to a width while they come."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_TAB = " " * 4


def fitted(text: str, width: int, more: str) -> str:
    """Exactly so many cells: a name in Chinese has half as many letters."""
    if cell_len(text) > width:
        text = set_cell_size(text, max(0, width - len(more))).rstrip() + more[:width]
    return set_cell_size(text, width)


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of a line, and the number of what it belongs to."""

    text: str
    owner: int


class Wrapped:
    """Lines of runs, at most `width` cells wide; a word may be made of many pieces.

    Text is only ever appended, so only the last line changes, or moves its last word on.
    """

    def __init__(self, width: int) -> None:
        self.width = max(1, width)
        self.lines: list[list[Run]] = [[]]
        self.starts: dict[int, int] = {}
        """The line where an owner's text begins."""
        self._filled = 0
        self._word = 0
        """Where the word in the making begins, in runs of the last line."""
        self._word_width = 0

    def append(self, text: str, owner: int) -> None:
        """Add text; characters must be clean, tabs become four spaces."""
        for part in _PARTS.findall(text.replace("\t", _TAB)):
            if part == "\n":
                self._note(owner)
                self._break()
            elif part.isspace():
                self._space(part, owner)
            else:
                self._letters(part, owner)
        if not text:
            self._note(owner)

    def _space(self, part: str, owner: int) -> None:
        room = self.width - self._filled
        self._put(part[:room], owner)  # the rest hangs over the edge, unseen
        self._word, self._word_width = len(self.lines[-1]), 0

    def _letters(self, part: str, owner: int) -> None:
        size = cell_len(part)
        if self._filled + size > self.width and self._word:
            self._carry()
        while self._filled + size > self.width:
            if self._filled >= self.width:
                self._break()
                continue
            fitting = _fitting(part, self.width - self._filled)
            if not fitting and self._filled == 0:
                fitting = part[0]  # wider than the whole line: it must stand somewhere
            self._put(fitting, owner)
            part = part[len(fitting) :]
            size = cell_len(part)
            if part:
                self._break()
        self._put(part, owner)
        self._word_width += size

    def _carry(self) -> None:
        """Move the word in the making to a line of its own."""
        word = self.lines[-1][self._word :]
        del self.lines[-1][self._word :]
        width = self._word_width
        self._break()
        for run in word:
            if self.starts.get(run.owner) == len(self.lines) - 2 and not self._stands(run.owner):
                self.starts[run.owner] = len(self.lines) - 1
        self.lines[-1] = word
        self._filled = self._word_width = width

    def _stands(self, owner: int) -> bool:
        """Whether an owner has text on the last line but one."""
        return any(run.owner == owner for run in self.lines[-2])

    def _put(self, text: str, owner: int) -> None:
        self._note(owner)
        if text:
            self.lines[-1].append(Run(text, owner))
            self._filled += cell_len(text)

    def _note(self, owner: int) -> None:
        self.starts.setdefault(owner, len(self.lines) - 1)

    def _break(self) -> None:
        self.lines.append([])
        self._filled = self._word = self._word_width = 0


def _fitting(text: str, cells: int) -> str:
    """The longest beginning that is at most so many cells wide."""
    if text.isascii():
        return text[:cells]
    end = len(set_cell_size(text, cells).rstrip(" ")) if cells else 0
    return text[:end]
