"""An error or a notice as one line for the screen."""

from __future__ import annotations

from localspec import hint_rewriting
from localspec.errors import LocalspecError
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize


def problem_text(problem: LocalspecError | Notice) -> str:
    """Message and hint; a hint names no command-line option."""
    hint = hint_rewriting.for_screen(problem.hint)
    return sanitize(f"{problem.message} {hint}", multiline=False).strip()
