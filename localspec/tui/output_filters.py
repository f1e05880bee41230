"""The last look at what goes to the terminal: no control character leaves, whoever made it.

Text is cleaned where it comes in; this catches what a library makes of clean text, such as
Markdown's numeric entities.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from localspec.sanitize import sanitize


class ControlCharacterFilter(LineFilter):
    """Replaces what `clean` would not let through."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [
            Segment(_replace_control_characters(text), style, control)
            for text, style, control in segments
        ]


def _replace_control_characters(text: str) -> str:
    """As many cells as before, so that nothing moves."""
    cleaned = sanitize(text, multiline=False)
    return cleaned if len(cleaned) == len(text) else cleaned.ljust(len(text))


# --- Where a terminal has no signs beside letters: the nearest one of ASCII, whoever drew it.

_ASCII_EQUIVALENTS = {
    "-": "─━═–—·•−",
    "|": "│┃║▏▎▍▌▋▊▉▕",
    "+": "┌┐└┘╭╮╰╯├┤┬┴┼",
    "#": "█▇▆▅",
    "_": "▁▂▃▄",
    "x": "×",
    "'": "‘’",
    '"': "“”„",
    "<": "←‹",
    ">": "→▸⏎⇥›",
    "^": "↑▔▀",
    "v": "↓▾",
    "~": "…",
}
"""One cell for one cell, so that nothing moves."""
_ASCII_TRANSLATION = {
    ord(sign): letter for letter, signs in _ASCII_EQUIVALENTS.items() for sign in signs
}


class AsciiFilter(LineFilter):
    """Letters of other scripts stay: there is nothing nearer."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text if text.isascii() else text.translate(_ASCII_TRANSLATION), style, control)
            for text, style, control in segments
        ]
