"""Prints lines of `report/`: on the terminal, a role is an ANSI colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from localspec.cli import global_options, terminal
from localspec.report.lines import Line, Role, Span, format_columns, plain_text
from localspec.report.token_classes import TOKEN_CLASSES
from localspec.sanitize import sanitize

_ROLE_STYLES: dict[Role, dict[str, Any]] = {
    "heading": {"bold": True},
    "strong": {"bold": True},
    "muted": {"dim": True},
    "accent": {"fg": "blue"},
    "success": {"fg": "green"},
    "warning": {"fg": "yellow"},
    "error": {"fg": "red"},
    "accepted": {"fg": "green"},
    "bonus": {"fg": "cyan"},
    "correction": {"fg": "yellow"},
    "target memory": {"fg": "blue"},
    "draft memory": {"fg": "cyan"},
    "cache memory": {"fg": "green"},
    "buffer memory": {"dim": True},
    "missing memory": {"fg": "red"},
    "free memory": {"dim": True},
    "memory of others": {"dim": True},
}
"""What `click.style` does for a role; a role without an entry is plain text."""


def render_line(line: Line, *, colour: bool) -> str:
    """The text of a line, with ANSI colours for the roles of its spans.

    The spans must be sanitized.
    """
    if not colour:
        return plain_text(line)
    return "".join(_style_text(span.text, span.role) for span in line)


def _style_text(text: str, role: Role) -> str:
    style = dict(_ROLE_STYLES.get(role, {}))
    if role in TOKEN_CLASSES:
        for attribute in TOKEN_CLASSES[role].attributes:
            # Some terminals take the code of a double underline for `not bold`.
            name = "underline" if attribute == "underline2" else attribute
            style[name] = True
    return click.style(text, **style) if style else text


def echo_line(line: Line, *, err: bool = False, colour: bool | None = None) -> None:
    """Print one line of a report; `colour`: by default where the stream takes it."""
    clean = tuple(
        Span(sanitize(span.text, multiline=False), span.role) for span in line
    )
    if colour is None:
        colour = global_options.use_colour(err=err)
    terminal.echo_styled(render_line(clean, colour=colour), err=err, colour=colour)


def echo_columns(rows: Sequence[Sequence[str]]) -> None:
    for line in format_columns(rows):
        terminal.echo(line)
