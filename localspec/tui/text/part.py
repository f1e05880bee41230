"""A piece of text that knows its lines at a width; several make one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from rich.segment import Segment
from rich.style import Style

from localspec.tui.text.wrapping import Wrapped

Styles = Mapping[str, Style]
"""By the names of the widget's component classes: `muted`, `role`, `accepted`, …"""


class Part(Protocol):
    """Drawn line by line, and only those that are visible."""

    def height(self, width: int) -> int:
        """Lines at this width; what `line` shows from now on is of this width."""
        ...

    def line(self, y: int, styles: Styles) -> Sequence[Segment]: ...


class Words:
    """Clean text in one style, wrapped."""

    def __init__(self, text: str = "", style: str = "text", before: str = "") -> None:
        self._text = text
        self._style = style
        self._before = before
        """In front of every line: a bar, or room."""
        self._wrapped: Wrapped | None = None
        self._width = 0

    def say(self, text: str) -> None:
        """Another text."""
        self._text = text
        self._wrapped = None

    def height(self, width: int) -> int:
        if not self._text:
            return 0
        if self._wrapped is None or self._width != width:
            self._width = width
            self._wrapped = Wrapped(width - len(self._before))
            self._wrapped.append(self._text, 0)
        return len(self._wrapped.lines)

    def line(self, y: int, styles: Styles) -> Sequence[Segment]:
        assert self._wrapped is not None, "asked before its height"
        text = "".join(run.text for run in self._wrapped.lines[y])
        before = [Segment(self._before, styles["error"])] if self._before else []
        return [*before, Segment(text, styles[self._style])]


class Hints:
    """Keys and what they do, muted; a line ends between two of them, never within one."""

    def __init__(self, hints: Sequence[str], before: str = "") -> None:
        self._hints = hints
        self._before = before
        self._lines: list[str] = []

    def height(self, width: int) -> int:
        room = width - len(self._before)
        self._lines = []
        for hint in self._hints:
            if self._lines and len(self._lines[-1]) + 3 + len(hint) <= room:
                self._lines[-1] += f"   {hint}"
            else:
                self._lines.append(hint)
        return len(self._lines)

    def line(self, y: int, styles: Styles) -> Sequence[Segment]:
        return [Segment(self._before, styles["error"]), Segment(self._lines[y], styles["muted"])]


class Gap:
    """An empty line."""

    def height(self, width: int) -> int:
        return 1

    def line(self, y: int, styles: Styles) -> Sequence[Segment]:
        return []


class Stack:
    """Parts below one another."""

    def __init__(self, parts: Sequence[Part] = ()) -> None:
        self.parts: list[Part] = list(parts)
        self._tops: list[int] = [0]

    def height(self, width: int) -> int:
        self._tops = list(accumulate((p.height(width) for p in self.parts), initial=0))
        return self._tops[-1]

    def line(self, y: int, styles: Styles) -> Sequence[Segment]:
        number = bisect_right(self._tops, y) - 1
        if not 0 <= number < len(self.parts):
            return []
        return self.parts[number].line(y - self._tops[number], styles)

    def top(self, part: Part) -> int:
        """The line where a part begins, as of the last `height`."""
        return self._tops[self.parts.index(part)]
