"""Makes text from models, files and logs safe to show in a terminal."""

from __future__ import annotations

import re

_ESCAPE_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    r"|(?:\x1b[\]P^_X]|[\x9d\x90\x9e\x9f\x98])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS, …
    r"|\x1b[ -/]*[0-~]"  # two-character escapes
)
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_BIDI_CONTROLS = re.compile(r"[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def sanitize(text: str, *, multiline: bool = True) -> str:
    """Remove escape sequences, then all remaining control characters.

    Line feed and tab stay if `multiline`, else they become spaces.  Direction overrides and lone
    surrogates become U+FFFD.  No removed character can survive, in any order of input; a sequence
    split over two calls leaves only printable residue.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE_SEQUENCES.sub("", text.replace("\r\n", "\n"))
    text = _CONTROL_CHARACTERS.sub("", text)
    text = _SURROGATES.sub("\ufffd", _BIDI_CONTROLS.sub("\ufffd", text))
    return text if multiline else text.replace("\n", " ").replace("\t", " ")
