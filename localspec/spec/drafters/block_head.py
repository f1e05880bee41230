"""Block heads (DFlash, DSpark): collect the target's hidden states, draft a block in
one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.spec.drafters import DrafterInputs, HeadStates
from localspec.spec.drafters.draft_sampler import DraftSampler
from localspec.spec.protocols import (
    BlockHead,
    Draft,
    DraftStopPolicy,
    HiddenStates,
    Logits,
)


class BlockHeadRunner(HeadStates):
    """Runs a block head (DFlash, DSpark) across answers; a `HiddenStateListener`.

    Hidden states are kept pending until the next draft, or until the buffer is full, so
    those of rejected tokens never enter the head's memory. `kind` is the head's
    (`dflash`, `dspark`).
    """

    head: BlockHead

    def __init__(self, head: BlockHead, kind: str, batch: int) -> None:
        self.head, self.kind = head, kind
        self._pending_states = np.zeros((batch, head.target_width), np.float32)
        self.buffer_bytes = self._pending_states.nbytes
        self._n_pending = 0
        self._n_injected = 0  # Number of states in the head's memory.

    def on_decode(self, tokens: Sequence[int], states: HiddenStates) -> None:
        n = len(tokens)
        try:
            if self._n_pending + n > len(self._pending_states) and self.is_in_sync:
                self._inject_pending()
        finally:  # states that failed are lost; the head then stops drafting
            if self._n_pending + n > len(self._pending_states):
                self._n_injected, self._n_pending = (
                    self._n_injected + self._n_pending,
                    0,
                )
            self._pending_states[self._n_pending : self._n_pending + n] = states
            self._n_pending += n

    def limit_truncation(self, n_past: int) -> int:
        return n_past

    def on_truncate(self, n_past: int) -> None:
        self._n_injected = min(self._n_injected, n_past)
        self._n_pending = min(self._n_pending, n_past - self._n_injected)

    def newest_state(self) -> HiddenStates | None:
        return None  # the head's memory needs no state to continue

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
        """Logits of the n tokens after the text's last one, and the head's confidence
        in each.
        """
        self._inject_pending()
        return self.head.draft_block(last_token, n)

    def _inject_pending(self) -> None:
        head = self.head
        head.truncate(self._n_injected)
        for start in range(0, self._n_pending, head.n_batch):
            head.inject(
                self._pending_states[start : min(start + head.n_batch, self._n_pending)]
            )
        self._n_injected, self._n_pending = self._n_injected + self._n_pending, 0


class BlockDrafter:
    """Drafts one answer with a `BlockHeadRunner`: each token is sampled from its own
    row.

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
        runner, head = self._head_runner, self._head_runner.head
        limit = min(
            limit, head.block_size - head.first_draft_row, head.n_ctx - len(tokens)
        )
        if limit <= 0 or not runner.is_ready(tokens):
            return Draft()
        before = head.decode_seconds
        rows, confidences = runner.draft_block(tokens[-1], limit)
        positions, k = iter(range(limit)), head.top_k

        def next_logits(token: int | None) -> tuple[Logits, float | None]:
            i = next(positions)
            if k:
                before = (
                    0 if token is None else int((rows[i - 1, :k] == token).argmax())
                )
                return lattice_logits(rows[i], k, before, head.n_vocab), None
            return rows[i], None if confidences is None else float(confidences[i])

        return self._sampler.sample_draft(
            tokens, limit, stop_policy, next_logits, since=before
        )


def lattice_logits(row: Logits, k: int, before: int, n_vocab: int) -> Logits:
    """Logits of a lattice's row (see `BlockHead`) after candidate number `before` of
    the row before; -inf for all other tokens
    (common_speculative_impl_draft_dflash::draft).
    """
    logits = np.full(n_vocab, -np.inf, np.float32)
    logits[row[:k].astype(np.int64)] = row[k * (1 + before) :][:k]
    return logits


def make(inputs: DrafterInputs) -> BlockDrafter:
    if not isinstance(inputs.head_runner, BlockHeadRunner):
        raise KeyError("block head")
    return BlockDrafter(inputs.head_runner, inputs)
