"""Block heads (DFlash, DSpark): draft a block of tokens in one pass.

A head's memory holds the target's hidden states, one for each token of the text but the
last. `BlockHeadRunner` collects them while the target decodes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.spec.drafters import DrafterInputs, HeadStates
from localspec.spec.drafters.draft_sampler import DraftSampler, NextLogits
from localspec.spec.protocols import (
    BlockHead,
    Draft,
    DraftStopPolicy,
    HiddenStates,
    Logits,
)


class BlockHeadRunner(HeadStates):
    """Runs a block head across answers; a `HiddenStateListener`.

    Hidden states are kept pending until the next draft, or until the buffer is full, so
    those of rejected tokens never enter the head's memory. `kind` is the head's
    (`dflash`, `dspark`).
    """

    head: BlockHead

    def __init__(self, head: BlockHead, kind: str, batch: int) -> None:
        self.head = head
        self.kind = kind
        self._pending_states = np.zeros((batch, head.target_width), np.float32)
        self.buffer_bytes = self._pending_states.nbytes
        self._n_pending = 0
        self._n_injected = 0  # Number of states in the head's memory.

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        n = len(tokens)
        try:
            if self._n_pending + n > len(self._pending_states) and self.is_in_sync:
                self._inject_pending()
        finally:
            if self._n_pending + n > len(self._pending_states):
                # The states could not be injected and are lost. They count as injected,
                # so that `is_in_sync` is False from now on and the head drafts no more.
                self._n_injected += self._n_pending
                self._n_pending = 0
            self._pending_states[self._n_pending : self._n_pending + n] = states
            self._n_pending += n

    def limit_truncation(self, n_past: int) -> int:
        return n_past

    def on_truncate(self, n_past: int) -> None:
        self._n_injected = min(self._n_injected, n_past)
        self._n_pending = min(self._n_pending, n_past - self._n_injected)

    def newest_state(self) -> HiddenStates | None:
        return None  # The head's memory needs no state to continue.

    def on_restore(self, state: HiddenStates) -> None:
        pass

    @property
    def is_in_sync(self) -> bool:
        """Whether the head has all states but the pending ones."""
        return self.head.n_past >= self._n_injected

    def is_ready(self, tokens: Sequence[int]) -> bool:
        """Whether the target holds all of the text but its last token."""
        return self._n_injected + self._n_pending == len(tokens) - 1 and self.is_in_sync

    def draft_block(
        self, last_token: int, n: int
    ) -> tuple[Logits, HiddenStates | None]:
        """Rows of the n tokens after the text's last one, and the confidence in each.

        They are those of `BlockHead.draft_block`.
        """
        self._inject_pending()
        return self.head.draft_block(last_token, n)

    def _inject_pending(self) -> None:
        head = self.head
        head.truncate(self._n_injected)
        pending = self._pending_states[: self._n_pending]
        for start in range(0, self._n_pending, head.n_batch):
            head.inject(pending[start : start + head.n_batch])
        self._n_injected += self._n_pending
        self._n_pending = 0


class BlockDrafter:
    """Drafts one answer with a `BlockHeadRunner`: each token from its own row.

    DFlash2's rows score their candidates after each of the row before. DSpark's rows
    assume its own likeliest tokens, so another sampled token makes the rows after it
    less accurate. Every token is still sampled from the distribution that its draft
    reports, so any verification method stays exact.
    """

    def __init__(self, head_runner: BlockHeadRunner, inputs: DrafterInputs) -> None:
        self._head_runner = head_runner
        self._sampler = DraftSampler(inputs, head_runner.kind, head_runner.head)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        runner = self._head_runner
        head = runner.head
        n_draft_rows = head.block_size - head.first_draft_row
        limit = min(limit, n_draft_rows, head.n_ctx - len(tokens))
        if limit <= 0 or not runner.is_ready(tokens):
            return Draft()
        since = head.decode_seconds
        rows, confidences = runner.draft_block(tokens[-1], limit)
        places = iter(range(limit))
        k = head.top_k

        def next_of_lattice(token: int | None) -> tuple[Logits, None]:
            i = next(places)
            candidate = 0  # In the first row all are alike.
            if token is not None:
                candidate = int((rows[i - 1, :k] == token).argmax())
            return lattice_logits(rows[i], k, candidate, head.n_vocab), None

        def next_row(token: int | None) -> tuple[Logits, float | None]:
            i = next(places)
            if confidences is None:
                return rows[i], None
            return rows[i], float(confidences[i])

        next_logits: NextLogits = next_of_lattice if k else next_row
        return self._sampler.sample_draft(
            tokens,
            limit,
            stop_policy=stop_policy,
            next_logits=next_logits,
            since=since,
        )


def lattice_logits(row: Logits, k: int, before: int, n_vocab: int) -> Logits:
    """Logits of a lattice's row after candidate number `before` of the row before it.

    All tokens but the k candidates have -inf. With k = 2 a row begins with

        7   9   0.5   0.1   0.2   0.9

    Its candidates are 7 and 9. They have the scores 0.5 and 0.1 after the first
    candidate of the row before (`before` 0), and 0.2 and 0.9 after the second. See
    `BlockHead.top_k`, and common_speculative_impl_draft_dflash::draft in llama.cpp.
    """
    logits = np.full(n_vocab, -np.inf, np.float32)
    logits[row[:k].astype(np.int64)] = row[k * (1 + before) :][:k]
    return logits


def make(inputs: DrafterInputs) -> BlockDrafter:
    if not isinstance(inputs.head_runner, BlockHeadRunner):
        raise KeyError("block head")
    return BlockDrafter(inputs.head_runner, inputs)
