"""A head that guesses whole blocks, beside its target: states in, one pass a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from localspec.engine.drafters import Needs
from localspec.engine.drafters.chain import Chain
from localspec.engine.protocols import Denoiser, Draft, Gauge, Logits, States


class BlockCompanion:
    """The head from answer to answer; a `Follower`.

    States wait until the head is asked for a draft, or they are too many: those of rejected
    guesses never enter its memory.  The head needs no token with a state, so nothing else waits.
    """

    def __init__(self, head: Denoiser, batch: int) -> None:
        self.head = head
        self._states = np.zeros((batch, head.taken_width), np.float32)
        self._waiting = 0
        self._taken = 0
        """States in the head's memory."""

    def heard(self, tokens: Sequence[int], states: States) -> None:
        n = len(tokens)
        try:
            if self._waiting + n > len(self._states) and self.able:
                self._inject()
        finally:  # what could not be taken in is lost: the head then falls silent
            if self._waiting + n > len(self._states):
                self._taken, self._waiting = self._taken + self._waiting, 0
            self._states[self._waiting : self._waiting + n] = states
            self._waiting += n

    def keeps(self, n_past: int) -> int:
        return n_past

    def forgot(self, n_past: int) -> None:
        self._taken = min(self._taken, n_past)
        self._waiting = min(self._waiting, n_past - self._taken)

    def state(self) -> States | None:
        return None  # rows of the head's memory stay true

    def returned(self, state: States) -> None:
        pass

    @property
    def able(self) -> bool:
        """Whether the head has all states but those that wait."""
        return self.head.n_past >= self._taken

    def ready(self, tokens: Sequence[int]) -> bool:
        """Whether the target has read all of the text but its last token."""
        return self._taken + self._waiting == len(tokens) - 1 and self.able

    def begin(self, following: int, n: int) -> tuple[Logits, States | None]:
        """Logits of the n tokens after the text's last one, and how sure the head is of each."""
        self._inject()
        return self.head.guesses(following, n)

    def _inject(self) -> None:
        head = self.head
        head.forget(self._taken)
        for start in range(0, self._waiting, head.n_batch):
            head.inject(self._states[start : min(start + head.n_batch, self._waiting)])
        self._taken, self._waiting = self._taken + self._waiting, 0


class BlockDrafter:
    """One answer's guesses, each drawn from its own row.

    DSpark's rows follow its own likeliest guesses, so a drawn one that is another leaves the rows
    after it a worse guess; each is still drawn from the law that the draft says, so any way of
    verifying stays exact.
    """

    def __init__(self, companion: BlockCompanion, needs: Needs, source: str) -> None:
        self._companion = companion
        self._chain = Chain(needs, source, companion.head.n_vocab)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        ahead: Sequence[int] = (),
        gauge: Gauge | None = None,
    ) -> Draft:
        companion, head = self._companion, self._companion.head
        limit = min(limit, head.size - head.first, head.n_ctx - len(tokens))
        if ahead or limit <= 0 or not companion.ready(tokens):
            return Draft()
        before = head.seconds
        rows, sure = companion.begin(tokens[-1], limit)
        places = iter(range(limit))

        def row(_: int | None) -> tuple[Logits, float | None]:
            i = next(places)
            return rows[i], None if sure is None else float(sure[i])

        draft = self._chain.grow(tokens, (), limit, gauge, row)
        return replace(draft, seconds=head.seconds - before)
