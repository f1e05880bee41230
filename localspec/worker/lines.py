"""Lines of an unbuffered pipe, none longer than agreed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

_AT_ONCE = 65536


class Lines:
    """Iterates over a pipe's lines; a longer one is cut, or a ValueError."""

    def __init__(self, pipe: IO[bytes], longest: int, *, cut: bool = False) -> None:
        self._pipe = pipe
        self._longest, self._cut = longest, cut

    def __iter__(self) -> Iterator[bytes]:
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[bytes]]:
        """What arrived together."""
        held = b""
        while data := self._pipe.read(_AT_ONCE):
            *lines, held = (held + data).split(b"\n")
            if lines:
                yield lines
            if len(held) > self._longest:
                if not self._cut:
                    raise ValueError("a line without an end")
                held = held[: self._longest]
        if held:
            yield [held]
