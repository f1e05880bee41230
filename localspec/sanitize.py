"""Makes text from models, files and logs safe to show in a terminal."""

from __future__ import annotations

import re

_REMOVED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a whole CSI sequence, such as a colour
    # a whole OSC sequence, such as a title or a link
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]"  # control characters
)
_REPLACED = re.compile(r"[\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def sanitize(text: str, *, multiline: bool = True) -> str:
    """Remove control characters, and whole CSI and OSC sequences; what else the text
    says stays.

    Line feed and tab stay if `multiline`, else they become spaces. Direction overrides
    and lone surrogates become U+FFFD. No such character can survive, in any order of
    input; the time is linear.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _REPLACED.sub("\ufffd", _REMOVED.sub("", text))
    return text if multiline else text.replace("\n", " ").replace("\t", " ")
