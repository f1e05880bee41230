"""Markdown that grows: finished blocks are rendered once, the last at each change.

Rich renders the blocks. Every visible character is shown but the marks of Markdown: a
block of which Rich would drop one is plain text. Links show their addresses as text.

Rich takes a millisecond for six rows of a table. So a frame renders blocks up to a budget.
Those beyond it are plain rows until a thread has rendered them, and a block that is too
large even for that stays plain.
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
from localspec.tui.text.live_frames import NO_GUESS, LiveGuess
from localspec.tui.text.source_map import SourceMap
from localspec.tui.text.token_classes import ClassRun, VisibleClasses, style_by_class
from localspec.tui.text.wrapping import CharacterRows
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
# Costs of rendering are in characters of plain prose: about a microsecond each.
_FRAME_BUDGET = 8_000  # Of what one frame renders.
_MAX_REDRAWN_COST = 5_000  # Of the end of an open block.
_MAX_PARSED_COST = 60_000  # Of an open block that is parsed to find its end.
_MAX_RENDERED_COST = 600_000  # Of a block that a thread renders.
_LINE_COST = 40
_ITEM_COST = 160  # Besides that of its line.
_MARK_COSTS = (("[", 90), ("*", 30), ("`", 30), ("~", 30))
_ITEM = re.compile(r"^[ \t]*(?:[-*+|>]|\d{1,9}[.)])", re.MULTILINE)
_MAX_WRITTEN_AT_ONCE = 8_000
"""A longer text, such as a stored answer, is split at blank lines before it is parsed."""
_MIN_SECTION = 2_000  # Characters.
_MAX_MAPPED_CHARACTERS = 30_000
"""Of a longer block only the row that is asked for is mapped to its source."""
_SECTION_MARK = re.compile(
    r"^(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})(?P<info>.*)$"
    r"|^[ \t]*\n(?=[^\s*+\-\d>|`~])",
    re.MULTILINE,
)
"""A code fence, or a blank line before one that begins a block of the answer itself."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
# Punctuation may be the markup of blocks.
_BLOCK_MARKUP = re.compile(r"[\s!-/:-@\[-`{-~]+")


class OpenText(Struct, frozen=True):
    """What is drawn of the open block: the end of the source, with a guess.

    `inserted` are the parts of `text` that are the guess, in order.
    """

    text: str
    runs: tuple[ClassRun, ...] = ()
    inserted: tuple[range, ...] = ()


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
        if not self._coloured or not self._look.code_theme:
            return "text"
        if language not in _COLOURED_LANGUAGES:
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


def _render_section(
    source: str,
    width: int,
    look: MarkdownStyle,
    before: CodeBlocksBefore,
    *,
    coloured: bool = False,
) -> tuple[list[SegmentLine], int]:
    """As `_render_block`, of several blocks with a blank line between two of them.

    What is too long for Rich is plain.
    """
    if _render_cost(source) > _MAX_RENDERED_COST:
        rows = CharacterRows(source.strip("\n"), width).rows
        n_code_blocks = before[1] + _count_fences(source)
        return [[Segment(row)] for row in rows], n_code_blocks
    lines: list[SegmentLine] = []
    for block in _split_blocks(source):
        block_lines, n_code_blocks = _render_block(
            block, width, look, before, coloured=coloured
        )
        before = (before[0], n_code_blocks)
        if lines and block_lines:
            lines.append([])
        lines += block_lines
    return lines, before[1]


def _split_blocks(source: str) -> list[str]:
    if len(source) < _MIN_SECTION:  # A single block, except of a stored answer.
        return [source]
    lines = source.split("\n")
    edges = [0, *sorted(set(_find_block_starts(lines)))[1:], len(lines)]
    return ["\n".join(lines[start:end]) + "\n" for start, end in pairwise(edges)]


def _count_fences(source: str) -> int:
    """The code blocks of a text that is too long to be parsed."""
    n_fences = sum(
        match["fence"] is not None for match in _SECTION_MARK.finditer(source)
    )
    return (n_fences + 1) // 2


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


class RenderBudget:
    """What may still be rendered in this frame, for all texts of a view together."""

    def __init__(self, left: int = _FRAME_BUDGET) -> None:
        self._left = left

    def refill(self) -> None:
        self._left = _FRAME_BUDGET

    def spend(self, cost: int) -> bool:
        """Whether there was enough; then it is spent."""
        if cost > self._left:
            return False
        self._left -= cost
        return True


def _render_cost(source: str) -> int:
    """About how many microseconds Rich takes for a text.

    `- a` is 3 characters, a line and an item: 203. A paragraph of 200 characters costs
    as much.
    """
    cost = len(source) + _LINE_COST * (source.count("\n") + 1)
    for mark, mark_cost in _MARK_COSTS:
        cost += mark_cost * source.count(mark)
    is_code = _FENCE.match(source.lstrip("\n")) is not None
    if not is_code:
        cost += _ITEM_COST * len(_ITEM.findall(source))
    return cost


def _split_sections(text: str) -> list[str]:
    """Parts of Markdown that look the same if each is rendered by itself.

    The cuts are after blank lines outside of code, before a line that continues no list,
    and before and after a code block. The last part may go on.
    """
    sections = []
    start = 0
    fence = ""
    for match in _SECTION_MARK.finditer(text):
        mark = match["fence"]
        cut = start
        if mark is None:
            if not fence:
                cut = match.end()
        elif not fence:
            is_inline_code = mark[0] == "`" and "`" in match["info"]
            if not is_inline_code:
                fence = mark
                cut = match.start() if not match["indent"] else start
        elif mark.startswith(fence) and not match["info"].strip():
            fence = ""
            cut = match.end() + 1 if not match["indent"] else start
        if cut - start >= _MIN_SECTION:
            sections.append(text[start:cut])
            start = cut
    return [*sections, text[start:]]


class UnrenderedBlock(Struct, frozen=True):
    """A finished block that is plain until another thread has rendered it."""

    number: int  # Among the finished blocks of its text.
    source: str
    width: int
    style: MarkdownStyle
    blocks_before: CodeBlocksBefore

    def render(self) -> RenderedBlock:
        lines, n_code_blocks = _render_section(
            self.source, self.width, self.style, self.blocks_before, coloured=True
        )
        return RenderedBlock(self, lines, n_code_blocks)


class RenderedBlock(Struct, frozen=True):
    block: UnrenderedBlock
    lines: list[SegmentLine]
    n_code_blocks: int  # Of the answer up to the end of this block.


class MovedLines(Struct, frozen=True):
    """The lines from `first` on are `by` lines further down."""

    first: int
    by: int


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
    """Markdown that grows at the end; the text must be sanitized.

    Its lines are those of the finished blocks that are rendered, then the plain rows of
    those that wait to be, and then those of the open block.
    """

    def __init__(
        self, style: MarkdownStyle, turn_id: int = 0, budget: RenderBudget | None = None
    ) -> None:
        """`budget` is shared by the texts of a view; without one all is rendered."""
        self._style = style
        self._turn_id = turn_id
        self._budget = budget
        self._width = 0
        self._n_skipped_code_blocks = 0
        # Which token wrote each character; None: that is not shown.
        self._classes: VisibleClasses | None = None
        self._guess = NO_GUESS
        # The finished blocks, and their lines at `_width`.
        self._finished_blocks: list[str] = []
        self._starts: list[int] = [0]  # Of each in the source, and of the open block.
        self._lines: list[SegmentLine] = []
        self._classed_lines: dict[int, list[SegmentLine]] = {}
        """The lines of finished blocks that were seen, styled by token classes."""
        self._tops: list[int] = []  # The first line of each finished block.
        self._n_rendered = 0  # Number of finished blocks in `_lines`.
        self._n_code_blocks = 0  # In `_lines`.
        self._uncoloured: list[UncolouredBlock] = []
        # The rows of the finished blocks after them; None: to be made again.
        self._waiting_lines: list[SegmentLine] | None = None
        self._waiting_tops: list[int] = []
        self._waiting_rows: list[CharacterRows] = []
        self._block_in_work: UnrenderedBlock | None = None
        # The last block, which may still change, and its lines.
        self._tail = ""
        self._n_parsed = 0  # Characters of `_tail` that were parsed to find its end.
        self._open_lines: list[SegmentLine] | None = None
        # The lines of the first `_n_kept` characters of `_tail`.
        self._kept_lines: list[SegmentLine] = []
        self._n_kept = 0

    def skip_code_blocks(self, number: int) -> None:
        """The answer has so many code blocks before the text that is written."""
        self._n_skipped_code_blocks = number
        self._discard_rendered()

    def count_code_blocks(self) -> int:
        """Those of the answer up to here, when the text is finished."""
        own = sum(_count_fences(block) for block in self._finished_blocks)
        return self._n_skipped_code_blocks + own

    def write(self, text: str) -> None:
        self._tail += text
        self._open_lines = None
        if "\n" not in text:
            return
        has_grown = len(self._tail) - self._n_parsed > self._n_parsed // 4
        if has_grown and (len(text) > _MAX_WRITTEN_AT_ONCE or self._is_tail_long):
            self._finish_sections()
        if self._is_tail_long:  # It takes too long to parse.
            return
        is_short = self._n_parsed <= _MAX_REDRAWN_CHARACTERS
        end = self._tail[-len(text) - 3 :]
        if is_short or has_grown or "```" in end or "~~~" in end:
            self._finish_blocks()

    @property
    def _is_tail_long(self) -> bool:
        if len(self._tail) > _MAX_PARSED_COST:
            return True
        return _render_cost(self._tail) > _MAX_PARSED_COST

    def _finish_sections(self) -> None:
        """As `_finish_blocks` without a parse, of a text of any length."""
        *sections, self._tail = _split_sections(self._tail)
        self._n_parsed = len(self._tail) if self._is_tail_long else 0
        if sections:
            self._add_finished(*sections)
            self._discard_open_lines()

    def _add_finished(self, *blocks: str) -> None:
        for block in blocks:
            self._finished_blocks.append(block)
            self._starts.append(self._starts[-1] + len(block))
        self._waiting_lines = None

    def finish(self) -> None:
        """The last block is complete, too."""
        if self._tail.strip():
            if self._is_tail_long:
                self._finish_sections()
            self._add_finished(self._tail)
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
            tail_end = self._starts[-1] + len(self._tail)
            for start, end in pairwise(edges):
                self._add_finished("\n".join(lines[start:end]) + "\n")
            tail = "\n".join(lines[starts[-1] :])
            # Blank lines before the first block belong to none.
            self._starts[-1] = tail_end - len(tail)
            self._tail = tail
            self._kept_lines = []
            self._n_kept = 0
        self._n_parsed = len(self._tail)

    def restyle(self, style: MarkdownStyle) -> None:
        self._style = style
        self._discard_rendered()

    def show_classes(self, classes: VisibleClasses | None) -> None:
        """Styles each character by the class of the token that wrote it; None: none."""
        if classes is not self._classes:
            self._classes = classes
            self._guess = NO_GUESS
            self._classed_lines.clear()
            self._discard_open_lines()

    def show_guess(self, guess: LiveGuess) -> None:
        """Draws a guess with the text, of which it is no part, if classes are shown."""
        if self._classes is not None and guess != self._guess:
            self._guess = guess
            self._open_lines = None

    def _discard_rendered(self) -> None:
        self._classed_lines.clear()
        self._lines = []
        self._tops = []
        self._n_rendered = 0
        self._n_code_blocks = self._n_skipped_code_blocks
        self._uncoloured = []
        self._waiting_lines = None
        self._block_in_work = None
        self._discard_open_lines()

    def _discard_open_lines(self) -> None:
        self._open_lines = None
        self._kept_lines = []
        self._n_kept = 0

    def height(self, width: int) -> int:
        if width != self._width:
            self._width = width
            self._discard_rendered()
        while self._n_rendered < len(self._finished_blocks):
            source = self._finished_blocks[self._n_rendered]
            cost = _render_cost(source)
            if self._budget is not None and not self._budget.spend(cost):
                break
            self._render_finished_block(source)
        if self._waiting_lines is None:
            self._make_waiting_rows()
        if self._open_lines is None:
            lines: list[SegmentLine] = []
            if self._tail.strip() or self._guess.follows.strip():
                lines = self._render_open_block()
            self._open_lines = self._with_blank_line(lines)
        return self._n_finished_lines + len(self._open_lines)

    @property
    def _n_finished_lines(self) -> int:
        assert self._waiting_lines is not None, "call height() first"
        return len(self._lines) + len(self._waiting_lines)

    def _make_waiting_rows(self) -> None:
        """Plain rows for the finished blocks that are not rendered yet."""
        self._waiting_lines = []
        self._waiting_tops = []
        self._waiting_rows = []
        for source in self._finished_blocks[self._n_rendered :]:
            if self._n_finished_lines:
                self._waiting_lines.append([])
            rows = CharacterRows(source.strip("\n"), self._width)
            self._waiting_tops.append(self._n_finished_lines)
            self._waiting_rows.append(rows)
            self._waiting_lines += [[Segment(row)] for row in rows.rows]

    def take_unrendered(self) -> UnrenderedBlock | None:
        """The first block that waits to be rendered, unless a thread has it already.

        One at a time, in order: a block's code has the numbers after those before it.
        """
        if self._block_in_work is not None or not self._waiting_rows:
            return None
        block = UnrenderedBlock(
            number=self._n_rendered,
            source=self._finished_blocks[self._n_rendered],
            width=self._width,
            style=self._style,
            blocks_before=(self._turn_id, self._n_code_blocks),
        )
        self._block_in_work = block
        return block

    def show_rendered(self, rendered: RenderedBlock) -> MovedLines | None:
        """Replaces the plain rows of a block; None if it was made anew meanwhile."""
        if rendered.block is not self._block_in_work:
            return None
        self._block_in_work = None
        if rendered.block.number != self._n_rendered:  # A frame has rendered it.
            return MovedLines(0, 0)
        old_end = self._n_finished_lines
        if len(self._waiting_tops) > 1:
            old_end = self._waiting_tops[1]
        self._append_rendered(rendered.lines, rendered.n_code_blocks)
        self._make_waiting_rows()
        new_end = self._n_finished_lines
        if self._waiting_tops:
            new_end = self._waiting_tops[0]
        self._discard_open_lines()
        return MovedLines(old_end, new_end - old_end)

    def _append_rendered(self, lines: list[SegmentLine], n_code_blocks: int) -> None:
        self._lines += self._with_blank_line(lines, before=len(self._lines))
        self._tops.append(len(self._lines) - len(lines))
        self._n_rendered += 1
        self._n_code_blocks = n_code_blocks
        self._waiting_lines = None

    def _render_finished_block(self, source: str) -> None:
        """Appends its lines; if it has code, that is coloured later."""
        n_code_blocks_before = self._n_code_blocks
        before = (self._turn_id, n_code_blocks_before)
        lines, n_code_blocks = _render_section(source, self._width, self._style, before)
        self._append_rendered(lines, n_code_blocks)
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

    def _with_blank_line(
        self, lines: list[SegmentLine], before: int | None = None
    ) -> list[SegmentLine]:
        """`before`: the number of lines above; without it those of finished blocks."""
        n_above = self._n_finished_lines if before is None else before
        return [[], *lines] if n_above and lines else lines

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
            self._classed_lines.pop(self._block_at(block.first_line), None)

    def _render_open_block(self) -> list[SegmentLine]:
        """The lines of a long block are kept up to its last word; the end is rendered."""
        end_of_tail = self._tail[self._n_kept :]
        is_long = len(end_of_tail) > _MAX_REDRAWN_CHARACTERS
        if is_long or _render_cost(end_of_tail) > _MAX_REDRAWN_COST:
            start = self._n_kept
            end = max(self._tail.rfind("\n", start), self._tail.rfind(" ", start)) + 1
            if end > start:
                self._kept_lines += self._render_open_part(start, end)
                self._n_kept = end
        open_text = self._with_guess(self._n_kept)
        open_lines = self._render_open_text(open_text, is_first=self._n_kept == 0)
        return [*self._kept_lines, *open_lines]

    def _render_open_part(self, start: int, end: int) -> list[SegmentLine]:
        text = OpenText(self._tail[start:end], self._class_runs(start, end))
        return self._render_open_text(text, is_first=start == 0)

    def _class_runs(self, start: int, end: int) -> tuple[ClassRun, ...]:
        """Of a part of the tail; empty if classes are not shown."""
        if self._classes is None:
            return ()
        first = self._starts[-1]
        return tuple(self._classes.slice(first + start, first + end))

    def _with_guess(self, start: int) -> OpenText:
        """The tail from `start` on. What was rejected is before the model's own token."""
        guess = self._guess
        end = len(self._tail)
        parts = [self._tail[start:]]
        runs = [*self._class_runs(start, end)]
        inserted: list[range] = []
        own = end - guess.n_own
        if guess.rejected and own >= start:
            parts = [self._tail[start:own], guess.rejected, self._tail[own:]]
            runs = [
                *self._class_runs(start, own),
                # A line through the blank before a word would look like a dash.
                ClassRun(guess.n_rejected_blanks, None),
                ClassRun(len(guess.rejected) - guess.n_rejected_blanks, "rejected"),
                *self._class_runs(own, end),
            ]
            inserted.append(range(own - start, own - start + len(guess.rejected)))
        length = sum(map(len, parts))
        if guess.follows:
            parts.append(guess.follows)
            runs.append(ClassRun(len(guess.right), "accepted"))
            runs.append(ClassRun(len(guess.unchecked), "draft"))
            inserted.append(range(length, length + len(guess.follows)))
        return OpenText("".join(parts), tuple(runs), tuple(inserted))

    def _render_open_text(
        self, shown: OpenText, *, is_first: bool
    ) -> list[SegmentLine]:
        """Styled by token classes."""
        lines = self._render_open_lines(shown.text, is_first=is_first)
        if not shown.runs:
            return lines
        return style_by_class(lines, shown.text, shown.runs, self._style.tokens)

    def _render_open_lines(self, text: str, *, is_first: bool) -> list[SegmentLine]:
        """Rows far below a table's head are plain."""
        open_block = text if is_first else self._tail
        info = _unclosed_fence_info(open_block)
        if info is not None:
            return self._render_open_code(text, info, has_label=is_first)
        is_row_of_table = not is_first and text.lstrip().startswith("|")
        is_too_long = _render_cost(text) > 2 * _MAX_REDRAWN_COST
        if is_row_of_table or is_too_long:
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
        waiting = self._waiting_at(y)
        if waiting is not None:
            return waiting
        assert self._waiting_lines is not None
        lines = [*self._lines, *self._waiting_lines, *self._open_lines]
        tops = [*self._tops, len(lines) - len(self._open_lines)]
        sources = [*self._finished_blocks[: self._n_rendered], self._tail]
        if self._open_lines and not self._open_lines[0]:
            tops[-1] += 1
        index = bisect_right(tops, y) - 1
        end = tops[index + 1] if index + 1 < len(tops) else len(lines)
        if index < self._n_rendered:  # The rows that wait are between it and the tail.
            end = min(end, len(self._lines))
        rows = [_line_text(line).rstrip() for line in lines[tops[index] : end]]
        while rows and not rows[-1]:
            rows.pop()
        if index < 0 or y >= tops[index] + len(rows):
            return SourceMap("", [""], y)
        if len(sources[index]) > _MAX_MAPPED_CHARACTERS:
            row = rows[y - tops[index]]
            return SourceMap(row, [row], y)
        if index < self._n_rendered:
            return SourceMap(sources[index].strip("\n"), rows, tops[index])
        shown = self._with_guess(0)
        n_cut = len(shown.text) - len(shown.text.lstrip("\n"))
        inserted = [
            range(max(0, part.start - n_cut), max(0, part.stop - n_cut))
            for part in shown.inserted
        ]
        return SourceMap(shown.text.strip("\n"), rows, tops[index], inserted)

    def _waiting_at(self, y: int) -> SourceMap | None:
        """Of a plain row that waits to be rendered; None if line `y` is none."""
        if not len(self._lines) <= y < self._n_finished_lines:
            return None
        index = bisect_right(self._waiting_tops, y) - 1
        if index < 0:
            return SourceMap("", [""], y)
        top = self._waiting_tops[index]
        rows = self._waiting_rows[index]
        if y - top >= len(rows.rows):
            return SourceMap("", [""], y)
        return rows.source_map(y - top).moved(top)

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._open_lines is not None, "call height() first"
        if y < len(self._lines):
            return self._line_of_finished_block(y)
        assert self._waiting_lines is not None
        if y < self._n_finished_lines:
            return self._waiting_lines[y - len(self._lines)]
        return self._open_lines[y - self._n_finished_lines]

    def _block_at(self, y: int) -> int:
        """The finished block that has line `y`; the blank line above it counts, too."""
        return bisect_right(self._tops, y) - 1

    def _line_of_finished_block(self, y: int) -> SegmentLine:
        number = self._block_at(y)
        if self._classes is None or number < 0:
            return self._lines[y]
        top = self._tops[number]
        lines = self._classed_lines.get(number)
        if lines is None:
            end = len(self._lines)
            if number + 1 < len(self._tops):
                end = self._tops[number + 1]
            source = self._finished_blocks[number]
            start = self._starts[number]
            lines = self._lines[top:end]
            if len(source) <= _MAX_MAPPED_CHARACTERS:
                runs = self._classes.slice(start, start + len(source))
                lines = style_by_class(lines, source, runs, self._style.tokens)
            self._classed_lines[number] = lines
        if y - top >= len(lines):
            return self._lines[y]
        return lines[y - top]


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
