"""Streaming Markdown: finished blocks are rendered once, the last block again at each
change.

Rich renders the blocks.  Every letter and digit is shown: a block of which Rich would drop one is
plain text.  Links show their addresses as text and cannot be clicked.
"""

from __future__ import annotations

import io
import re
import time
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
from rich.markdown import CodeBlock, Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from localspec.chat.copying import MARKDOWN_PARSER
from localspec.tui.text.blocks import StyleMap
from localspec.tui.themes import MarkdownStyle

SegmentLine = list[Segment]

_COLOURED_LANGUAGES = {
    "bash", "c", "c++", "console", "cpp", "cs", "csharp", "css", "diff", "go", "html",
    "java", "javascript", "js", "json", "kotlin", "lua", "make", "php", "py", "python",
    "python3", "rb", "rs", "ruby", "rust", "sh", "shell", "sql", "swift", "toml", "ts",
    "typescript", "xml", "yaml", "yml", "zsh",
}  # fmt: skip
"""Those of Pygments' lexers of which no single match takes long: see the tests."""
_MAX_COLOURED_CHARACTERS = 10_000
_MAX_COLOURING_SECONDS = 0.25  # Of CPU time, of which a usual text takes a tenth.
_MAX_REDRAWN_CHARACTERS = 4_000
"""Of a longer open block only the end is rendered again at each change."""
# counted anew
_LIST_NUMBER = re.compile(r"^(?:[\s>*+-]|\d+[.)]\s)*\d+[.)](?=\s|$)", re.M)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
# Punctuation may be Markdown's, or shown otherwise.
_MARKUP = re.compile(r"[\s!-/:-@\[-`{-~]+")

CodeBlocksBefore = tuple[int, int]
"""The id of the turn, and the number of code blocks before a block of its answer."""


class _BoundedLexer(Lexer):  # type: ignore[misc]
    """What another lexer finds in a limited time; the rest is plain.

    Some take quadratic time.
    """

    def __init__(self, language: str) -> None:
        super().__init__(stripnl=False, ensurenl=True)
        self._lexer = get_lexer_by_name(language, stripnl=False)

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        until = time.thread_time() + _MAX_COLOURING_SECONDS
        for start, kind, part in self._lexer.get_tokens_unprocessed(text):
            yield start, kind, part
            if time.thread_time() > until:
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


class _RichMarkdown(Markdown):
    elements = {  # noqa: RUF012
        **Markdown.elements,
        "fence": _PlainCodeBlock,
        "code_block": _PlainCodeBlock,
    }

    def __init__(
        self,
        source: str,
        look: MarkdownStyle,
        before: CodeBlocksBefore,
        *,
        coloured: bool,
    ) -> None:
        self._look, self._turn_id, self.n_code_blocks = look, *before
        self._coloured = coloured
        super().__init__("", code_theme=look.code_theme, hyperlinks=False)
        self.parsed = MARKDOWN_PARSER.parse(source)

    def find_lexer(self, token: Token) -> str:
        language = token.info.strip().partition(" ")[0].lower()
        can_colour = self._coloured and len(token.content) <= _MAX_COLOURED_CHARACTERS
        return language if can_colour and language in _COLOURED_LANGUAGES else "text"

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
    """The lines without blank ones around them; the number of code blocks up to its
    end.
    """
    console = _build_console(look)
    text = _RichMarkdown(source, look, before, coloured=coloured)
    lines = console.render_lines(text, console.options.update(width=width), pad=False)
    if not _has_every_letter(source, lines):
        lines = _render_plain(source, width, look)
    plain = [
        [Segment(s.text, _without_background(s.style)) for s in line] for line in lines
    ]
    filled = [n for n, line in enumerate(plain) if any(s.text.strip() for s in line)]
    return plain[filled[0] : filled[-1] + 1] if filled else [], text.n_code_blocks


def _has_every_letter(source: str, lines: list[SegmentLine]) -> bool:
    shown = "".join(segment.text for line in lines for segment in line)
    letters = Counter(_MARKUP.sub("", _LIST_NUMBER.sub("", source)))
    return not letters - Counter(shown)


def _render_plain(text: str, width: int, look: MarkdownStyle) -> list[SegmentLine]:
    console = _build_console(look)
    options = console.options.update(width=max(2, width))  # a wide character's cells
    return console.render_lines(
        Text(text.rstrip("\n").expandtabs(4)), options, pad=False
    )


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
        look = self.source, self.width, self.style, self.blocks_before
        return _render_block(*look, coloured=True)[0]


class MarkdownText:
    """Markdown that grows at the end; the text must be sanitized."""

    def __init__(self, style: MarkdownStyle, turn_id: int = 0) -> None:
        self._style, self._turn_id = style, turn_id
        self._finished_blocks: list[str] = []
        self._tail = ""  # The last block, which may still change.
        self._lines: list[SegmentLine] = []  # The finished blocks at `_width`.
        self._n_rendered = 0  # Number of finished blocks in `_lines`.
        self._n_code_blocks = 0  # In `_lines`.
        self._open_lines: list[SegmentLine] | None = None
        # Of the first `_n_kept` characters of `_tail`.
        self._kept_lines: list[SegmentLine] = []
        self._n_kept = 0
        self._n_parsed = 0  # Characters of `_tail` that were parsed to find its end.
        self._uncoloured: list[UncolouredBlock] = []
        self._width = 0

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
        self._tail, self._open_lines, self._kept_lines, self._n_kept = "", None, [], 0

    def _finish_blocks(self) -> None:
        """Moves all blocks but the last from the tail to the finished blocks.

        Only whole lines count: an incomplete "1" may become the next item of a list.
        """
        lines = self._tail.split("\n")
        whole = lines[:-1]
        parsed = MARKDOWN_PARSER.parse("\n".join([*whole, ""]))
        tokens = [token for token in parsed if not token.level and token.map]
        starts = [token.map[0] for token in tokens if token.map]
        is_fence = bool(tokens) and tokens[-1].type == "fence"
        if is_fence and _unclosed_fence_info("\n".join(whole[starts[-1] :])) is None:
            starts.append((tokens[-1].map or [0, 0])[1])  # whatever follows
        if starts and starts[-1] > 0:
            edges = [0, *sorted(set(starts))[1:]]
            self._finished_blocks += [
                "\n".join(lines[a:b]) + "\n" for a, b in pairwise(edges)
            ]
            self._tail = "\n".join(lines[starts[-1] :])
            self._kept_lines, self._n_kept = [], 0
        self._n_parsed = len(self._tail)

    def restyle(self, style: MarkdownStyle) -> None:
        self._style = style
        self._discard_rendered()

    def _discard_rendered(self) -> None:
        self._lines, self._n_rendered, self._n_code_blocks, self._open_lines = (
            [],
            0,
            0,
            None,
        )
        self._kept_lines, self._n_kept, self._uncoloured = [], 0, []

    def height(self, width: int) -> int:
        if width != self._width:
            self._width = width
            self._discard_rendered()
        for source in self._finished_blocks[self._n_rendered :]:
            before = self._turn_id, self._n_code_blocks
            lines, self._n_code_blocks = _render_block(
                source, width, self._style, before
            )
            first = len(self._lines) + bool(self._lines and lines)
            self._lines += self._with_blank_line(lines)
            if self._n_code_blocks > before[1]:
                block = UncolouredBlock(
                    source, width, self._style, before, first, len(lines)
                )
                self._uncoloured.append(block)
        self._n_rendered = len(self._finished_blocks)
        if self._open_lines is None:
            lines = self._render_open_block() if self._tail.strip() else []
            self._open_lines = self._with_blank_line(lines)
        return len(self._lines) + len(self._open_lines)

    def _with_blank_line(self, lines: list[SegmentLine]) -> list[SegmentLine]:
        return [[], *lines] if self._lines and lines else lines

    def take_uncoloured(self) -> list[UncolouredBlock]:
        """The blocks that have become ready to be coloured since the last call."""
        blocks, self._uncoloured = self._uncoloured, []
        return blocks

    def colour(self, block: UncolouredBlock, lines: list[SegmentLine]) -> None:
        """Has no effect if the text was wrapped or styled anew meanwhile."""
        is_current = (block.width, block.style) == (self._width, self._style)
        if is_current and len(lines) == block.n_lines:
            self._lines[block.first_line : block.first_line + block.n_lines] = lines

    def _render_open_block(self) -> list[SegmentLine]:
        if len(self._tail) - self._n_kept > _MAX_REDRAWN_CHARACTERS:
            start = self._n_kept
            end = max(self._tail.rfind("\n", start), self._tail.rfind(" ", start)) + 1
            self._kept_lines += self._render_open_part(start, max(start, end))
            self._n_kept = max(start, end)
        return [
            *self._kept_lines,
            *self._render_open_part(self._n_kept, len(self._tail)),
        ]

    def _render_open_part(self, start: int, end: int) -> list[SegmentLine]:
        """An open code fence has no syntax colours, and rows far below a table's head
        are plain.
        """
        text, look, width = self._tail[start:end], self._style, self._width
        if (info := _unclosed_fence_info(self._tail)) is not None:
            lines: list[SegmentLine] = []
            if not start:
                text = text.lstrip("\n").partition("\n")[2]
                label = _code_label(self._turn_id, self._n_code_blocks + 1, info, look)
                lines.append(list(label.render(_build_console(look))))
            code = _render_plain(text, width - 4, look) if text.strip("\n") else []
            return lines + [[Segment("  "), *line] for line in code]
        if start and text.lstrip().startswith("|"):
            return _render_plain(text, width, look)
        return _render_block(text, width, look, (self._turn_id, self._n_code_blocks))[0]

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._open_lines is not None, "call height() first"
        if y < len(self._lines):
            return self._lines[y]
        return self._open_lines[y - len(self._lines)]


def _unclosed_fence_info(text: str) -> str | None:
    """The info string of a code fence that is not closed yet; else None."""
    first, _, rest = text.lstrip("\n").partition("\n")
    opening = _FENCE.fullmatch(first)
    if opening is None or ("`" in opening[1] and "`" in opening[2]):
        return None
    closing = re.compile(rf" {{0,3}}{opening[1]}{opening[1][0]}*[ \t]*")
    is_closed = any(closing.fullmatch(line) for line in rest.split("\n"))
    return None if is_closed else opening[2].strip()
