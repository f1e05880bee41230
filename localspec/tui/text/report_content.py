"""Renders the lines of a report with the styles of the app's theme."""

from __future__ import annotations

from textual.content import Content

from localspec.report.lines import Line, Role
from localspec.report.token_classes import TOKEN_CLASSES

_COLOURS: dict[Role, str] = {
    "text": "",
    "heading": "bold",
    "strong": "bold",
    "muted": "$muted",
    "accent": "$accent",
    "success": "$success",
    "warning": "$warning",
    "error": "$error",
    "accepted": "$accepted",
    "bonus": "$bonus",
    "correction": "$corrected",
    "plain": "",
    "target memory": "$accent",
    "draft memory": "$bonus",
    "cache memory": "$accepted",
    "buffer memory": "$muted",
    "missing memory": "$error",
    "free memory": "$muted",
    "memory of others": "$muted",
}


def role_colour(role: Role) -> str:
    """For what is no text of that role but means the same, such as a bar."""
    return _COLOURS[role]


def role_style(role: Role) -> str:
    """The style of a role, as Textual's `Content` takes it."""
    style = _COLOURS[role]
    if role in TOKEN_CLASSES:
        for attribute in TOKEN_CLASSES[role].attributes:
            if attribute != "overline":  # which Textual cannot draw
                style += f" {attribute}"
    return style.strip()


def to_content(line: Line) -> Content:
    """The spans must be sanitized."""
    return Content.assemble(
        *((span.text, role_style(span.role)) for span in line if span.text)
    )
