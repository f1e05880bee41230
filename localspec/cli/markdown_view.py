"""An answer's Markdown on a terminal, rendered while it is generated.

The last block of the text may still change: `**bold` is no markup until its end, and
each row widens its table. So the lines of that block are drawn again when they change,
and only those that differ; what is before it is final. A block that is taller than the
screen shows its end while it grows, and is written whole when the next block begins.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from markdown_it.tree import SyntaxTreeNode

from localspec.chat.markdown_parser import MARKDOWN_PARSER
from localspec.cli.word_wrap import StyledLine, StyledText, render_line, wrap
from localspec.report.lines import cell_width

_BOLD = "\x1b[1m"
_DIM = "\x1b[2m"
_ITALIC = "\x1b[3m"
_UNDERLINE = "\x1b[4m"
_STRUCK = "\x1b[9m"
_CODE = "\x1b[36m"
_ERASE_LINE = "\r\x1b[K"
_LINE_UP = "\x1b[A"
_INLINE_CODES = {"strong": _BOLD, "em": _ITALIC, "s": _STRUCK, "link": _UNDERLINE}
_MAX_RULE_CELLS = 40
_COLUMN_GAP = "  "
_RIGHT = "text-align:right"
_FRAME_SECONDS = 0.04
_FRAME_SHARE = 10
"""At most one part of so many of the time is spent on frames."""


class MarkdownView:
    """Writes Markdown to a terminal; `add` what is generated, then `finish`."""

    def __init__(
        self,
        write: Callable[[str], object],
        size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`size`: columns and rows."""
        self._write = write
        self._size = size
        self._clock = clock
        self._source = ""  # From the last block on; what is before it is written.
        self._has_written = False
        self._open_lines: list[StyledLine] = []  # As they are on the screen.
        self._drawn_size = size()
        self._next_frame_at = 0.0

    def add(self, text: str) -> None:
        self._source += text
        began = self._clock()
        if began >= self._next_frame_at:
            self._draw()
            now = self._clock()
            pause = max(_FRAME_SECONDS, _FRAME_SHARE * (now - began))
            self._next_frame_at = now + pause

    def finish(self) -> None:
        """Write all of the text; the cursor is then at the beginning of a line."""
        self._draw(is_final=True)
        self._source = ""

    def _draw(self, *, is_final: bool = False) -> None:
        columns, rows = self._size()
        blocks = SyntaxTreeNode(MARKDOWN_PARSER.parse(self._source)).children
        source_lines = self._source.split("\n")
        n_final = len(blocks) if is_final else max(0, len(blocks) - 1)
        final_lines: list[StyledLine] = []
        for block in blocks[:n_final]:
            final_lines += self._separate()
            final_lines += render_block(block, source_lines, columns, is_final=True)
        open_lines: list[StyledLine] = []
        if n_final < len(blocks):
            block = blocks[n_final]
            # The line before the block belongs to its lines until it is final.
            if self._has_written:
                open_lines.append(())
            open_lines += render_block(block, source_lines, columns, is_final=False)
            start = block.map[0] if block.map else 0
            self._source = "\n".join(source_lines[start:])
        self._paint(
            final_lines,
            open_lines[-max(1, rows - 1) :],
            is_resized=self._drawn_size != (columns, rows),
        )
        self._drawn_size = (columns, rows)

    def _separate(self) -> list[StyledLine]:
        """The blank line before a block that is not the first."""
        is_first = not self._has_written
        self._has_written = True
        return [] if is_first else [()]

    def _paint(
        self,
        final_lines: list[StyledLine],
        open_lines: list[StyledLine],
        *,
        is_resized: bool,
    ) -> None:
        """Replace the open lines on the screen by these.

        The cursor is behind the last open line. Without open lines it is at the
        beginning of a new line.

        For example, `one` and `tw` are open. To show `one` and `two`, only `o` is
        written. To show `one` and `2`, the second line is erased and written again. If
        `one` and `two` are final and `three` is open, `o`, a new line and `three` are
        written.
        """
        before = self._open_lines
        lines = final_lines + open_lines
        out = ""
        if is_resized and before:  # The terminal has moved them: they stay there.
            out = "\n"
            before = []
        n_same = 0
        for old, new in zip(before, lines, strict=False):
            if old != new:
                break
            n_same += 1
        if n_same == len(lines) and n_same < len(before) and open_lines:
            n_same -= 1  # The last line is written again: the cursor belongs behind it.
        n_changed = len(before) - n_same
        addition = None
        if n_changed == 1 and n_same < len(lines):
            addition = _find_addition(before[n_same], lines[n_same])
        if addition is not None:  # The usual case: the last line has grown.
            out += render_line(addition)
            n_same += 1
            if n_same < len(lines):
                out += "\n"
        elif n_changed:
            # From below: all of them are empty before the first is written.
            out += _ERASE_LINE + (_LINE_UP + _ERASE_LINE) * (n_changed - 1)
        elif before and n_same < len(lines):
            out += "\n"
        out += "\n".join(render_line(line) for line in lines[n_same:])
        is_at_line_start = n_same == len(lines) and n_changed > 0 and addition is None
        if lines and not open_lines and not is_at_line_start:
            out += "\n"
        self._open_lines = open_lines
        if out:
            self._write(out)


def _find_addition(before: StyledLine, line: StyledLine) -> StyledLine | None:
    """What makes `before` the `line` if it is written behind it, if anything does."""
    if not before:
        return line
    n = len(before) - 1
    last = before[n]
    if len(line) <= n or line[:n] != before[:n]:
        return None
    if line[n].codes != last.codes or not line[n].text.startswith(last.text):
        return None
    return (StyledText(line[n].text[len(last.text) :], last.codes), *line[n + 1 :])


def render_block(
    node: SyntaxTreeNode, source_lines: Sequence[str], width: int, *, is_final: bool
) -> list[StyledLine]:
    """The lines of a block, at most `width` cells wide.

    A line of code is not broken once it is final: so it can be copied.
    """
    return list(_BlockRenderer(source_lines, is_final).render(node, width))


class _BlockRenderer:
    def __init__(self, source_lines: Sequence[str], is_final: bool) -> None:
        self._source_lines = source_lines
        self._is_final = is_final

    def render(self, node: SyntaxTreeNode, width: int) -> Iterator[StyledLine]:
        if node.type in ("fence", "code_block"):
            yield from self._render_code(node, width)
        elif node.type == "heading":
            yield from wrap(_inline_parts(node.children[0], _BOLD), width)
        elif node.type in ("bullet_list", "ordered_list"):
            yield from self._render_list(node, width)
        elif node.type == "blockquote":
            bar = (StyledText("│ ", _DIM),)
            yield from _indent(self._render_children(node, width - 2), bar, bar)
        elif node.type == "hr":
            yield (StyledText("─" * min(width, _MAX_RULE_CELLS), _DIM),)
        elif node.type == "table":
            yield from _render_table(node, width)
        elif node.type == "inline":
            yield from wrap(_inline_parts(node), width)
        else:
            yield from self._render_children(node, width)

    def _render_children(
        self, node: SyntaxTreeNode, width: int, *, is_loose: bool = True
    ) -> Iterator[StyledLine]:
        for number, child in enumerate(node.children):
            if number and is_loose:
                yield ()
            yield from self.render(child, width)

    def _render_code(self, node: SyntaxTreeNode, width: int) -> Iterator[StyledLine]:
        """The fences are shown, dim: they say where the code ends, and its language."""
        if node.type == "fence":
            yield from wrap([StyledText(node.markup + node.info, _DIM)], width)
        for line in node.content.removesuffix("\n").split("\n"):
            text = line.replace("\t", "    ")
            if self._is_final or cell_width(text) <= width:
                yield (StyledText(text),)
            else:
                yield from _cut(text, width)
        if node.type == "fence" and self._is_closed(node):
            yield (StyledText(node.markup, _DIM),)

    def _is_closed(self, node: SyntaxTreeNode) -> bool:
        assert node.map is not None
        start, end = node.map
        last_line = self._source_lines[end - 1].lstrip("> \t")
        return end - start > 1 and last_line.startswith(node.markup)

    def _render_list(self, node: SyntaxTreeNode, width: int) -> Iterator[StyledLine]:
        is_loose = False
        for item in node.children:
            # The paragraphs of a list without blank lines are hidden.
            for child in item.children:
                if child.type == "paragraph" and not child.hidden:
                    is_loose = True
        for position, item in enumerate(node.children):
            mark = "• "
            if node.type == "ordered_list":
                mark = f"{item.info}{item.markup} "  # The number as the model wrote it.
            indent = " " * min(len(mark), max(1, width // 2))
            lines = list(
                self._render_children(item, width - len(indent), is_loose=is_loose)
            )
            if position and is_loose:
                yield ()
            yield from _indent(
                lines or [()], (StyledText(mark[: len(indent)]),), (StyledText(indent),)
            )


def _indent(
    lines: Iterable[StyledLine],
    first: StyledLine,
    others: StyledLine,
) -> Iterator[StyledLine]:
    start = first
    for line in lines:
        yield (*start, *line)
        start = others


def _cut(text: str, width: int) -> Iterator[StyledLine]:
    piece = ""
    cells = 0
    for character in text:
        size = cell_width(character)
        if piece and cells + size > width:
            yield (StyledText(piece),)
            piece = ""
            cells = 0
        piece += character
        cells += size
    yield (StyledText(piece),)


def _inline_parts(node: SyntaxTreeNode, codes: str = "") -> list[StyledText]:
    parts: list[StyledText] = []
    for child in node.children:
        if child.type in ("softbreak", "hardbreak"):
            parts.append(StyledText("\n"))
        elif child.type == "code_inline":
            parts.append(StyledText(child.content, codes + _CODE))
        elif child.children or child.type == "link":
            parts += _inline_parts(child, codes + _INLINE_CODES.get(child.type, ""))
            if child.type == "link":
                address = child.attrs.get("href", "")
                parts.append(StyledText(f" ({address})", codes + _DIM))
        else:
            parts.append(StyledText(child.content, codes))
    return parts


def _render_table(node: SyntaxTreeNode, width: int) -> Iterator[StyledLine]:
    """Columns as wide as their cells, or narrower, so that the table fits."""
    rows: list[list[list[StyledText]]] = []
    for group in node.children:
        codes = _BOLD if group.type == "thead" else ""
        for row in group.children:
            rows.append(
                [_inline_parts(cell.children[0], codes) for cell in row.children]
            )
    first_row = node.children[0].children[0]
    are_right = [_RIGHT in str(cell.attrs.get("style")) for cell in first_row.children]
    widths = _column_widths(rows, width)
    if not widths:
        for cells in rows:
            parts: list[StyledText] = []
            for cell in cells:
                if parts:
                    parts.append(StyledText(" | ", _DIM))
                parts += cell
            yield from wrap(parts, width)
        return
    for number, cells in enumerate(rows):
        yield from _render_row(cells, widths, are_right)
        if not number:
            line = _COLUMN_GAP.join("─" * column for column in widths)
            yield (StyledText(line, _DIM),)


def _render_row(
    cells: Sequence[list[StyledText]], widths: Sequence[int], are_right: Sequence[bool]
) -> Iterator[StyledLine]:
    """The lines of a row; `are_right`: whether a column ends at its right edge."""
    wrapped = [wrap(cell, column) for cell, column in zip(cells, widths, strict=False)]
    for number in range(max((len(lines) for lines in wrapped), default=0)):
        line: list[StyledText] = []
        gap = 0
        for position, lines in enumerate(wrapped):
            cell = lines[number] if number < len(lines) else ()
            rest = widths[position] - sum(cell_width(part.text) for part in cell)
            if are_right[position]:
                gap += rest
                rest = 0
            if cell and gap:
                line.append(StyledText(" " * gap))
                gap = 0
            line += cell
            gap += rest + len(_COLUMN_GAP)
        yield tuple(line)


_MIN_COLUMN_CELLS = 6


def _column_widths(
    rows: Sequence[Sequence[Sequence[StyledText]]], width: int
) -> list[int]:
    """Empty if the columns would be too narrow to read.

    The widest column gives way first. For example, columns of 30, 10 and 8 cells in a
    width of 40 become 18, 10 and 8, with two gaps of 2.
    """
    n_columns = max(len(row) for row in rows)
    widths = [1] * n_columns
    for row in rows:
        for column, cell in enumerate(row):
            text = "".join(part.text for part in cell)
            cells = min(width, cell_width(text.replace("\t", "    ")))
            widths[column] = max(widths[column], cells)
    available = width - len(_COLUMN_GAP) * (n_columns - 1)
    while sum(widths) > available:
        widest = widths.index(max(widths))
        if widths[widest] <= _MIN_COLUMN_CELLS:
            return []
        widths[widest] -= 1
    return widths
