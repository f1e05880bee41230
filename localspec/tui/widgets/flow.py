"""Text made of tokens, wrapped and drawn line by line: only what is visible costs anything."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from localspec.clean import clean
from localspec.protocol.events import Token, TokenClass
from localspec.tui.glyphs import RICH, Glyphs
from localspec.tui.wrapping import Wrapped

PREFIX = -1
"""Owner of what stands before the tokens."""

_CLASSES: tuple[TokenClass, ...] = ("accepted", "bonus", "correction", "plain")


class Flow(Widget):
    """A question's text and the tokens that followed it.

    `marked`: each token in the colour and the underline of its class, or with glyphs where there
    is no colour.  A cursor may stand on a token.
    """

    COMPONENT_CLASSES = {  # noqa: RUF012  as Textual wants it
        "flow--prefix",
        "flow--cursor",
        *(f"flow--{kind}" for kind in _CLASSES),
    }
    _LINES: dict[TokenClass, Style] = {  # noqa: RUF012
        "accepted": Style(underline=True),
        "bonus": Style(underline2=True, bold=True),
        "correction": Style(overline=True, italic=True),
        "plain": Style(),
    }

    def __init__(
        self,
        prefix: str = "",
        *,
        marked: bool = False,
        glyphs: Glyphs = RICH,
        marks: bool = False,
        classes: str = "",
    ) -> None:
        super().__init__(classes=classes)
        self._prefix = clean(prefix)
        self.marked = marked
        self._glyphs = glyphs
        self._marks = marks
        self.tokens: list[Token] = []
        self._wrapped: Wrapped | None = None
        self._tail = ""
        self._cursor: int | None = None
        self._styles: dict[int | TokenClass, Style] = {}

    # --- what it shows --------------------------------------------------------------------

    def extend(self, tokens: Sequence[Token]) -> None:
        """More tokens came."""
        first = len(self.tokens)
        self.tokens += tokens
        if self._wrapped is None:
            self.refresh(layout=True)
            return
        before = len(self._wrapped.lines)
        touched = before - 1
        for number, token in enumerate(tokens, first):
            self._wrapped.append(self._shown(token), number)
        if len(self._wrapped.lines) != before:
            self.refresh(layout=True)
        else:
            self.refresh(Region(0, touched, self.size.width, 1))

    def end(self, tail: str) -> None:
        """Text that was held back, and belongs to no token."""
        if tail:
            self._tail = clean(tail)
            self.rewrap()

    def mark(self, *, marked: bool | None = None, marks: bool | None = None) -> None:
        """Show or hide how the tokens came, or the glyphs beside them."""
        self.marked = self.marked if marked is None else marked
        self._marks = self._marks if marks is None else marks
        self.rewrap()

    def rewrap(self) -> None:
        self._wrapped = None
        self._styles.clear()
        self.refresh(layout=True)

    @property
    def cursor(self) -> int | None:
        """The token under the cursor."""
        return self._cursor

    @cursor.setter
    def cursor(self, place: int | None) -> None:
        self._cursor = place
        self.refresh()

    def line_of(self, token: int) -> int:
        """The line where a token begins."""
        return self._lines().starts.get(token, 0)

    def _shown(self, token: Token) -> str:
        text = clean(token.text)
        if not (self.marked and self._marks) or not text:
            return text
        body = text.rstrip()
        return body + self._glyphs.marks[token.kind] + text[len(body) :]

    # --- how it is drawn ------------------------------------------------------------------

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        if self._wrapped is None or self._wrapped.width != width:
            self._wrap(width)
        lines = self._lines().lines
        return len(lines) if lines[-1] or len(lines) == 1 else len(lines) - 1

    def _lines(self) -> Wrapped:
        if self._wrapped is None:
            self._wrap(self.size.width or 80)
        assert self._wrapped is not None
        return self._wrapped

    def _wrap(self, width: int) -> None:
        self._wrapped = Wrapped(width)
        if self._prefix:
            self._wrapped.append(self._prefix, PREFIX)
        for number, token in enumerate(self.tokens):
            self._wrapped.append(self._shown(token), number)
        if self._tail:
            self._wrapped.append(self._tail, len(self.tokens))

    def render_line(self, y: int) -> Strip:
        lines = self._lines().lines
        width = self.size.width
        plain = self.rich_style
        if y >= len(lines):
            return Strip.blank(width, plain)
        segments = [Segment(run.text, plain + self._style(run.owner)) for run in lines[y]]
        strip = Strip(segments).adjust_cell_length(width, plain)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            strip = self._selected(strip, *span)
        return strip.apply_offsets(0, y)

    def _selected(self, strip: Strip, start: int, end: int) -> Strip:
        """Selection counts characters; here every character but wide ones is a cell."""
        style = self.screen.get_component_rich_style("screen--selection")
        end = strip.cell_length if end == -1 else end
        before, middle, after = strip.divide([start, end, strip.cell_length])
        return Strip.join([before, middle.apply_style(style), after])

    def _style(self, owner: int) -> Style:
        if owner == self._cursor and self._cursor is not None:
            return self._kind_style(owner) + Style(reverse=True)
        return self._kind_style(owner)

    def _kind_style(self, owner: int) -> Style:
        if owner == PREFIX:
            return self.get_component_rich_style("flow--prefix", partial=True)
        if not self.marked or owner >= len(self.tokens):
            return Style.null()
        kind = self.tokens[owner].kind
        style = self._styles.get(kind)
        if style is None:
            tint = self.get_component_rich_style(f"flow--{kind}", partial=True)
            style = self._styles[kind] = tint + self._LINES[kind]
        return style

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._styles.clear()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        lines = ("".join(run.text for run in line) for line in self._lines().lines)
        return selection.extract("\n".join(lines)), "\n"
