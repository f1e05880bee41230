"""Text blocks: wrap themselves to a width and render single lines."""

from __future__ import annotations

import base64
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Protocol

from rich.color import Color
from rich.segment import Segment
from rich.style import Style

from localspec.protocol.events import Thumbnail, Token, TokenClass
from localspec.report.lines import plain_text
from localspec.report.token_classes import TOKEN_CLASSES, mark_token
from localspec.sanitize import sanitize
from localspec.tui.text.live_frames import NO_GUESS, LiveGuess
from localspec.tui.text.source_map import SourceMap
from localspec.tui.text.wrapping import CharacterRows, TextRun, WrappedText, shorten
from localspec.units import short_count

StyleMap = Mapping[str, Style]
"""Styles by the names of the widget's component classes: `muted`, `role`, …"""


class TextBlock(Protocol):
    """Rendered line by line, so that only visible lines cost time."""

    def height(self, width: int) -> int:
        """Number of lines at this width; `line` renders at the width of the last call."""

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]: ...

    def source_map(self, y: int) -> SourceMap:
        """Of line `y` and those that belong to it, at the width of the last `height`."""


_MAX_WORD_WRAPPED = 16_000
"""Characters of a paragraph. A longer one is cut into rows, which costs much less."""
# Of an answer in the token view.
_MAX_WRAPPED_TOKENS = 8_000
_MAX_WRAPPED_CHARACTERS = 40_000
_MAX_MAPPED_ROWS = 300
_MAX_TAIL = 16_000  # Characters after the tokens.


class Paragraph:
    """Wrapped text in one style; the text must be sanitized.

    A very long text is cut into rows, and its end is left out.
    """

    def __init__(
        self, text: str = "", style: str = "text", line_prefix: str = ""
    ) -> None:
        self._style = style
        self._line_prefix = line_prefix
        self._width = 0
        self._rows: list[str] | None = None  # None: to be wrapped.
        # Only of a text that is too long to be wrapped by words.
        self._cut_rows: CharacterRows | None = None
        self.set_text(text)

    def set_text(self, text: str) -> None:
        shown, n_hidden = shorten(text)
        if n_hidden:
            shown += f"\n… and {short_count(n_hidden)} more characters"
        self._text = shown
        self._rows = None

    def source_map(self, y: int) -> SourceMap:
        assert self._rows is not None, "call height() first"
        if self._cut_rows is not None and not self._line_prefix:
            return self._cut_rows.source_map(y)
        rows = [f"{self._line_prefix}{row}" for row in self._rows]
        return SourceMap(self._text, rows)

    def height(self, width: int) -> int:
        if not self._text:
            return 0
        if self._rows is None or self._width != width:
            self._width = width
            self._wrap(width - len(self._line_prefix))
            assert self._rows is not None
        return len(self._rows)

    def _wrap(self, width: int) -> None:
        self._cut_rows = None
        if len(self._text) > _MAX_WORD_WRAPPED:
            self._cut_rows = CharacterRows(self._text, width)
            self._rows = self._cut_rows.rows
            return
        wrapped = WrappedText(width)
        wrapped.append(self._text, 0)
        self._rows = wrapped.rows

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._rows is not None, "call height() first"
        segments = [Segment(self._rows[y], styles[self._style])]
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


class ThumbnailBlock:
    """A small picture in half cells: a cell has one pixel above another.

    The upper pixel is the colour of `▀`, the lower one that of its background. So 48 by
    32 pixels take 48 columns and 16 rows, in any terminal that has colours.
    """

    def __init__(self, thumbnail: Thumbnail) -> None:
        self._thumbnail = thumbnail
        self._width = 0
        self._rows: list[list[Segment]] = []

    def source_map(self, y: int) -> SourceMap:
        return SourceMap("", [""] * len(self._rows))

    def height(self, width: int) -> int:
        if self._width != width:
            self._width = width
            self._rows = list(_draw_thumbnail(self._thumbnail, width))
        return len(self._rows)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        return self._rows[y]


_WIDE_TEXT = 78
"""Columns from which a thumbnail is drawn in full size; else it is half as large."""
_RgbColour = tuple[int, int, int]


def _draw_thumbnail(thumbnail: Thumbnail, width: int) -> Iterator[list[Segment]]:
    """Nothing if its bytes are damaged."""
    try:
        pixels = base64.b64decode(thumbnail.rgb, validate=True)
    except ValueError:
        return
    if len(pixels) != 3 * thumbnail.width * thumbnail.height:
        return
    step = 1 if width >= _WIDE_TEXT else 2
    while thumbnail.width > step * width:
        step += 1
    n_columns = -(-thumbnail.width // step)
    n_pixel_rows = -(-thumbnail.height // step)

    def find_colour(column: int, row: int) -> _RgbColour:
        """The mean of the pixels that are drawn as one."""
        sums = [0, 0, 0]
        n_pixels = 0
        for y in range(row * step, min((row + 1) * step, thumbnail.height)):
            for x in range(column * step, min((column + 1) * step, thumbnail.width)):
                start = 3 * (y * thumbnail.width + x)
                for part, value in enumerate(pixels[start : start + 3]):
                    sums[part] += value
                n_pixels += 1
        red, green, blue = sums
        return red // n_pixels, green // n_pixels, blue // n_pixels

    for row in range(0, n_pixel_rows, 2):
        cells = []
        for column in range(n_columns):
            lower = None
            if row + 1 < n_pixel_rows:
                lower = find_colour(column, row + 1)
            cells.append((find_colour(column, row), lower))
        segments = []
        for (upper, lower), same in groupby(cells):
            text = "▀" * len(list(same))
            background = None
            if lower is not None:
                background = Color.from_rgb(*lower)
            style = Style(color=Color.from_rgb(*upper), bgcolor=background)
            segments.append(Segment(text, style))
        yield segments


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


class DeferredBlock(ABC):
    """A block that is costly to wrap: until it is seen, its height is an estimate."""

    @abstractmethod
    def estimate_height(self, width: int) -> int:
        """At least one line; must cost next to nothing."""

    @abstractmethod
    def height(self, width: int) -> int: ...

    @abstractmethod
    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]: ...

    @abstractmethod
    def source_map(self, y: int) -> SourceMap: ...

    @property
    @abstractmethod
    def is_made(self) -> bool:
        """Whether its text exists already."""

    @abstractmethod
    def read_source(self, width: int) -> str:
        """All its source as a copy has it; for any thread, if it is not made yet."""


def join_sources(block: BlockStack, n_rows: int) -> str:
    """The source of all rows of a block that is laid out."""
    parts: list[str] = []
    row = 0
    while row < n_rows:
        source = block.source_map(row)
        parts.append(source.source)
        row = max(source.first_row + source.n_rows, row + 1)
    return "\n".join(parts)


class ScrolledStack:
    """Blocks of which the deferred ones are wrapped when they come into view.

    A chat of 2,000 turns in a window of 30 lines wraps its last three turns. The
    heights of the others are estimates. When the reader pages up, the next three are
    wrapped, and the lines below them get other numbers: `tops` has them.
    """

    def __init__(self) -> None:
        self.blocks: list[TextBlock | DeferredBlock] = []
        # The first line of each block, and the number of lines. Each change makes a new
        # list, so that an old one can be compared with it.
        self.tops: list[int] = [0]
        self._width = 0
        self._heights: dict[TextBlock | DeferredBlock, int] = {}
        self._wrapped: set[TextBlock | DeferredBlock] = set()

    @property
    def height(self) -> int:
        return self.tops[-1]

    def forget(self, block: TextBlock | DeferredBlock) -> None:
        """Wraps a block again when it is seen; until then its height stays."""
        self._wrapped.discard(block)

    def forget_all(self) -> None:
        self._wrapped.clear()

    def lay_out(self, width: int) -> None:
        """Must be called after the blocks or their text have changed."""
        if width != self._width:
            self._width = width
            self._heights.clear()
            self._wrapped.clear()
        heights: dict[TextBlock | DeferredBlock, int] = {}
        for block in self.blocks:
            if not isinstance(block, DeferredBlock):
                heights[block] = block.height(width)
            elif block in self._heights:
                heights[block] = self._heights[block]
            else:
                heights[block] = block.estimate_height(width)
        self._heights = heights
        self._wrapped &= heights.keys()
        self._add_up()

    def _add_up(self) -> None:
        heights = [self._heights[block] for block in self.blocks]
        self.tops = list(accumulate(heights, initial=0))

    def find_unwrapped(self, top: int, bottom: int) -> list[int]:
        """The indices of the deferred blocks between two lines that are not wrapped."""
        found = []
        first = max(0, bisect_right(self.tops, top) - 1)
        for index in range(first, len(self.blocks)):
            if self.tops[index] >= bottom:
                break
            block = self.blocks[index]
            if isinstance(block, DeferredBlock) and block not in self._wrapped:
                found.append(index)
        return found

    def is_wrapped(self, index: int) -> bool:
        block = self.blocks[index]
        return not isinstance(block, DeferredBlock) or block in self._wrapped

    def wrap(self, *indexes: int) -> None:
        for index in indexes:
            block = self.blocks[index]
            self._heights[block] = block.height(self._width)
            self._wrapped.add(block)
        self._add_up()

    def locate(self, y: int) -> tuple[int, int]:
        """The block that has a line, and the number of the line within the block."""
        index = max(0, bisect_right(self.tops, y) - 1)
        return index, y - self.tops[index]

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        """Nothing for a block that is not wrapped yet."""
        index, y_within = self.locate(y)
        if index >= len(self.blocks):
            return []
        block = self.blocks[index]
        if isinstance(block, DeferredBlock) and block not in self._wrapped:
            return []
        return block.line(y_within, styles)

    def source_map(self, y: int) -> SourceMap:
        """Empty for a block that is not wrapped yet."""
        index, y_within = self.locate(y)
        if index >= len(self.blocks):
            return SourceMap("", [""], y)
        block = self.blocks[index]
        if isinstance(block, DeferredBlock) and block not in self._wrapped:
            return SourceMap("", [""], y)
        return block.source_map(y_within).moved(self.tops[index])


PREFIX_OWNER = -1  # `TextRun.owner` of the prefix, which is no token.
# Of the parts of a guess.
RIGHT_OWNER = -2
UNCHECKED_OWNER = -3
REJECTED_OWNER = -4
_GUESS_STYLES = {
    RIGHT_OWNER: "accepted",
    UNCHECKED_OWNER: "draft",
    REJECTED_OWNER: "rejected",
}

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
        # Of very many tokens only some are wrapped: those around the cursor, or the last.
        self._first_wrapped = 0
        self._last_wrapped = 0
        self._tail = ""
        self._guess = NO_GUESS
        self._wrapped: WrappedText | None = None
        self._lines: list[list[TextRun]] = []  # Those of `_wrapped`, with the guess.
        self._width = 0

    @property
    def answer(self) -> str:
        """The sanitized text after the prompt."""
        return sanitize("".join(token.text for token in self.tokens)) + self._tail

    def source_map(self, y: int) -> SourceMap:
        assert self._wrapped is not None, "call height() first"
        n_rows = len(self._wrapped.lines)
        if n_rows <= _MAX_MAPPED_ROWS:
            return SourceMap(self._prefix + self.answer, self._wrapped.rows)
        # The map of a long text would take seconds: of this row only.
        row = "".join(run.text for run in self._wrapped.lines[y])
        return SourceMap(row, [row], y)

    def extend(self, tokens: Sequence[Token]) -> None:
        """Appends tokens; only the last line and the lines after it change."""
        first = len(self.tokens)
        self.tokens += tokens
        if self._wrapped is not None and self._last_wrapped == first:
            self._last_wrapped = len(self.tokens)
            for index, token in enumerate(tokens, first):
                self._wrapped.append(self._token_label(token), index)

    def end(self, tail: str) -> None:
        """Appends the text that the engine held back; it belongs to no token."""
        self._tail = sanitize(tail[-_MAX_TAIL:])
        self._wrapped = None

    def show_guess(self, guess: LiveGuess) -> None:
        """Draws a guess with the text, of which it is no part, if classes are shown."""
        self._guess = guess

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
        return sanitize(token.text[:_MAX_WORD_WRAPPED])

    def height(self, width: int) -> int:
        if self._wrapped is None or self._width != width or self._is_cursor_outside:
            self._width = width
            self._wrapped = self._wrap(width)
        self._lines = self._wrapped.lines
        if self.show_classes and self._guess != NO_GUESS and not self._tail:
            self._lines = self._add_guess(self._wrapped)
        lines = self._lines
        if len(lines) > 1 and not lines[-1]:
            return len(lines) - 1  # The text ends with a line feed.
        return len(lines)

    def _add_guess(self, wrapped: WrappedText) -> list[list[TextRun]]:
        """The lines with the guess: its last ones are wrapped again.

        What was rejected is before the last token, if that is in one line.
        """
        guess = self._guess
        last = len(wrapped.lines) - 1
        last_token = len(self.tokens) - 1
        rejected = guess.rejected
        if wrapped.start_lines.get(last_token) != last:
            rejected = ""
        end = WrappedText(self._width)
        for run in wrapped.lines[last]:
            if rejected and run.owner == last_token:
                blanks = rejected[: guess.n_rejected_blanks]
                end.append(blanks, UNCHECKED_OWNER)
                end.append(rejected[len(blanks) :], REJECTED_OWNER)
                rejected = ""
            end.append(run.text, run.owner)
        end.append(guess.right, RIGHT_OWNER)
        end.append(guess.unchecked, UNCHECKED_OWNER)
        return [*wrapped.lines[:last], *end.lines]

    @property
    def _is_cursor_outside(self) -> bool:
        """Whether the token with the cursor is not among the wrapped ones."""
        if self.cursor is None:
            return False
        return not self._first_wrapped <= self.cursor < self._last_wrapped

    def _wrap(self, width: int) -> WrappedText:
        n_tokens = len(self.tokens)
        self._choose_wrapped(n_tokens)
        if self.cursor is not None and self.cursor < self._first_wrapped:
            self._choose_wrapped(self.cursor + 1)
        wrapped = WrappedText(width)
        if self._first_wrapped:
            hidden = f"… {short_count(self._first_wrapped)} tokens above\n"
            wrapped.append(hidden, PREFIX_OWNER)
        elif self._prefix:
            wrapped.append(self._prefix, PREFIX_OWNER)
        for index in range(self._first_wrapped, self._last_wrapped):
            wrapped.append(self._token_label(self.tokens[index]), index)
        if self._last_wrapped < n_tokens:
            hidden = f"\n… {short_count(n_tokens - self._last_wrapped)} tokens below"
            wrapped.append(hidden, PREFIX_OWNER)
        elif self._tail:
            wrapped.append(self._tail, n_tokens)
        return wrapped

    def _choose_wrapped(self, end: int) -> None:
        """As many tokens before `end` as a frame can wrap, and at least one."""
        self._last_wrapped = end
        self._first_wrapped = end
        n_characters = 0
        while self._first_wrapped > 0 and n_characters < _MAX_WRAPPED_CHARACTERS:
            if end - self._first_wrapped >= _MAX_WRAPPED_TOKENS:
                break
            self._first_wrapped -= 1
            n_characters += len(self.tokens[self._first_wrapped].text)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._wrapped is not None, "call height() first"
        return [
            Segment(run.text, self._style(run.owner, styles)) for run in self._lines[y]
        ]

    def _style(self, owner: int, styles: StyleMap) -> Style:
        if owner == PREFIX_OWNER:
            return styles["prefix"]
        if owner in _GUESS_STYLES:
            return styles[_GUESS_STYLES[owner]]
        if owner >= len(self.tokens):
            return styles["text"]
        style = styles["text"]
        if self.show_classes:
            style = styles[self.tokens[owner].kind]
        if owner == self.cursor:
            style += Style(reverse=True)
        return style
