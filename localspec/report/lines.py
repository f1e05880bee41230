"""A line of a report: pieces of text with roles, which each front end renders itself.

The terminal (`cli/terminal.py`) turns a role into ANSI colours, the app
(`tui/text/report_content.py`) into styles of its theme, and `plain_text` drops it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

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


class Span(Struct, frozen=True):
    text: str
    role: Role = "text"


Line = tuple[Span, ...]

EMPTY_LINE: Line = ()


def make_line(text: str, role: Role = "text") -> Line:
    return (Span(text, role),)


def plain_text(line: Line) -> str:
    return "".join(span.text for span in line)


def count_cells(line: Line) -> int:
    """The width of a line whose characters take one cell each."""
    return sum(len(span.text) for span in line)
