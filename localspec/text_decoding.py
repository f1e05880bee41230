"""Decodes text of files and pipes that may not be UTF-8, and says how."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

from localspec.units import count

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # Before UTF-16's, with which it begins.
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_NOT_ASCII = re.compile("[^\0-\x7f]")
_INVALID_BYTE = re.compile("[\udc80-\udcff]")
"""As "surrogateescape" decodes it."""


class DecodedText(NamedTuple):
    text: str
    note: str = ""  # How it was read, if it is not UTF-8.


def decode_text(data: bytes) -> DecodedText:
    """Decode UTF-8; else marked UTF-16 or UTF-32, damaged UTF-8, or Windows-1252.

    Raises ValueError for binary data.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if data.startswith(mark):
            return DecodedText(data.decode(encoding), f"read as {encoding}")
    if b"\0" in data:
        raise ValueError("binary data")
    try:
        return DecodedText(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        if _BINARY.search(data):
            raise
    escaped = data.decode("utf-8-sig", "surrogateescape")
    n_invalid = len(_INVALID_BYTE.findall(escaped))
    n_valid = len(_NOT_ASCII.findall(escaped)) - n_invalid
    if n_valid >= n_invalid:  # It is UTF-8 with some damage.
        text = data.decode("utf-8-sig", "replace")
        what = count(n_invalid, "invalid byte")
        return DecodedText(text, f"{what} replaced by \ufffd")
    try:
        return DecodedText(data.decode("cp1252"), "read as Windows-1252")
    except UnicodeDecodeError:
        return DecodedText(data.decode("latin-1"), "read as Latin-1")
