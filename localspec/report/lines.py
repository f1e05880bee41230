"""A line of a report: pieces of text with roles, which each front end renders itself.

The terminal (`cli/report_printer.py`) turns a role into ANSI colours, the app
(`tui/text/report_content.py`) into styles of its theme, and `plain_text` drops it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from localspec.sanitize import sanitize

Role = Literal[
    "text",
    "heading",
    "strong",
    "muted",
    "accent",
    "success",
    "warning",
    "error",
    # The classes of tokens; `token_classes.py` has the rest of their look.
    "accepted",
    "bonus",
    "correction",
    "plain",
    # The parts of a memory bar.
    "target memory",
    "draft memory",
    "cache memory",
    "buffer memory",
    "missing memory",
    "free memory",
    "memory of others",
]


class Span(NamedTuple):
    text: str
    role: Role = "text"


Line = tuple[Span, ...]

EMPTY_LINE: Line = ()
_ONE_CELL = "\xad\ufe0f"
"""The soft hyphen, and the selector that makes a narrow symbol a wide emoji."""


def make_line(text: str, role: Role = "text") -> Line:
    return (Span(text, role),)


def plain_text(line: Line) -> str:
    return "".join(span.text for span in line)


def count_cells(line: Line) -> int:
    """The width of a line whose characters take one cell each."""
    return sum(len(span.text) for span in line)


def format_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align rows into columns by the width of their characters.  Cells are sanitized."""
    cleaned = [[sanitize(cell, multiline=False) for cell in row] for row in rows]
    n_columns = max((len(row) for row in cleaned), default=0)
    widths = [0] * n_columns
    for row in cleaned:
        for column, cell in enumerate(row):
            widths[column] = max(widths[column], cell_width(cell))
    for row in cleaned:
        cells = [
            cell + " " * (width - cell_width(cell))
            for cell, width in zip(row, widths, strict=False)
        ]
        yield "  ".join(cells).rstrip()


def cell_width(text: str) -> int:
    """In terminal cells: `模型` takes four."""
    if text.isascii():
        return len(text)
    width = 0
    for character in text:
        if unicodedata.east_asian_width(character) in ("W", "F"):
            width += 2
        elif unicodedata.category(character) not in ("Mn", "Me", "Cf"):
            width += 1
    return width
