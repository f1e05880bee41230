"""Filters for everything the app writes to the terminal.

Text is sanitized where it enters the app; the first filter removes control characters that a
library makes of clean text, such as Markdown's numeric entities.
"""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from localspec.sanitize import sanitize


class ControlCharacterFilter(LineFilter):
    """Replaces the characters that `sanitize` removes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [  # padded, so that nothing moves
            Segment(sanitize(text, multiline=False).ljust(len(text)), style, control)
            for text, style, control in segments
        ]


_ASCII_EQUIVALENTS = {
    "-": "─━═–—·•−",
    "|": "│┃║┊▏▎▍▌▋▊▉▕",
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
"""One cell each, so that nothing moves."""
_ASCII_TRANSLATION = {
    ord(symbol): ascii_ for ascii_, symbols in _ASCII_EQUIVALENTS.items() for symbol in symbols
}


class AsciiFilter(LineFilter):
    """Replaces line-drawing and other symbols; letters of other scripts stay."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text if text.isascii() else text.translate(_ASCII_TRANSLATION), style, control)
            for text, style, control in segments
        ]
