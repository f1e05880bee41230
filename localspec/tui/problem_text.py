"""An error or a notice as one line for the screen."""

from __future__ import annotations

from typing import Any

from textual.screen import Screen

from localspec import hint_rewriting
from localspec.errors import LocalspecError
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize


def problem_text(problem: LocalspecError | Notice) -> str:
    """Message and hint, without command-line options."""
    text = hint_rewriting.for_screen(f"{problem.message} {problem.hint}")
    return sanitize(text, multiline=False).strip()


def show_notice(screen: Screen[Any], notice: Notice) -> None:
    severity = "information" if notice.level == "info" else notice.level
    screen.notify(problem_text(notice), severity=severity, markup=False, timeout=8)
