"""Markdown while it comes: finished blocks are drawn once, the last one anew.

Rich draws the blocks.  Links are shown with their addresses, as text: nothing can be clicked.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

from localspec.tui.text.look import Look
from localspec.tui.text.part import Styles

Line = list[Segment]

_BLOCKS = MarkdownIt().enable("strikethrough").enable("table")
"""As Rich reads Markdown: to find where a block ends."""


class _Code(CodeBlock):
    """Code without a ground of its own, set off by room alone."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=self.theme,
            word_wrap=True,
            padding=(0, 2),
            background_color="default",
        )


class _Markdown(Markdown):
    elements = {**Markdown.elements, "fence": _Code, "code_block": _Code}  # noqa: RUF012


@lru_cache(maxsize=8)
def _console(look: Look) -> Console:
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


def _drawn(source: str, width: int, look: Look) -> list[Line]:
    console = _console(look)
    text = _Markdown(source, code_theme=look.code, hyperlinks=False)
    lines = console.render_lines(text, console.options.update(width=width), pad=False)
    return _trimmed([[Segment(s.text, _groundless(s.style)) for s in line] for line in lines])


@lru_cache(maxsize=1024)
def _groundless(style: Style | None) -> Style | None:
    """Without a background: the screen has one."""
    if style is None or style.bgcolor is None:
        return style
    return style.without_color + Style(color=style.color)


def _trimmed(lines: list[Line]) -> list[Line]:
    """Without empty lines before and after."""
    full = [n for n, line in enumerate(lines) if any(s.text.strip() for s in line)]
    return lines[full[0] : full[-1] + 1] if full else []


class Prose:
    """Clean Markdown, appended to."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._done: list[str] = []
        self._tail = ""
        """From the last block on: it may still change."""
        self._lines: list[Line] = []
        """Of the finished blocks at `_width`."""
        self._drawn = 0
        """How many of them are drawn."""
        self._open: list[Line] | None = None
        self._width = 0

    def write(self, text: str) -> None:
        """More of it."""
        self._tail += text
        self._open = None
        if "\n" in text:
            self._settle()

    def _settle(self) -> None:
        """Blocks that another one follows are finished.

        Only whole lines are looked at: a 1 may become the next item of a list.
        """
        whole = self._tail[: self._tail.rfind("\n") + 1]
        starts = [t.map[0] for t in _BLOCKS.parse(whole) if not t.level and t.map]
        if starts and starts[-1] > 0:
            lines = self._tail.splitlines(keepends=True)
            self._done += _blocks(lines, sorted(set(starts)))
            self._tail = "".join(lines[starts[-1] :])

    def restyle(self, look: Look) -> None:
        """Other colours."""
        self._look = look
        self._forget()

    def _forget(self) -> None:
        self._lines, self._drawn, self._open = [], 0, None

    def height(self, width: int) -> int:
        if width != self._width:
            self._width = width
            self._forget()
        for source in self._done[self._drawn :]:
            self._lines += self._after_a_gap(_drawn(source, width, self._look))
        self._drawn = len(self._done)
        if self._open is None:
            self._open = self._after_a_gap(self._draw_open()) if self._tail.strip() else []
        return len(self._lines) + len(self._open)

    def _after_a_gap(self, lines: list[Line]) -> list[Line]:
        return [[], *lines] if self._lines and lines else lines

    def _draw_open(self) -> list[Line]:
        """The last block; an open fence of code without colours, which would cost too much."""
        fence = _open_fence(self._tail)
        if fence is None:
            return _drawn(self._tail, self._width, self._look)
        console = _console(self._look)
        options = console.options.update(width=max(1, self._width - 4))
        lines = console.render_lines(Text(fence.expandtabs(4)), options, pad=False)
        return [[Segment("  "), *line] for line in lines]

    def line(self, y: int, styles: Styles) -> Sequence[Segment]:
        assert self._open is not None, "asked before its height"
        if y < len(self._lines):
            return self._lines[y]
        return self._open[y - len(self._lines)]


def _blocks(lines: list[str], starts: list[int]) -> list[str]:
    """The text of each block but the last; what stands before the first belongs to it."""
    edges = [0, *starts[1:]]
    return ["".join(lines[a:b]) for a, b in pairwise(edges)]


def _open_fence(text: str) -> str | None:
    """The code so far, where the text is a fence that is not closed yet."""
    first, _, rest = text.lstrip("\n").partition("\n")
    mark = first.lstrip()[:3]
    if mark not in ("```", "~~~") or len(first) - len(first.lstrip()) > 3:
        return None
    closed = any(line.strip().startswith(mark) for line in rest.splitlines())
    return None if closed else rest.rstrip("\n")
