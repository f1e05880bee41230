"""Prints lines of `report/`: on the terminal, a role is an ANSI colour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from localspec.cli import global_options, terminal
from localspec.cli.word_wrap import StyledText
from localspec.cli.word_wrap import render_line as render_styled_line
from localspec.report.lines import Line, Role, Span, format_columns, plain_text
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
    style = _ROLE_STYLES.get(role)
    return click.style(text, **style) if style else text


def style_codes(role: Role) -> str:
    """The ANSI codes that turn the style of a role on; empty for plain text."""
    style = _ROLE_STYLES.get(role)
    return click.style("", **style, reset=False) if style else ""


def styled_parts(line: Line, *, colour: bool) -> list[StyledText]:
    """The spans, with ANSI codes if `colour`. The spans must be sanitized."""
    if not colour:
        return [StyledText(span.text) for span in line]
    return [StyledText(span.text, style_codes(span.role)) for span in line]


def echo_line(line: Line, *, err: bool = False, colour: bool | None = None) -> None:
    """Print one line of a report; `colour`: by default where the stream takes it."""
    clean = _sanitize(line)
    if colour is None:
        colour = global_options.use_colour(err=err)
    terminal.echo_styled(render_line(clean, colour=colour), err=err, colour=colour)


def echo_wrapped_line(line: Line, *, err: bool = False, colour: bool) -> None:
    """Like `echo_line`, but a terminal gets lines that are broken between words."""
    parts = styled_parts(_sanitize(line), colour=colour)
    for wrapped in terminal.wrap_for_stream(parts, err=err):
        terminal.echo_styled(render_styled_line(wrapped), err=err, colour=colour)


def _sanitize(line: Line) -> Line:
    return tuple(Span(sanitize(span.text, multiline=False), span.role) for span in line)


def echo_columns(rows: Sequence[Sequence[str]]) -> None:
    for line in format_columns(rows):
        terminal.echo(line)
