"""Symbols of the output, and what stands for each in ASCII: one cell, so that nothing
moves.
"""

from __future__ import annotations

import codecs
import typing

if typing.TYPE_CHECKING:
    from localspec.protocol.events import TokenClass

TOKEN_MARKS: dict[TokenClass, str] = {
    "accepted": "ˢ",
    "bonus": "⁺",
    "correction": "▔",
    "plain": "·",
}
MEMORY_PARTS = "█▓▒▚▞░"  # In the order of `DeviceFit.memory_parts`.
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
    "~": "…ˢ▚",
}
ASCII_TRANSLATION = {
    ord(symbol): ascii_
    for ascii_, symbols in _ASCII_EQUIVALENTS.items()
    for symbol in symbols
}
ASCII_ERRORS = "localspec-ascii"
"""The error handler of a stream: equivalents in ASCII for what its encoding lacks, else
?.
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
