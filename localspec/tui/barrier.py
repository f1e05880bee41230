"""The last look at what goes to the terminal: no control character leaves, whoever made it.

Text is cleaned where it comes in; this catches what a library makes of clean text, such as
Markdown's numeric entities.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from localspec.clean import clean


class Barrier(LineFilter):
    """Replaces what `clean` would not let through."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(_kept(text), style, control) for text, style, control in segments]


def _kept(text: str) -> str:
    """As many cells as before, so that nothing moves."""
    cleaned = clean(text, multiline=False)
    return cleaned if len(cleaned) == len(text) else cleaned.ljust(len(text))
