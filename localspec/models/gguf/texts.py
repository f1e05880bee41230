"""A long array of texts in a GGUF: walked at C speed, kept as one block of bytes and offsets.

Each text stands behind its length in eight bytes.  Nearly all are shorter than 256 bytes, so seven
zero bytes follow the first of the eight: splitting at these gives the texts, each with the length
of the next one behind it, which is then checked.  What does not pass is walked one by one.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

_ZEROS = bytes(7)
_WINDOW = 65_536
"""Bytes that are split at once."""
_GOOD = 64
"""Texts that make a window worth its while."""
_ONE_BY_ONE = 4096
"""Texts to walk where a window was not: the time lost on bad windows stays bounded."""
_LIKELY = 18
"""Bytes of a text with its length, where none has been seen."""
_LENGTH = struct.Struct("<Q")
_NEXT = bytes([*range(1, 256), 0])
"""A text's part is longer by one than the text; that of 255 bytes is walked."""


class Source(Protocol):
    """Bytes that are read from front to back."""

    at: int

    def take(self, n: int) -> int: ...
    def look(self, n: int) -> bytes: ...
    def slice(self, start: int, end: int) -> bytes: ...
    def expect(self, n: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by number."""

    joined: bytes
    ends: array[int]

    @classmethod
    def of(cls, texts: Sequence[bytes]) -> Texts:
        return cls(b"".join(texts), array("I", accumulate(map(len, texts))))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i: int) -> bytes:
        return self.joined[self.ends[i - 1] if i else 0 : self.ends[i]]


def read(source: Source, count: int, longest: int, kept: list[bytes] | None) -> None:
    """Walk `count` texts of at most `longest` bytes; each is added to `kept`, where given.

    Raises ValueError where one is longer.
    """
    left, first = count, source.at
    while left:
        parts = source.look(_WINDOW).split(_ZEROS)
        lengths = _sure(parts)[:left]
        if kept is not None:
            kept += [part[:-1] for part in parts[1 : len(lengths) + 1]]
        source.take(8 * len(lengths) + sum(lengths))
        left -= len(lengths)
        average = (source.at - first) // max(1, count - left)
        source.expect(left * max(average, _LIKELY))
        for _ in range(min(left, 1 if len(lengths) >= _GOOD else _ONE_BY_ONE)):
            size = _LENGTH.unpack(source.slice(start := source.take(8), start + 8))[0]
            if size > longest:
                raise ValueError(f"a text of {size:,} bytes")
            start = source.take(size)
            if kept is not None:
                kept.append(source.slice(start, start + size))
            left -= 1


def _sure(parts: list[bytes]) -> bytes:
    """The lengths of the texts at the start of a window that are whole and sure.

    The first part is the length of the first text; each other is a text and the length of the
    next; the last may be cut.
    """
    if len(parts) < 3 or len(parts[0]) != 1:
        return b""
    try:
        lasts = bytes([part[-1] for part in parts[:-1]])
        sizes = bytes(map(len, parts[1:-1]))
    except (IndexError, ValueError):  # an empty text, or a long one: it ends what is sure
        parts = parts[: _first_odd(parts) + 1]
        lasts = bytes([part[-1] for part in parts[:-1]])
        sizes = bytes(map(len, parts[1:-1]))
    lengths = lasts[: len(sizes)]
    wanted = lengths.translate(_NEXT)
    if sizes == wanted:
        return lengths
    wrong = (i for i, (a, b) in enumerate(zip(sizes, wanted, strict=True)) if a != b)
    return lengths[: next(wrong)]


def _first_odd(parts: list[bytes]) -> int:
    return next(i for i, part in enumerate(parts) if not 0 < len(part) < 256)
