"""Where a terminal has no signs beside letters: the nearest one of ASCII, whoever drew it.

Glyphs.py has what we draw ourselves; this is for borders, scrollbars, and what stands in words.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_NEAREST = {
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
_TABLE = {ord(sign): letter for letter, signs in _NEAREST.items() for sign in signs}


class Lettering(LineFilter):
    """Letters of other scripts stay: there is nothing nearer."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text if text.isascii() else text.translate(_TABLE), style, control)
            for text, style, control in segments
        ]
