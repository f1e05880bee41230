"""Decodes text, and makes text from models, files and logs safe to show in a terminal."""

from __future__ import annotations

import re
from contextlib import suppress

_REMOVED = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a whole CSI sequence, such as a colour
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # a whole OSC sequence, such as a title or a link
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]"  # control characters
)
_REPLACED = re.compile(r"[\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def decode(data: bytes) -> tuple[str, str]:
    """The text of a file or pipe, and its encoding: UTF-8, UTF-16 with a mark, or Windows-1252.

    Raises ValueError if it can be none of them.
    """
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16"), "UTF-16"
    if b"\0" in data:
        raise ValueError("binary data")
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig"), "UTF-8"
    if sum(byte > 127 for byte in data) * 3 > len(data):  # another alphabet
        raise ValueError("unknown encoding")
    return data.decode("cp1252", "replace"), "Windows-1252"


def sanitize(text: str, *, multiline: bool = True) -> str:
    """Remove control characters, and whole CSI and OSC sequences; what else the text says stays.

    Line feed and tab stay if `multiline`, else they become spaces. Direction overrides and lone
    surrogates become U+FFFD. No such character can survive, in any order of input; the time is
    linear.
    """
    if text.isascii() and text.isprintable():
        return text
    text = _REPLACED.sub("\ufffd", _REMOVED.sub("", text))
    return text if multiline else text.replace("\n", " ").replace("\t", " ")
