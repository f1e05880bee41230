"""Streaming Markdown: finished blocks are rendered once, the last block again at each change.

Rich renders the blocks.  Links show their addresses as text and cannot be clicked.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from localspec.tui.text.blocks import StyleMap
from localspec.tui.themes import MarkdownStyle

SegmentLine = list[Segment]

_BLOCK_PARSER = MarkdownIt().enable("strikethrough").enable("table")
"""The same parser settings as Rich's, to find where a block ends."""


class _PlainCodeBlock(CodeBlock):
    """Code without a background, only indented, below its number, which a click copies."""

    label = Text()

    @classmethod
    def create(cls, markdown: Markdown, token: Token) -> _PlainCodeBlock:
        block = cls(token.info.partition(" ")[0] or "text", str(markdown.code_theme))
        assert isinstance(markdown, _RichMarkdown)
        block.label = markdown.next_label(block.lexer_name)
        return block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.label
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=self.theme,
            word_wrap=True,
            padding=(0, 2),
            background_color="default",
        )


class _RichMarkdown(Markdown):
    elements = {**Markdown.elements, "fence": _PlainCodeBlock, "code_block": _PlainCodeBlock}  # noqa: RUF012

    def __init__(self, source: str, look: MarkdownStyle, blocks_before: CodeBlocksBefore) -> None:
        self._look, self._turn_id, self.n_code_blocks = look, *blocks_before
        super().__init__(source, code_theme=look.code_theme, hyperlinks=False)

    def next_label(self, language: str) -> Text:
        self.n_code_blocks += 1
        return _code_label(self._turn_id, self.n_code_blocks, language, self._look)


CodeBlocksBefore = tuple[int, int]
"""The id of the turn, and the number of code blocks before a block of its answer."""


def _code_label(turn_id: int, number: int, language: str, look: MarkdownStyle) -> Text:
    """`1 python`; a click copies the code."""
    action = Style(meta={"@click": f"screen.copy_code({turn_id}, {number})"})
    name = "" if language == "text" else f" {language}"
    return Text(f"  {number}{name}", Style(color=look.muted) + action)


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
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if look.ascii_only else "utf-8")
    return Console(
        file=file,
        theme=Theme(styles),
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _render_block(
    source: str, width: int, look: MarkdownStyle, blocks_before: CodeBlocksBefore
) -> tuple[list[SegmentLine], int]:
    """The lines without blank ones around them; the number of code blocks up to its end."""
    console = _build_console(look)
    text = _RichMarkdown(source, look, blocks_before)
    lines = console.render_lines(text, console.options.update(width=width), pad=False)
    plain = [[Segment(s.text, _without_background(s.style)) for s in line] for line in lines]
    filled = [n for n, line in enumerate(plain) if any(s.text.strip() for s in line)]
    return plain[filled[0] : filled[-1] + 1] if filled else [], text.n_code_blocks


@lru_cache(maxsize=1024)
def _without_background(style: Style | None) -> Style | None:
    if style is None or style.bgcolor is None:
        return style
    return style.without_color + Style(color=style.color)


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
        self._width = 0

    def write(self, text: str) -> None:
        self._tail += text
        self._open_lines = None
        if "\n" in text:
            self._finish_blocks()

    def _finish_blocks(self) -> None:
        """Moves all blocks but the last from the tail to the finished blocks.

        Only whole lines count: an incomplete "1" may become the next item of a list.
        """
        whole_lines = self._tail[: self._tail.rfind("\n") + 1]
        starts = [t.map[0] for t in _BLOCK_PARSER.parse(whole_lines) if not t.level and t.map]
        if starts and starts[-1] > 0:
            lines = self._tail.splitlines(keepends=True)
            edges = [0, *sorted(set(starts))[1:]]
            self._finished_blocks += ["".join(lines[a:b]) for a, b in pairwise(edges)]
            self._tail = "".join(lines[starts[-1] :])

    def restyle(self, style: MarkdownStyle) -> None:
        self._style = style
        self._discard_rendered()

    def _discard_rendered(self) -> None:
        self._lines, self._n_rendered, self._n_code_blocks, self._open_lines = [], 0, 0, None

    def height(self, width: int) -> int:
        if width != self._width:
            self._width = width
            self._discard_rendered()
        for source in self._finished_blocks[self._n_rendered :]:
            before = self._turn_id, self._n_code_blocks
            lines, self._n_code_blocks = _render_block(source, width, self._style, before)
            self._lines += self._with_blank_line(lines)
        self._n_rendered = len(self._finished_blocks)
        if self._open_lines is None:
            self._open_lines = (
                self._with_blank_line(self._render_open_block()) if self._tail.strip() else []
            )
        return len(self._lines) + len(self._open_lines)

    def _with_blank_line(self, lines: list[SegmentLine]) -> list[SegmentLine]:
        return [[], *lines] if self._lines and lines else lines

    def _render_open_block(self) -> list[SegmentLine]:
        """The last block; an open code fence has no syntax colours, which would cost too much."""
        fence, before = _unclosed_fence(self._tail), (self._turn_id, self._n_code_blocks)
        if fence is None:
            return _render_block(self._tail, self._width, self._style, before)[0]
        console = _build_console(self._style)
        options = console.options.update(width=max(1, self._width - 4))
        language, code = fence
        label = _code_label(self._turn_id, self._n_code_blocks + 1, language or "text", self._style)
        lines = console.render_lines(Text(code.expandtabs(4)), options, pad=False)
        code_lines = [[Segment("  "), *line] for line in lines]
        return [*console.render_lines(label, options, pad=False), *code_lines]

    def line(self, y: int, styles: StyleMap) -> Sequence[Segment]:
        assert self._open_lines is not None, "call height() first"
        if y < len(self._lines):
            return self._lines[y]
        return self._open_lines[y - len(self._lines)]


def _unclosed_fence(text: str) -> tuple[str, str] | None:
    """The language and the code so far of a code fence that is not closed yet; else None."""
    first, _, rest = text.lstrip("\n").partition("\n")
    mark = first.lstrip()[:3]
    if mark not in ("```", "~~~") or len(first) - len(first.lstrip()) > 3:
        return None
    closed = any(line.strip().startswith(mark) for line in rest.splitlines())
    return None if closed else (first.strip("`~ ").partition(" ")[0], rest.rstrip("\n"))
