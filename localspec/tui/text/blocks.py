"""A piece of text that knows its lines at a width; several make one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from rich.segment import Segment
from rich.style import Style

from localspec.protocol.events import Token, TokenClass
from localspec.sanitize import sanitize
from localspec.tui.glyphs import Glyphs
from localspec.tui.text.wrapping import WrappedText

StyleMap = Mapping[str, Style]
"""By the names of the widget's component classes: `muted`, `role`, `accepted`, …"""


class TextBlock(Protocol):
    """Drawn line by line, and only those that are visible."""

    def height(self, width: int) -> int:
        """Lines at this width; what `line` shows from now on is of this width."""
        ...

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]: ...


class Paragraph:
    """Clean text in one style, wrapped."""

    def __init__(self, text: str = "", style: str = "text", line_prefix: str = "") -> None:
        self._text = text
        self._style = style
        self._line_prefix = line_prefix
        """In front of every line: a bar, or room."""
        self._wrapped: WrappedText | None = None
        self._width = 0

    def set_text(self, text: str) -> None:
        """Another text."""
        self._text = text
        self._wrapped = None

    def height(self, width: int) -> int:
        if not self._text:
            return 0
        if self._wrapped is None or self._width != width:
            self._width = width
            self._wrapped = WrappedText(width - len(self._line_prefix))
            self._wrapped.append(self._text, 0)
        return len(self._wrapped.lines)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._wrapped is not None, "asked before its height"
        text = "".join(run.text for run in self._wrapped.lines[y])
        before = [Segment(self._line_prefix, styles["error"])] if self._line_prefix else []
        return [*before, Segment(text, styles[self._style])]


class KeyHints:
    """Keys and what they do, muted; a line ends between two of them, never within one."""

    def __init__(self, hints: Sequence[str], line_prefix: str = "") -> None:
        self._hints = hints
        self._line_prefix = line_prefix
        self._lines: list[str] = []

    def height(self, width: int) -> int:
        room = width - len(self._line_prefix)
        self._lines = []
        for hint in self._hints:
            if self._lines and len(self._lines[-1]) + 3 + len(hint) <= room:
                self._lines[-1] += f"   {hint}"
            else:
                self._lines.append(hint)
        return len(self._lines)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return [
            Segment(self._line_prefix, styles["error"]),
            Segment(self._lines[y], styles["muted"]),
        ]


class BlankLine:
    """An empty line."""

    def height(self, width: int) -> int:
        return 1

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return []


class BlockStack:
    """Parts below one another."""

    def __init__(self, blocks: Sequence[TextBlock] = ()) -> None:
        self.blocks: list[TextBlock] = list(blocks)
        self._tops: list[int] = [0]

    def height(self, width: int) -> int:
        self._tops = list(accumulate((p.height(width) for p in self.blocks), initial=0))
        return self._tops[-1]

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        number = bisect_right(self._tops, y) - 1
        if not 0 <= number < len(self.blocks):
            return []
        return self.blocks[number].line(y - self._tops[number], styles)

    def top_of(self, block: TextBlock) -> int:
        """The line where a part begins, as of the last `height`."""
        return self._tops[self.blocks.index(block)]


# --- A text made of tokens: as it reads, or each token in its class.

PREFIX_OWNER = -1
"""Owner of what stands before the tokens."""

TOKEN_CLASS_STYLES: dict[TokenClass, Style] = {
    "accepted": Style(underline=True),
    "bonus": Style(underline2=True, bold=True),
    "correction": Style(overline=True, italic=True),
    "plain": Style(),
}
"""How a class looks beside its colour."""

_CURSOR_STYLE = Style(reverse=True)


class TokenText:
    """What was asked, as a prefix, and the tokens that followed; a cursor may stand on one."""

    def __init__(self, prefix: str, glyphs: Glyphs) -> None:
        self._prefix = sanitize(prefix)
        self._glyphs = glyphs
        self.tokens: list[Token] = []
        self.show_classes = False
        self.show_marks = False
        """Glyphs too, where it is marked."""
        self.cursor: int | None = None
        self._tail = ""
        self._wrapped: WrappedText | None = None
        self._width = 0

    def extend(self, tokens: Sequence[Token]) -> None:
        """More tokens came: only the last line changes, and what follows it."""
        first = len(self.tokens)
        self.tokens += tokens
        if self._wrapped is not None:
            for number, token in enumerate(tokens, first):
                self._wrapped.append(self._token_label(token), number)

    def end(self, tail: str) -> None:
        """Text that was held back, and belongs to no token."""
        self._tail = sanitize(tail)
        self._wrapped = None

    def set_marking(self, show_classes: bool, show_marks: bool) -> None:
        """Show how the tokens came, perhaps with glyphs; or the text alone."""
        self.show_classes, self.show_marks = show_classes, show_marks
        self._wrapped = None

    def clear(self) -> None:
        self.tokens.clear()
        self._wrapped = None

    def line_of(self, token: int) -> int:
        """The line where a token begins, as of the last `height`."""
        return self._wrapped.start_lines.get(token, 0) if self._wrapped is not None else 0

    def _token_label(self, token: Token) -> str:
        text = sanitize(token.text)
        if not (self.show_classes and self.show_marks) or not text:
            return text
        body = text.rstrip()
        return body + self._glyphs.token_marks[token.kind] + text[len(body) :]

    def height(self, width: int) -> int:
        if self._wrapped is None or self._width != width:
            self._width = width
            self._wrapped = self._wrap(width)
        lines = self._wrapped.lines
        return len(lines) - (len(lines) > 1 and not lines[-1])

    def _wrap(self, width: int) -> WrappedText:
        wrapped = WrappedText(width)
        if self._prefix:
            wrapped.append(self._prefix, PREFIX_OWNER)
        for number, token in enumerate(self.tokens):
            wrapped.append(self._token_label(token), number)
        if self._tail:
            wrapped.append(self._tail, len(self.tokens))
        return wrapped

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._wrapped is not None, "asked before its height"
        return [Segment(run.text, self._style(run.owner, styles)) for run in self._wrapped.lines[y]]

    def _style(self, owner: int, styles: StyleMap) -> Style:
        if owner == PREFIX_OWNER:
            return styles["prefix"]
        if owner >= len(self.tokens):
            return styles["text"]
        kind = self.tokens[owner].kind
        style = styles[kind] if self.show_classes else styles["text"]
        return style + _CURSOR_STYLE if owner == self.cursor else style
