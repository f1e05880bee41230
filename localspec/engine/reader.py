"""A model together with the tokens it has read, and the shortest way to another text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from localspec.engine.protocols import Logits, Model

_TAIL = 8
"""Tokens at a prompt's end that the next turn may spell otherwise: how an answer begins."""


class Reader:
    """Keeps the part of its memory that a text shares, and reads only the rest."""

    def __init__(self, model: Model, mark: Callable[[], None] | None = None) -> None:
        """`mark` lets the model return to what is read now, where it cannot cut its memory."""
        self.model, self._mark = model, mark
        self._read: list[int] = []
        self._text: Sequence[int] = ()
        self._checked = 0

    @property
    def n_read(self) -> int:
        return len(self._read)

    def align(self, tokens: Sequence[int]) -> int:
        """Forget what is not a prefix of `tokens`; return how many are still known.

        At least the last token stays to be read.  Where the memory cannot be cut it is emptied,
        and the text will be read again from its start.
        """
        start = self._checked if tokens is self._text else 0
        known = min(common_prefix(self._read, tokens, start), self.model.n_past)
        kept = min(known, len(tokens) - 1)
        if kept < self.model.n_past:
            self.model.forget(kept)
            kept = min(kept, self.model.n_past)
        del self._read[kept:]
        self._text, self._checked = tokens, kept
        return kept

    def skim(
        self, tokens: Sequence[int], room: int, cancelled: Callable[[], bool], left: int = 1
    ) -> Iterator[int]:
        """Read on in whole batches until at most `room` tokens are left; yield how many are read.

        At least `left` are not read.  Ends early when cancelled.  Call `align` first.
        """
        batch = self.model.n_batch
        while len(tokens) - self.n_read > min(room, batch) and not cancelled():
            n = min(batch, len(tokens) - self.n_read - left)
            self.read(tokens[self.n_read : self.n_read + n], 0)
            yield self.n_read

    def approach(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> Iterator[int]:
        """Skim a prompt, with marks where a chat comes back to: see `_TAIL`."""
        if self._mark is None:
            yield from self.skim(tokens, self.model.n_batch, cancelled)
            return
        self._mark()
        tail = min(_TAIL, self.model.n_batch)
        for done in self.skim(tokens, tail, cancelled, left=tail):
            if len(tokens) - self.n_read == tail:
                self._mark()
            yield done

    def read(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Read on; logits of the last `outputs` tokens."""
        rows = self.model.read(tokens, outputs)
        self._read.extend(tokens)
        return rows


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the common prefix, when the first `start` are known to be equal."""
    end = min(len(a), len(b))
    for i in range(start, end):
        if a[i] != b[i]:
            return i
    return end
