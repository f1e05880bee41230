"""Makes text from models, files and logs safe to show in a terminal."""

from __future__ import annotations

import re

_CSI_SEQUENCE = r"\x1b\[[0-?]*[ -/]*[@-~]"  # Such as a colour.
_OSC_SEQUENCE = r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # Such as a title or a link.
_CONTROL_CHARACTER = r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]"
_REMOVED = re.compile(f"{_CSI_SEQUENCE}|{_OSC_SEQUENCE}|{_CONTROL_CHARACTER}")
_REPLACED = re.compile(r"[\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Direction overrides and lone surrogates."""


def sanitize(text: str, *, multiline: bool = True) -> str:
    """Remove control characters, and whole CSI and OSC sequences.

    Line feed and tab stay if `multiline`, else they become spaces. Direction overrides
    and lone surrogates become U+FFFD. No such character can survive, in any order of
    input; the time is linear.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _REMOVED.sub("", text)
    text = _REPLACED.sub("\ufffd", text)
    if multiline:
        return text
    return text.replace("\n", " ").replace("\t", " ")
