"""Markdown that grows: finished blocks are rendered once, the last at each change.

Rich renders the blocks. Every visible character is shown but the marks of Markdown: a
block of which Rich would drop one is plain text. Links show their addresses as text.
"""

from __future__ import annotations

import io
import re
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from markdown_it.token import Token
from msgspec import Struct
from pygments.lexer import Lexer  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.token import Text as TextToken  # type: ignore[import-untyped]
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, ListElement, ListItem, Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from localspec.chat.markdown_parser import MARKDOWN_PARSER, count_visible
from localspec.tui.text.blocks import StyleMap
from localspec.tui.text.source_map import SourceMap
from localspec.tui.themes import MarkdownStyle

SegmentLine = list[Segment]

_COLOURED_LANGUAGES = {
    "bash", "c", "c++", "console", "cpp", "cs", "csharp", "css", "diff", "go", "html",
    "java", "javascript", "js", "json", "kotlin", "lua", "make", "php", "py", "python",
    "python3", "rb", "rs", "ruby", "rust", "sh", "shell", "sql", "swift", "toml", "ts",
    "typescript", "xml", "yaml", "yml", "zsh",
}  # fmt: skip
"""Pygments' lexers of which no single match takes long: see the tests."""
_MAX_COLOURED_CHARACTERS = 10_000
_MAX_COLOURING_SECONDS = 0.25  # Of CPU time; a usual text takes a tenth.
_MAX_REDRAWN_CHARACTERS = 4_000
"""Of a longer open block only the end is rendered again at each change."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
# Punctuation may be the markup of blocks.
_BLOCK_MARKUP = re.compile(r"[\s!-/:-@\[-`{-~]+")

CodeBlocksBefore = tuple[int, int]
"""The id of the turn, and the number of code blocks before a block of its answer."""


class _BoundedLexer(Lexer):  # type: ignore[misc]
    """Colours what another lexer finds in a limited time; the rest is plain.

    Some lexers take quadratic time.
    """

    def __init__(self, language: str) -> None:
        super().__init__(stripnl=False, ensurenl=True)
        self._lexer = get_lexer_by_name(language, stripnl=False)

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        deadline = time.thread_time() + _MAX_COLOURING_SECONDS
        for start, kind, part in self._lexer.get_tokens_unprocessed(text):
            yield start, kind, part
            if time.thread_time() > deadline:
                end = start + len(part)
                yield end, TextToken, text[end:]
                return


class _PlainCodeBlock(CodeBlock):
    """Code without a background, only indented, below its number, which a click copies."""

    label = Text()

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _PlainCodeBlock:
        assert isinstance(markdown, _RichMarkdown)
        block = cls(markdown.find_lexer(token), str(markdown.code_theme))
        block.label = markdown.next_label(token.info.strip())
        return block

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        code = str(self.text).rstrip()
        yield self.label
        if self.lexer_name == "text":
            yield Padding(Text(code.expandtabs(4)), (0, 2))
        else:
            yield Syntax(
                code,
                _BoundedLexer(self.lexer_name),
                theme=self.theme,
                word_wrap=True,
                padding=(0, 2),
                background_color="default",
            )


class _NumberedItem(ListItem):
    """An item that keeps its number: Rich numbers the items of a list from the first."""

    number = 0

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _NumberedItem:
        item = cls()
        if token.info.isdecimal():
            item.number = int(token.info)
        return item


class _NumberedList(ListElement):
    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        items = [item for item in self.items if isinstance(item, _NumberedItem)]
        widest = max((item.number for item in items), default=0) + 1
        for item in items:
            yield from item.render_number(console, options, item.number, widest)


class _RichMarkdown(Markdown):
    elements = {  # noqa: RUF012
        **Markdown.elements,
        "fence": _PlainCodeBlock,
        "code_block": _PlainCodeBlock,
        "list_item_open": _NumberedItem,
        "ordered_list_open": _NumberedList,
    }

    def __init__(
        self,
        source: str,
        look: MarkdownStyle,
        before: CodeBlocksBefore,
        *,
        coloured: bool,
    ) -> None:
        self._look = look
        self._turn_id, self.n_code_blocks = before
        self._coloured = coloured
        super().__init__("", code_theme=look.code_theme, hyperlinks=False)
        self.parsed = MARKDOWN_PARSER.parse(source)

    def find_lexer(self, token: Token) -> str:
        language = token.info.strip().partition(" ")[0].lower()
        if not self._coloured or language not in _COLOURED_LANGUAGES:
            return "text"
        if len(token.content) > _MAX_COLOURED_CHARACTERS:
            return "text"
        return language

    def next_label(self, info: str) -> Text:
        self.n_code_blocks += 1
        return _code_label(self._turn_id, self.n_code_blocks, info, self._look)


def _code_label(turn_id: int, number: int, info: str, look: MarkdownStyle) -> Text:
    """`1 python`; a click copies the code."""
    action = Style(meta={"@click": f"screen.copy_code({turn_id}, {number})"})
    return Text(f"  {number} {info}".rstrip(), Style(color=look.muted) + action)


@lru_cache(maxsize=8)
def _build_console(look: MarkdownStyle) -> Console:
    styles = {
        "markdown.h1": f"bold underline {look.accent}",
        "markdown.h2": f"bold {look.accent}",
        **{f"markdown.h{n}": "bold" for n in range(3, 7)},
        "markdown.h7": "italic",
        "markdown.code": look.accent,
        "markdown.item.bullet": look.muted,
        "markdown.item.number": look.muted,
        "markdown.list": "",
        "markdown.block_quote": look.muted,
        "markdown.hr": look.muted,
        "markdown.link": "underline",
        "markdown.link_url": f"underline {look.muted}",
        "markdown.table.header": "bold",
        "markdown.table.border": look.muted,
    }
    return Console(
        file=io.StringIO(),
        theme=Theme(styles),
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _render_block(
    source: str,
    width: int,
    look: MarkdownStyle,
    before: CodeBlocksBefore,
    *,
    coloured: bool = False,
) -> tuple[list[SegmentLine], int]:
    """The lines without blank ones around them.

    Also returns the number of code blocks of the answer up to the end of this block.
    """
    console = _build_console(look)
    text = _RichMarkdown(source, look, before, coloured=coloured)
    lines = console.render_lines(text, console.options.update(width=width), pad=False)
    if not _has_every_character(source, text.parsed, lines):
        lines = _render_plain(source, width, look)
    lines = [_clear_background(line) for line in lines]
    filled = [number for number, line in enumerate(lines) if _line_text(line).strip()]
    if not filled:
        return [], text.n_code_blocks
    return lines[filled[0] : filled[-1] + 1], text.n_code_blocks


def _line_text(line: SegmentLine) -> str:
    return "".join(segment.text for segment in line)


def _has_every_character(
    source: str, tokens: Sequence[Token], lines: list[SegmentLine]
) -> bool:
    shown = Counter("".join(_line_text(line) for line in lines))
    if count_visible(tokens) - shown:
        return False
    # The parser may have dropped something, such as a cell without a column.
    return not Counter(_BLOCK_MARKUP.sub("", source)) - shown


def _render_plain(text: str, width: int, look: MarkdownStyle) -> list[SegmentLine]:
    console = _build_console(look)
    options = console.options.update(width=max(2, width))  # a wide character's cells
    return console.render_lines(
        Text(text.rstrip("\n").expandtabs(4)), options, pad=False
    )


def _clear_background(line: SegmentLine) -> SegmentLine:
    return [
        Segment(segment.text, _without_background(segment.style)) for segment in line
    ]


@lru_cache(maxsize=1024)
def _without_background(style: Style | None) -> Style | None:
    if style is None or style.bgcolor is None:
        return style
    return style.without_color + Style(color=style.color)


class UncolouredBlock(Struct, frozen=True):
    """A finished block with code, which another thread may render in colours."""

    source: str
    width: int
    style: MarkdownStyle
    blocks_before: CodeBlocksBefore
    first_line: int
    n_lines: int

    def render(self) -> list[SegmentLine]:
        lines, _ = _render_block(
            self.source, self.width, self.style, self.blocks_before, coloured=True
        )
        return lines


class MarkdownText:
    """Markdown that grows at the end; the text must be sanitized."""

    def __init__(self, style: MarkdownStyle, turn_id: int = 0) -> None:
        self._style = style
        self._turn_id = turn_id
        self._width = 0
        # The finished blocks, and their lines at `_width`.
        self._finished_blocks: list[str] = []
        self._lines: list[SegmentLine] = []
        self._tops: list[int] = []  # The first line of each finished block.
        self._n_rendered = 0  # Number of finished blocks in `_lines`.
        self._n_code_blocks = 0  # In `_lines`.
        self._uncoloured: list[UncolouredBlock] = []
        # The last block, which may still change, and its lines.
        self._tail = ""
        self._n_parsed = 0  # Characters of `_tail` that were parsed to find its end.
        self._open_lines: list[SegmentLine] | None = None
        # The lines of the first `_n_kept` characters of `_tail`.
        self._kept_lines: list[SegmentLine] = []
        self._n_kept = 0

    def write(self, text: str) -> None:
        self._tail += text
        self._open_lines = None
        if "\n" not in text:
            return
        is_short = self._n_parsed <= _MAX_REDRAWN_CHARACTERS
        end = self._tail[-len(text) - 3 :]
        has_grown = len(self._tail) - self._n_parsed > self._n_parsed // 4
        if is_short or has_grown or "```" in end or "~~~" in end:
            self._finish_blocks()

    def finish(self) -> None:
        """The last block is complete, too."""
        if self._tail.strip():
            self._finished_blocks.append(self._tail)
        self._tail = ""
        self._discard_open_lines()

    def _finish_blocks(self) -> None:
        """Moves all blocks but the last from the tail to the finished blocks.

        Only whole lines count: an incomplete "1" may become the next item of a list.
        """
        lines = self._tail.split("\n")
        starts = _find_block_starts(lines[:-1])
        if starts and starts[-1] > 0:
            edges = [0, *sorted(set(starts))[1:]]
            for start, end in pairwise(edges):
                self._finished_blocks.append("\n".join(lines[start:end]) + "\n")
            self._tail = "\n".join(lines[starts[-1] :])
            self._kept_lines = []
            self._n_kept = 0
        self._n_parsed = len(self._tail)

    def restyle(self, style: MarkdownStyle) -> None:
        self._style = style
        self._discard_rendered()

    def _discard_rendered(self) -> None:
        self._lines = []
        self._tops = []
        self._n_rendered = 0
        self._n_code_blocks = 0
        self._uncoloured = []
        self._discard_open_lines()

    def _discard_open_lines(self) -> None:
        self._open_lines = None
        self._kept_lines = []
        self._n_kept = 0

    def height(self, width: int) -> int:
        if width != self._width:
            self._width = width
            self._discard_rendered()
        for source in self._finished_blocks[self._n_rendered :]:
            self._render_finished_block(source)
        self._n_rendered = len(self._finished_blocks)
        if self._open_lines is None:
            lines = self._render_open_block() if self._tail.strip() else []
            self._open_lines = self._with_blank_line(lines)
        return len(self._lines) + len(self._open_lines)

    def _render_finished_block(self, source: str) -> None:
        """Appends its lines; if it has code, that is coloured later."""
        n_code_blocks_before = self._n_code_blocks
        before = (self._turn_id, n_code_blocks_before)
        lines, self._n_code_blocks = _render_block(
            source, self._width, self._style, before
        )
        self._lines += self._with_blank_line(lines)
        self._tops.append(len(self._lines) - len(lines))
        if self._n_code_blocks > n_code_blocks_before:
            self._uncoloured.append(
                UncolouredBlock(
                    source,
                    self._width,
                    self._style,
                    before,
                    first_line=len(self._lines) - len(lines),
                    n_lines=len(lines),
                )
            )

    def _with_blank_line(self, lines: list[SegmentLine]) -> list[SegmentLine]:
        return [[], *lines] if self._lines and lines else lines

    def take_uncoloured(self) -> list[UncolouredBlock]:
        """The blocks that have become ready to be coloured since the last call."""
        blocks = self._uncoloured
        self._uncoloured = []
        return blocks

    def colour(self, block: UncolouredBlock, lines: list[SegmentLine]) -> None:
        """Has no effect if the text was wrapped or styled anew meanwhile."""
        is_current = (block.width, block.style) == (self._width, self._style)
        if is_current and len(lines) == block.n_lines:
            self._lines[block.first_line : block.first_line + block.n_lines] = lines

    def _render_open_block(self) -> list[SegmentLine]:
        """The lines of a long block are kept up to its last word; the end is rendered."""
        if len(self._tail) - self._n_kept > _MAX_REDRAWN_CHARACTERS:
            start = self._n_kept
            end = max(self._tail.rfind("\n", start), self._tail.rfind(" ", start)) + 1
            if end > start:
                self._kept_lines += self._render_open_part(start, end)
                self._n_kept = end
        open_lines = self._render_open_part(self._n_kept, len(self._tail))
        return [*self._kept_lines, *open_lines]

    def _render_open_part(self, start: int, end: int) -> list[SegmentLine]:
        """A part of the tail; rows far below a table's head are plain."""
        text = self._tail[start:end]
        info = _unclosed_fence_info(self._tail)
        if info is not None:
            return self._render_open_code(text, info, has_label=start == 0)
        if start > 0 and text.lstrip().startswith("|"):
            return _render_plain(text, self._width, self._style)
        before = (self._turn_id, self._n_code_blocks)
        lines, _ = _render_block(text, self._width, self._style, before)
        return lines

    def _render_open_code(
        self, text: str, info: str, *, has_label: bool
    ) -> list[SegmentLine]:
        """Code whose fence is still open: without syntax colours.

        `has_label`: the text begins with the fence.
        """
        lines: list[SegmentLine] = []
        if has_label:
            _, _, text = text.lstrip("\n").partition("\n")
            number = self._n_code_blocks + 1
            label = _code_label(self._turn_id, number, info, self._style)
            lines.append(list(label.render(_build_console(self._style))))
        if text.strip("\n"):
            for line in _render_plain(text, self._width - 4, self._style):
                lines.append([Segment("  "), *line])
        return lines

    def source_map(self, y: int) -> SourceMap:
        """Of the block that has line `y`; there is a blank line between two blocks."""
        assert self._open_lines is not None, "call height() first"
        lines = [*self._lines, *self._open_lines]
        tops = [*self._tops, len(lines) - len(self._open_lines)]
        sources = [*self._finished_blocks, self._tail]
        if self._open_lines and not self._open_lines[0]:
            tops[-1] += 1
        index = bisect_right(tops, y) - 1
        end = tops[index + 1] if index + 1 < len(tops) else len(lines)
        rows = [_line_text(line).rstrip() for line in lines[tops[index] : end]]
        while rows and not rows[-1]:
            rows.pop()
        if index < 0 or y >= tops[index] + len(rows):
            return SourceMap("", [""], y)
        return SourceMap(sources[index].strip("\n"), rows, tops[index])

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._open_lines is not None, "call height() first"
        if y < len(self._lines):
            return self._lines[y]
        return self._open_lines[y - len(self._lines)]


def _find_block_starts(lines: Sequence[str]) -> list[int]:
    """The first line of each block; after a closed code fence also that of the next."""
    parsed = MARKDOWN_PARSER.parse("\n".join([*lines, ""]))
    starts = []
    last_end = 0
    is_fence = False
    for token in parsed:
        if token.level == 0 and token.map:
            start, last_end = token.map
            starts.append(start)
            is_fence = token.type == "fence"
    if is_fence and _unclosed_fence_info("\n".join(lines[starts[-1] :])) is None:
        starts.append(last_end)
    return starts


def _unclosed_fence_info(text: str) -> str | None:
    """The info string of a code fence that is not closed yet; else None."""
    first, _, rest = text.lstrip("\n").partition("\n")
    opening = _FENCE.fullmatch(first)
    if opening is None or ("`" in opening[1] and "`" in opening[2]):
        return None
    closing = re.compile(rf" {{0,3}}{opening[1]}{opening[1][0]}*[ \t]*")
    is_closed = any(closing.fullmatch(line) for line in rest.split("\n"))
    return None if is_closed else opening[2].strip()
