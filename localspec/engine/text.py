"""Token bytes to text: whole characters only, and nothing past a stop string."""

from __future__ import annotations

import codecs


class TextStream:
    """Turns pieces of bytes into text that can be shown at once.

    Bytes of an unfinished character, and text that may yet become a stop string, are held back
    and come with a later piece.
    """

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """The text that this piece completes; sets `stopped` where a stop string did."""
        self._held += self._decoder.decode(piece)
        # The first to be complete, as if the bytes had come one by one.
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)[1]], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        text, self._held = self._held[:cut], self._held[cut:]
        return text

    def finish(self) -> str:
        """What was held back when no more will come; an unfinished character becomes U+FFFD."""
        if self.stopped:
            return ""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)
