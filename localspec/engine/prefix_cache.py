"""A model together with the tokens it has read, and the shortest way to another text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from localspec.engine.protocols import LanguageModel, Logits

_UNSTABLE_TAIL = 8
"""Tokens at a prompt's end that the next turn may spell otherwise: how an answer begins."""


class PrefixCache:
    """Keeps the part of its memory that a text shares, and reads only the rest."""

    def __init__(
        self, model: LanguageModel, save_checkpoint: Callable[[], None] | None = None
    ) -> None:
        """`mark` lets the model return to what is read now, where it cannot cut its memory."""
        self.model, self._save_checkpoint = model, save_checkpoint
        self._cached_tokens: list[int] = []
        self._last_text: Sequence[int] = ()
        self._n_matched = 0

    @property
    def n_cached(self) -> int:
        return len(self._cached_tokens)

    def rewind_to(self, tokens: Sequence[int]) -> int:
        """Forget what is not a prefix of `tokens`; return how many are still known.

        At least the last token stays to be read.  Where the memory cannot be cut it is emptied,
        and the text will be read again from its start.
        """
        start = self._n_matched if tokens is self._last_text else 0
        known = min(common_prefix_length(self._cached_tokens, tokens, start), self.model.n_past)
        kept = min(known, len(tokens) - 1)
        if kept < self.model.n_past:
            self.model.truncate(kept)
            kept = min(kept, self.model.n_past)
        del self._cached_tokens[kept:]
        self._last_text, self._n_matched = tokens, kept
        return kept

    def prefill_until(
        self, tokens: Sequence[int], max_left: int, cancelled: Callable[[], bool], min_left: int = 1
    ) -> Iterator[int]:
        """Read on in whole batches until at most `room` tokens are left; yield how many are read.

        At least `left` are not read.  Ends early when cancelled.  Call `align` first.
        """
        batch = self.model.n_batch
        while len(tokens) - self.n_cached > min(max_left, batch) and not cancelled():
            n = min(batch, len(tokens) - self.n_cached - min_left)
            self.decode(tokens[self.n_cached : self.n_cached + n], 0)
            yield self.n_cached

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> Iterator[int]:
        """Skim a prompt, with marks where a chat comes back to: see `_TAIL`."""
        if self._save_checkpoint is None:
            yield from self.prefill_until(tokens, self.model.n_batch, cancelled)
            return
        self._save_checkpoint()
        tail = min(_UNSTABLE_TAIL, self.model.n_batch)
        for done in self.prefill_until(tokens, tail, cancelled, min_left=tail):
            if len(tokens) - self.n_cached == tail:
                self._save_checkpoint()
            yield done

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        """Read on; logits of the last `outputs` tokens."""
        rows = self.model.decode(tokens, outputs)
        self._cached_tokens.extend(tokens)
        return rows


def common_prefix_length(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the common prefix, when the first `start` are known to be equal."""
    end = min(len(a), len(b))
    for i in range(start, end):
        if a[i] != b[i]:
            return i
    return end
