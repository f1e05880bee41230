"""A text made of tokens: as it reads, or each token in its class."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style

from localspec.clean import clean
from localspec.protocol.events import Token, TokenClass
from localspec.tui.glyphs import Glyphs
from localspec.tui.text.part import Styles
from localspec.tui.text.wrapping import Wrapped

PREFIX = -1
"""Owner of what stands before the tokens."""

LINES: dict[TokenClass, Style] = {
    "accepted": Style(underline=True),
    "bonus": Style(underline2=True, bold=True),
    "correction": Style(overline=True, italic=True),
    "plain": Style(),
}
"""How a class looks beside its colour."""

_CURSOR = Style(reverse=True)


class Flow:
    """What was asked, as a prefix, and the tokens that followed; a cursor may stand on one."""

    def __init__(self, prefix: str, glyphs: Glyphs) -> None:
        self._prefix = clean(prefix)
        self._glyphs = glyphs
        self.tokens: list[Token] = []
        self.marked = False
        self.marks = False
        """Glyphs too, where it is marked."""
        self.cursor: int | None = None
        self._tail = ""
        self._wrapped: Wrapped | None = None
        self._width = 0

    def extend(self, tokens: Sequence[Token]) -> None:
        """More tokens came: only the last line changes, and what follows it."""
        first = len(self.tokens)
        self.tokens += tokens
        if self._wrapped is not None:
            for number, token in enumerate(tokens, first):
                self._wrapped.append(self._shown(token), number)

    def end(self, tail: str) -> None:
        """Text that was held back, and belongs to no token."""
        self._tail = clean(tail)
        self._wrapped = None

    def mark(self, marked: bool, marks: bool) -> None:
        """Show how the tokens came, perhaps with glyphs; or the text alone."""
        self.marked, self.marks = marked, marks
        self._wrapped = None

    def clear(self) -> None:
        self.tokens.clear()
        self._wrapped = None

    def line_of(self, token: int) -> int:
        """The line where a token begins, as of the last `height`."""
        return self._wrapped.starts.get(token, 0) if self._wrapped is not None else 0

    def _shown(self, token: Token) -> str:
        text = clean(token.text)
        if not (self.marked and self.marks) or not text:
            return text
        body = text.rstrip()
        return body + self._glyphs.marks[token.kind] + text[len(body) :]

    def height(self, width: int) -> int:
        if self._wrapped is None or self._width != width:
            self._width = width
            self._wrapped = self._wrap(width)
        lines = self._wrapped.lines
        return len(lines) - (len(lines) > 1 and not lines[-1])

    def _wrap(self, width: int) -> Wrapped:
        wrapped = Wrapped(width)
        if self._prefix:
            wrapped.append(self._prefix, PREFIX)
        for number, token in enumerate(self.tokens):
            wrapped.append(self._shown(token), number)
        if self._tail:
            wrapped.append(self._tail, len(self.tokens))
        return wrapped

    def line(self, y: int, styles: Styles) -> Sequence[Segment]:
        assert self._wrapped is not None, "asked before its height"
        return [Segment(run.text, self._style(run.owner, styles)) for run in self._wrapped.lines[y]]

    def _style(self, owner: int, styles: Styles) -> Style:
        if owner == PREFIX:
            return styles["prefix"]
        if owner >= len(self.tokens):
            return styles["text"]
        kind = self.tokens[owner].kind
        style = styles[kind] if self.marked else styles["text"]
        return style + _CURSOR if owner == self.cursor else style
