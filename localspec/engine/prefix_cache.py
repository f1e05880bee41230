"""A model with the tokens in its KV cache: reuses the prefix that a new text shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from localspec.engine.protocols import LanguageModel, Logits

_UNSTABLE_TAIL = 8
"""Tokens at the end of a prompt that the next turn may tokenize differently."""


class PrefixCache:
    """Keeps the cached prefix that a text shares and decodes only the rest."""

    def __init__(
        self, model: LanguageModel, save_checkpoint: Callable[[], None] | None = None
    ) -> None:
        """`save_checkpoint` saves the model's state, if its memory cannot be truncated."""
        self.model, self._save_checkpoint = model, save_checkpoint
        self._cached_tokens: list[int] = []
        self._last_text: Sequence[int] = ()
        self._n_matched = 0

    @property
    def n_cached(self) -> int:
        return len(self._cached_tokens)

    def rewind_to(self, tokens: Sequence[int]) -> int:
        """Drop cached tokens that are not a prefix of `tokens`; return how many remain.

        At least the last token is left to decode. A memory that cannot be truncated is emptied
        or restored to a checkpoint, so fewer tokens may remain than the texts share.
        """
        start = self._n_matched if tokens is self._last_text else 0
        shared = min(common_prefix_length(self._cached_tokens, tokens, start), self.model.n_past)
        kept = min(shared, len(tokens) - 1)
        if kept < self.model.n_past:
            self.model.truncate(kept)
            kept = min(kept, self.model.n_past)
        del self._cached_tokens[kept:]
        self._last_text, self._n_matched = tokens, kept
        return kept

    def prefill_until(
        self, tokens: Sequence[int], max_left: int, cancelled: Callable[[], bool], min_left: int = 1
    ) -> Iterator[int]:
        """Decode whole batches until at most `max_left` tokens are left; yield how many are cached.

        At least `min_left` tokens are not decoded. Ends early when cancelled. Call `rewind_to`
        first.
        """
        batch = self.model.n_batch
        while len(tokens) - self.n_cached > min(max_left, batch) and not cancelled():
            n = min(batch, len(tokens) - self.n_cached - min_left)
            self.decode(tokens[self.n_cached : self.n_cached + n], 0)
            yield self.n_cached

    def prefill(self, tokens: Sequence[int], cancelled: Callable[[], bool]) -> Iterator[int]:
        """Decode all of a prompt but its last batch; yield how many tokens are cached.

        Saves checkpoints where the next turn of a chat can resume: see `_UNSTABLE_TAIL`.
        """
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
        """Append tokens; return the logits of the last `outputs`."""
        rows = self.model.decode(tokens, outputs)
        self._cached_tokens.extend(tokens)
        return rows


def common_prefix_length(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the common prefix; the first `start` tokens are known to be equal."""
    end = min(len(a), len(b))
    for i in range(start, end):
        if a[i] != b[i]:
            return i
    return end
