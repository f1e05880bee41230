"""Text blocks: wrap themselves to a width and render single lines."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from rich.segment import Segment
from rich.style import Style

from localspec.protocol.events import Token, TokenClass
from localspec.report.lines import plain_text
from localspec.report.token_classes import TOKEN_CLASSES, mark_token
from localspec.sanitize import sanitize
from localspec.tui.text.source_map import SourceMap
from localspec.tui.text.wrapping import WrappedText

StyleMap = Mapping[str, Style]
"""Styles by the names of the widget's component classes: `muted`, `role`, …"""


class TextBlock(Protocol):
    """Rendered line by line, so that only visible lines cost time."""

    def height(self, width: int) -> int:
        """Number of lines at this width; `line` renders at the width of the last call."""

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]: ...

    def source_map(self, y: int) -> SourceMap:
        """Of line `y` and those that belong to it, at the width of the last `height`."""


class Paragraph:
    """Wrapped text in one style; the text must be sanitized."""

    def __init__(
        self, text: str = "", style: str = "text", line_prefix: str = ""
    ) -> None:
        self._text = text
        self._style = style
        self._line_prefix = line_prefix
        self._wrapped: WrappedText | None = None
        self._width = 0

    def set_text(self, text: str) -> None:
        self._text = text
        self._wrapped = None

    def source_map(self, y: int) -> SourceMap:
        assert self._wrapped is not None, "call height() first"
        rows = [f"{self._line_prefix}{row}" for row in self._wrapped.rows]
        return SourceMap(self._text, rows)

    def height(self, width: int) -> int:
        if not self._text:
            return 0
        if self._wrapped is None or self._width != width:
            self._width = width
            self._wrapped = WrappedText(width - len(self._line_prefix))
            self._wrapped.append(self._text, 0)
        return len(self._wrapped.lines)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._wrapped is not None, "call height() first"
        text = "".join(run.text for run in self._wrapped.lines[y])
        segments = [Segment(text, styles[self._style])]
        if self._line_prefix:
            segments.insert(0, Segment(self._line_prefix, styles["error"]))
        return segments


class KeyHints:
    """Key hints, muted; lines break between two hints, never within one."""

    def __init__(self, hints: Sequence[str], line_prefix: str = "") -> None:
        self._hints = hints
        self._line_prefix = line_prefix
        self._lines: list[str] = []

    def source_map(self, y: int) -> SourceMap:
        rows = [f"{self._line_prefix}{line}" for line in self._lines]
        return SourceMap("\n".join(self._lines), rows)

    def height(self, width: int) -> int:
        available = width - len(self._line_prefix)
        self._lines = []
        for hint in self._hints:
            if self._lines and len(self._lines[-1]) + 3 + len(hint) <= available:
                self._lines[-1] += f"   {hint}"
            else:
                self._lines.append(hint)
        return len(self._lines)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        bar = Segment(self._line_prefix, styles["error"])
        return [bar, Segment(self._lines[y], styles["muted"])]


class BlankLine:
    def source_map(self, y: int) -> SourceMap:
        return SourceMap("", [""])

    def height(self, width: int) -> int:
        return 1

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return []


class BlockStack:
    def __init__(self) -> None:
        self.blocks: list[TextBlock] = []
        self._tops: list[int] = [0]

    def height(self, width: int) -> int:
        heights = (block.height(width) for block in self.blocks)
        self._tops = list(accumulate(heights, initial=0))
        return self._tops[-1]

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        index = bisect_right(self._tops, y) - 1
        if not 0 <= index < len(self.blocks):
            return []
        return self.blocks[index].line(y - self._tops[index], styles)

    def source_map(self, y: int) -> SourceMap:
        index = bisect_right(self._tops, y) - 1
        if not 0 <= index < len(self.blocks):
            return SourceMap("", [""], y)
        top = self._tops[index]
        return self.blocks[index].source_map(y - top).moved(top)

    def top_of(self, block: TextBlock) -> int:
        """The first line of a block, at the width of the last `height`."""
        return self._tops[self.blocks.index(block)]


PREFIX_OWNER = -1  # `TextRun.owner` of the prefix, which is no token.

TOKEN_CLASS_STYLES: dict[TokenClass, Style] = {
    token_class: Style.parse(" ".join(look.attributes))
    for token_class, look in TOKEN_CLASSES.items()
}
"""The style of each class in addition to its colour."""


class TokenText:
    """A prompt and the tokens after it, with a cursor, and styled by class if wanted."""

    def __init__(self, prefix: str) -> None:
        self._prefix = sanitize(prefix)
        self.tokens: list[Token] = []
        self.show_classes = False
        self.show_marks = False  # Adds marks if `show_classes` is set.
        self.cursor: int | None = None
        self._tail = ""
        self._wrapped: WrappedText | None = None
        self._width = 0

    @property
    def answer(self) -> str:
        """The sanitized text after the prompt."""
        return sanitize("".join(token.text for token in self.tokens)) + self._tail

    def source_map(self, y: int) -> SourceMap:
        assert self._wrapped is not None, "call height() first"
        return SourceMap(self._prefix + self.answer, self._wrapped.rows)

    def extend(self, tokens: Sequence[Token]) -> None:
        """Appends tokens; only the last line and the lines after it change."""
        first = len(self.tokens)
        self.tokens += tokens
        if self._wrapped is not None:
            for index, token in enumerate(tokens, first):
                self._wrapped.append(self._token_label(token), index)

    def end(self, tail: str) -> None:
        """Appends the text that the engine held back; it belongs to no token."""
        self._tail = sanitize(tail)
        self._wrapped = None

    def set_marking(self, *, show_classes: bool, show_marks: bool) -> None:
        self.show_classes = show_classes
        self.show_marks = show_marks
        self._wrapped = None

    def clear(self) -> None:
        self.tokens.clear()
        self._wrapped = None

    def line_of(self, token: int) -> int:
        """The first line of a token, at the width of the last `height`."""
        if self._wrapped is None:
            return 0
        return self._wrapped.start_lines.get(token, 0)

    def _token_label(self, token: Token) -> str:
        if self.show_classes and self.show_marks:
            return plain_text(mark_token(token))
        return sanitize(token.text)

    def height(self, width: int) -> int:
        if self._wrapped is None or self._width != width:
            self._width = width
            self._wrapped = WrappedText(width)
            if self._prefix:
                self._wrapped.append(self._prefix, PREFIX_OWNER)
            for index, token in enumerate(self.tokens):
                self._wrapped.append(self._token_label(token), index)
            if self._tail:
                self._wrapped.append(self._tail, len(self.tokens))
        lines = self._wrapped.lines
        if len(lines) > 1 and not lines[-1]:
            return len(lines) - 1  # The text ends with a line feed.
        return len(lines)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._wrapped is not None, "call height() first"
        return [
            Segment(run.text, self._style(run.owner, styles))
            for run in self._wrapped.lines[y]
        ]

    def _style(self, owner: int, styles: StyleMap) -> Style:
        if owner == PREFIX_OWNER:
            return styles["prefix"]
        if owner >= len(self.tokens):
            return styles["text"]
        style = styles["text"]
        if self.show_classes:
            style = styles[self.tokens[owner].kind]
        if owner == self.cursor:
            style += Style(reverse=True)
        return style
