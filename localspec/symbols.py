"""Bars, and what stands for each symbol of the output in ASCII.

An equivalent takes one cell as its symbol does, so that nothing moves.
"""

from __future__ import annotations

import codecs

_ASCII_EQUIVALENTS = {
    "-": "─━═╺╸–—·•−",
    "|": "│┃║┊▏▎▍▌▋▊▉▕",
    "+": "┌┐└┘╭╮╰╯├┤┬┴┼┏┓┗┛┳┻╋✓⁺▒",
    "#": "█▇▆▅",
    "_": "▁▂▃▄",
    "=": "▓",
    ":": "░",
    "/": "╱",
    "x": "×✗",
    "'": "‘’",
    '"': "“”„",
    "<": "←‹",
    ">": "→▸⏎⇥›",
    "^": "↑▔▀▞",
    "v": "↓▾",
    "~": "…ˢ▚≈",
}
ASCII_TRANSLATION = {
    ord(symbol): ascii_
    for ascii_, symbols in _ASCII_EQUIVALENTS.items()
    for symbol in symbols
}
ASCII_ERRORS = "localspec-ascii"
"""The error handler of a stream.

What the stream's encoding lacks becomes its equivalent in ASCII, or a question mark.
"""


def draw_bar(share: float, width: int) -> str:
    """A bar of at most `width` cells."""
    full, eighths = divmod(round(max(0.0, min(1.0, share)) * width * 8), 8)
    return "█" * full + " ▏▎▍▌▋▊▉"[eighths].strip()


def _encode_in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end].translate(ASCII_TRANSLATION)
    return missing.encode("ascii", "replace").decode(), error.end


codecs.register_error(ASCII_ERRORS, _encode_in_ascii)
