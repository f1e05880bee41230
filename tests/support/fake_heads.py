"""Fake heads whose logits depend on the hidden states they were given, and drafters.

A fake state holds its token's id, plus one: a head of the target's seed drafts the
target's tokens only if every row had the right state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from localspec.spec.drafters import DrafterInputs
from localspec.spec.drafters.autoregressive_head import HeadDrafter, HeadRunner
from localspec.spec.drafters.block_head import BlockDrafter, BlockHeadRunner
from localspec.spec.prefix_cache import common_prefix_length
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import (
    Draft,
    Drafter,
    DraftStopPolicy,
    HiddenStates,
    Logits,
    Verifier,
)
from tests.support.fake_models import N_VOCAB, HistoryModel

_BATCH = 6
"""Tokens that the target decodes at once: fewer than some drafts."""
_REJECTED = 0
"""Decoded after every draft, as if another source had drafted it."""


def _states(tokens: Sequence[int]) -> HiddenStates:
    return np.array(tokens, np.float32)[:, np.newaxis] + 1


class FakeHead(HistoryModel):
    """An autoregressive head. A state of zeros, before the first token, is no token."""

    target_width = 1
    reads_target_memory = False
    max_draft = 100

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.tokens_before: list[int] = []

    def encode(self, states: HiddenStates) -> HiddenStates:
        assert len(states) <= self.n_batch
        return states.copy()

    def decode(
        self, tokens: Sequence[int], outputs: int, states: HiddenStates | None = None
    ) -> Logits:
        assert states is not None
        assert len(states) == len(tokens)
        del self.tokens_before[self.n_past :]
        self.tokens_before += (states[:, 0].astype(int) - 1).tolist()
        return super().decode(tokens, outputs)

    def row(self, past: Sequence[int]) -> Logits:
        before = self.tokens_before[: len(past)]
        return super().row([*(token for token in before if token >= 0), past[-1]])

    def continue_draft(self, token: int) -> Logits:
        return self.decode([token], 1, _states(self.memory[-1:]))


class FakeAssistant(HistoryModel):
    """A head without a memory.

    A row needs the target's newest state, or that of the row before.
    """

    target_width = 1
    reads_target_memory = True
    max_draft = 100

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.target_tokens: list[int] = []
        self._drafted: list[int] = []

    def encode(self, states: HiddenStates) -> HiddenStates:
        return states.copy()

    def decode(
        self, tokens: Sequence[int], outputs: int, states: HiddenStates | None = None
    ) -> Logits:
        assert states is not None
        assert states.tolist() == _states(self.target_tokens[-1:]).tolist()
        assert len(tokens) == outputs == 1
        self._drafted = list(tokens)
        return self._row()

    def continue_draft(self, token: int) -> Logits:
        self._drafted.append(token)
        return self._row()

    def _row(self) -> Logits:
        return self.row([*self.target_tokens, *self._drafted])[None]


class FakeBlockHead(HistoryModel):
    """A block head; its rows assume its own likeliest tokens."""

    target_width = 1
    block_size = 9
    first_draft_row = 1
    top_k = 0

    def inject(self, states: HiddenStates) -> None:
        assert len(states) <= self.n_batch
        self.memory += (states[:, 0].astype(int) - 1).tolist()

    def draft_block(self, last: int, n: int) -> tuple[Logits, None]:
        text = [*self.memory, last]
        rows = []
        for _ in range(n):
            rows.append(self.row(text))
            text.append(int(rows[-1].argmax()))
        return np.array(rows, np.float32), None


class FakeLatticeHead(FakeBlockHead):
    """Its rows hold all tokens as candidates, each row in an order of its own.

    The history gives their scores.
    """

    top_k = N_VOCAB

    def draft_block(self, last: int, n: int) -> tuple[Logits, None]:
        text = list(self.memory)
        rows = []
        before = [last] * N_VOCAB
        likely = last
        for i in range(n):
            ids = np.roll(np.arange(N_VOCAB), i)
            rows.append(
                np.concatenate([ids, *(self.row([*text, t])[ids] for t in before)])
            )
            text.append(likely)
            before = ids.tolist()
            likely = int(self.row(text).argmax())
        return np.array(rows, np.float32), None


class FedDrafter:
    """Gives a head's runner what the target decodes, rejected draft tokens among it."""

    def __init__(self, runner: HeadRunner | BlockHeadRunner, drafter: Drafter) -> None:
        self._runner = runner
        self._drafter = drafter
        self._decoded: list[int] = []
        if isinstance(runner.head, FakeAssistant):
            runner.head.target_tokens = self._decoded

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        kept = common_prefix_length(self._decoded, tokens[:-1])
        if kept < len(self._decoded):
            kept = self._runner.limit_truncation(kept)
            self._runner.on_truncate(kept)
            del self._decoded[kept:]
        self._decode(tokens[kept:-1])
        draft = self._drafter.propose(tokens, limit, stop_policy)
        self._decode([tokens[-1], *draft.tokens, _REJECTED])
        return draft

    def _decode(self, tokens: Sequence[int]) -> None:
        for at in range(0, len(tokens), _BATCH):
            part = tokens[at : at + _BATCH]
            self._runner.on_decode(part, _states(part))
        self._decoded += tokens


def _inputs(verifier: Verifier, what: PreparedAnswer) -> DrafterInputs:
    n_prompt = len(what.prompt)
    return DrafterInputs(
        None,
        verifier,
        what.sampling,
        n_prompt,
        N_VOCAB,
        what.is_eog,
        constraint=what.constraint,
    )


def _autoregressive(
    first_position: int, kind: type[FakeHead | FakeAssistant] = FakeHead
) -> MakeHeadDrafter:
    def make(seed: int, verifier: Verifier, what: PreparedAnswer) -> FedDrafter:
        runner = HeadRunner(kind(seed), "eagle3", _BATCH, first_position)
        return FedDrafter(runner, HeadDrafter(runner, _inputs(verifier, what)))

    return make


def _block(kind: type[FakeBlockHead]) -> MakeHeadDrafter:
    def make(seed: int, verifier: Verifier, what: PreparedAnswer) -> FedDrafter:
        runner = BlockHeadRunner(kind(seed), "dflash", _BATCH)
        return FedDrafter(runner, BlockDrafter(runner, _inputs(verifier, what)))

    return make


MakeHeadDrafter = Callable[[int, Verifier, PreparedAnswer], Drafter]
"""The production's drafter over a fake head of a seed."""
HEADS: dict[str, MakeHeadDrafter] = {
    "eagle3": _autoregressive(1),
    "mtp": _autoregressive(0),
    "assistant": _autoregressive(0, FakeAssistant),
    "block head": _block(FakeBlockHead),
    "lattice": _block(FakeLatticeHead),
}
"""A line here puts a kind of head through every law of tests/spec/laws.py."""
