"""Fake models, drafters and random sources that check their callers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from localspec.protocol.events import FinishReason, Prefill
from localspec.protocol.wire import SamplingParams
from localspec.spec import drafters
from localspec.spec.control.controller import SpeculationController
from localspec.spec.drafters import NoDrafter
from localspec.spec.drafters.model import ModelDrafter
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.prepared_answer import DraftRequest, PreparedAnswer, TokenPart
from localspec.spec.protocols import (
    Draft,
    Drafter,
    DraftStopPolicy,
    Logits,
    Verifier,
)
from localspec.spec.speculative_loop import (
    Drafting,
    LoopEnd,
    RoundResult,
    speculative_decode,
)
from localspec.spec.verifiers import SeededRandom, make_verifier

N_VOCAB = 6
GREEDY = SamplingParams(temperature=0.0)
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""The model's own distribution, without truncation."""


# --- models


class FakeModel:
    """The memory of a `LanguageModel`; subclasses define the rows of logits.

    Rows become NaN at the next call, as llama.cpp's are overwritten.
    """

    least_token = 0
    """Pictures in a text are negative."""

    def __init__(self, n_vocab: int, n_ctx: int, n_batch: int) -> None:
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.decode_seconds = 0.0
        self.memory: list[int] = []
        self.reads: list[int] = []
        """Number of tokens of each `decode`."""
        self._rows: Logits = np.empty((0, n_vocab), np.float32)

    @property
    def n_past(self) -> int:
        return len(self.memory)

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        n = len(tokens)
        assert 0 < n <= self.n_batch, f"a batch of {n}"
        assert self.n_past + n <= self.n_ctx, (
            f"{n} tokens at {self.n_past} of {self.n_ctx}"
        )
        assert 0 <= outputs <= n, f"{outputs} rows of {n} tokens"
        assert all(self.least_token <= token < self.n_vocab for token in tokens), (
            "a token it does not have"
        )
        self._rows.fill(np.nan)
        self.memory.extend(tokens)
        self.reads.append(n)
        self.decode_seconds += 1e-6
        past = range(self.n_past - outputs + 1, self.n_past + 1)
        rows = [self.row(self.memory[:length]) for length in past]
        self._rows = np.array(rows, np.float32).reshape(outputs, self.n_vocab)
        return self._rows

    def truncate(self, n_past: int) -> None:
        assert 0 <= n_past <= self.n_past, f"keep {n_past} of {self.n_past}"
        self._rows.fill(np.nan)
        del self.memory[n_past:]

    def row(self, past: Sequence[int]) -> Logits:
        raise NotImplementedError


class TableModel(FakeModel):
    """Logits depend on the last two tokens, so an off-by-one row is detected."""

    def __init__(self, table: Logits, *, n_ctx: int = 256, n_batch: int = 32) -> None:
        super().__init__(table.shape[-1], n_ctx, n_batch)
        self._table = table

    def row(self, past: Sequence[int]) -> Logits:
        before = past[-2] if len(past) > 1 else 0
        row: Logits = self._table[before, past[-1]]
        return row


class HistoryModel(FakeModel):
    """Logits depend on all tokens in memory, so a stale memory is detected."""

    def __init__(
        self, seed: int, *, n_vocab: int = N_VOCAB, n_ctx: int = 256, n_batch: int = 32
    ) -> None:
        super().__init__(n_vocab, n_ctx, n_batch)
        self._seed = seed

    def row(self, past: Sequence[int]) -> Logits:
        return _history_row(self._seed, self.n_vocab, tuple(past))


class SeeingModel(HistoryModel):
    """It reads pictures, too."""

    least_token = -1000

    def row(self, past: Sequence[int]) -> Logits:
        return super().row([token % 1000 for token in past])


class StubbornModel(HistoryModel):
    """Its memory can only be emptied, not truncated."""

    def truncate(self, n_past: int) -> None:
        is_no_change = n_past == self.n_past
        super().truncate(n_past if is_no_change else 0)


class BranchingModel(HistoryModel):
    """Its memory also holds branches, in the same cells.

    It checks that one thread at a time uses it.
    """

    def __init__(self, seed: int, *, n_branches: int = 5, **more: int) -> None:
        super().__init__(seed, **more)
        self.n_branches = n_branches
        self._forked: dict[int, tuple[int, list[int]]] = {}
        """Of each branch: how many tokens it shares with the text, and its tokens."""
        self._in_use = threading.Lock()

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        with self._one_caller():
            rows = super().decode(tokens, outputs)
            self._count_cells()
            return rows

    def truncate(self, n_past: int) -> None:
        with self._one_caller():
            super().truncate(n_past)

    def _count_cells(self) -> None:
        own = (len(memory) - n for n, memory in self._forked.values())
        assert len(self.memory) + sum(own) <= self.n_ctx, "no cell is left"

    def fork(self, branch: int, n_past: int) -> None:
        assert 0 < branch <= self.n_branches, f"branch {branch} of {self.n_branches}"
        assert n_past <= self.n_past, f"a branch after {n_past} of {self.n_past}"
        with self._one_caller():
            self._forked[branch] = n_past, self.memory[:n_past]

    def decode_branches(self, steps: Sequence[tuple[int, int]]) -> Logits:
        assert len({branch for branch, _ in steps}) == len(steps) > 0, (
            "a branch twice, or none"
        )
        with self._one_caller():
            self._rows.fill(np.nan)
            rows = []
            for branch, token in steps:
                assert 0 <= token < self.n_vocab, "a token it does not have"
                memory = self._forked[branch][1] if branch else self.memory
                memory.append(token)
                rows.append(self.row(memory))
            self._count_cells()
            self.reads.append(len(steps))
            self.decode_seconds += 1e-6
            self._rows = np.array(rows, np.float32)
            return self._rows

    def adopt(self, branch: int) -> None:
        with self._one_caller():
            self.memory = self._forked[branch][1] if branch else self.memory
            self._forked = {}

    @contextmanager
    def _one_caller(self) -> Iterator[None]:
        assert self._in_use.acquire(blocking=False), "two threads use a context"
        try:
            yield
        finally:
            self._in_use.release()


class CheckpointModel(HistoryModel):
    """Its memory can be truncated only at its checkpoints."""

    def __init__(self, seed: int, **more: int) -> None:
        super().__init__(seed, **more)
        self.checkpoints: list[int] = []
        self._draft_start = -1

    def save_checkpoint(self, *, until_next: bool = False) -> bool:
        if self._draft_start in self.checkpoints:
            self.checkpoints.remove(self._draft_start)
        self._draft_start = self.n_past if until_next else -1
        self.checkpoints.append(self.n_past)
        return True

    def truncate(self, n_past: int) -> None:
        self.checkpoints = [mark for mark in self.checkpoints if mark <= n_past]
        if n_past != self.n_past:
            n_past = max(self.checkpoints, default=0)
        super().truncate(n_past)


class SnapshotModel(CheckpointModel):
    """As a hybrid: the last few tokens of the last decode can be dropped, once."""

    def __init__(self, seed: int, *, n_snapshots: int, **more: int) -> None:
        super().__init__(seed, **more)
        self.n_snapshots = n_snapshots
        self._droppable = 0

    def decode(self, tokens: Sequence[int], outputs: int) -> Logits:
        rows = super().decode(tokens, outputs)
        # The state before the pass is overwritten.
        self._droppable = min(self.n_snapshots, len(tokens) - 1)
        return rows

    def truncate(self, n_past: int) -> None:
        if 0 <= self.n_past - n_past <= self._droppable:
            self.checkpoints = [mark for mark in self.checkpoints if mark <= n_past]
            HistoryModel.truncate(self, n_past)
        else:
            super().truncate(n_past)
        self._droppable = 0


def table(seed: int, n_vocab: int = N_VOCAB, *, scale: float = 2.0) -> Logits:
    """Random logits for every two tokens, shape (n_vocab, n_vocab, n_vocab)."""
    shape = (n_vocab, n_vocab, n_vocab)
    return (
        np.random.default_rng(seed).normal(scale=scale, size=shape).astype(np.float32)
    )


@lru_cache(maxsize=20_000)
def _history_row(seed: int, n_vocab: int, past: tuple[int, ...]) -> Logits:
    rng = np.random.default_rng([seed, len(past), *past])
    return rng.normal(scale=2.0, size=n_vocab).astype(np.float32)


# --- drafters


class RandomDrafter:
    def __init__(self, seed: int, n_vocab: int = N_VOCAB) -> None:
        self._rng = np.random.default_rng(seed)
        self._n_vocab = n_vocab

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        n = self._rng.integers(limit + 1)
        return Draft(self._rng.integers(self._n_vocab, size=n).tolist(), None, "random")


class ConstantDrafter:
    def __init__(self, guess: Sequence[int]) -> None:
        self._guess = list(guess)

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        return Draft(self._guess[:limit], None, "constant")


class OracleDrafter:
    """Drafts a known text, with another token where `wrong` is true of the position."""

    def __init__(
        self,
        text: Sequence[int],
        n_vocab: int,
        wrong: Callable[[int], bool] = lambda place: False,
    ) -> None:
        self._text = list(text)
        self._n_vocab = n_vocab
        self._wrong = wrong

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        assert list(tokens) == self._text[: len(tokens)], (
            "the text differs from the expected one"
        )
        places = range(len(tokens), min(len(tokens) + limit, len(self._text)))
        guess = [(self._text[i] + self._wrong(i)) % self._n_vocab for i in places]
        return Draft(guess, None, "oracle")


class BrokenDrafter:
    """Returns what the contract of `Drafter.propose` forbids.

    `break_draft` gets the tokens that are right, of which there may be fewer than
    `limit`, and `limit`.
    """

    def __init__(
        self, text: Sequence[int], break_draft: Callable[[list[int], int], Draft]
    ) -> None:
        self._text = list(text)
        self._break_draft = break_draft

    def propose(
        self,
        tokens: Sequence[int],
        limit: int,
        stop_policy: DraftStopPolicy | None = None,
    ) -> Draft:
        right = self._text[len(tokens) : len(tokens) + limit]
        return self._break_draft(right, limit)


def model_drafter(
    model: FakeModel | PrefixCache,
    verifier: Verifier,
    sampling: SamplingParams,
    start: int,
    *,
    n_vocab: int | None = None,
    **inputs: Any,
) -> ModelDrafter:
    """The production's drafter over a fake; `n_vocab` is the target's, if it differs."""
    reader = model if isinstance(model, PrefixCache) else PrefixCache(model)
    n_vocab = reader.model.n_vocab if n_vocab is None else n_vocab
    inputs = {"is_eog": lambda token: False} | inputs
    return ModelDrafter(
        reader,
        drafters.DrafterInputs(reader, verifier, sampling, start, n_vocab, **inputs),
    )


# --- grammars


class ToyGrammar:
    """A `GrammarState` given by a table.

    The table has the allowed tokens of each state, and the states to which they lead.
    """

    def __init__(self, table: Mapping[int, Mapping[int, int]], state: int = 0) -> None:
        self._table = table
        self._state = state

    def allows(self, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(tokens, self.allowed_tokens())

    def allowed_tokens(self) -> NDArray[np.int64]:
        return np.array(list(self._table[self._state]), np.int64)

    def forced_tokens(self) -> list[int]:
        allowed = self.allowed_tokens()
        forced = list[int]()
        while len(allowed) == 1 and len(forced) < 9:
            forced.append(int(allowed[0]))
            allowed = self.after(forced).allowed_tokens()
        return forced

    def after(self, tokens: Sequence[int]) -> ToyGrammar:
        state = self
        for token in tokens:
            state = state.advance(token)
        return state

    def advance(self, token: int) -> ToyGrammar:
        return ToyGrammar(self._table, self._table[self._state][token])


# --- running the loop


@dataclass(frozen=True)
class Run:
    tokens: list[int]
    steps: list[RoundResult]
    prefills: list[Prefill]
    end: FinishReason

    @property
    def drafts(self) -> list[list[int]]:
        return [step.draft.tokens for step in self.steps]

    @property
    def accepted(self) -> list[int]:
        return [step.accepted for step in self.steps]


@dataclass
class Stop:
    """A stop flag that becomes True after `after` checks."""

    after: int
    looks: int = field(default=0, init=False)

    def __call__(self) -> bool:
        self.looks += 1
        return self.looks > self.after


def job(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    sampling: SamplingParams = GREEDY,
    draft_length: int = 5,
    ends: Iterable[int] = (),
    cancelled: Callable[[], bool] = lambda: False,
) -> PreparedAnswer:
    """An answer that ends at any of the tokens `ends`."""
    stops = frozenset(ends)
    return PreparedAnswer(
        parts=(TokenPart(list(prompt)),),
        sampling=sampling,
        max_tokens=max_tokens,
        verifier=make_verifier("coupled", sampling.seed),
        is_eog=lambda token: token in stops,
        is_cancelled=cancelled,
        drafting=DraftRequest(max_length=draft_length),
    )


def drafting_with(drafter: Drafter, what: PreparedAnswer) -> Drafting:
    """What a session makes of a drafter for an answer that says its draft length."""
    if isinstance(drafter, NoDrafter):
        return Drafting(drafter, 0)
    assert what.drafting.max_length is not None
    drafting = Drafting(drafter, what.drafting.max_length)
    join = getattr(drafter, "join", None)
    if join is not None:  # it works while the target verifies
        drafting = join(drafting)
    if isinstance(drafter, SpeculationController):
        drafting = replace(drafting, on_round=drafter.record_round)
    return drafting


def run(
    target: FakeModel | PrefixCache,
    drafter: Drafter,
    verifier: Verifier,
    what: PreparedAnswer,
) -> Run:
    reader = target if isinstance(target, PrefixCache) else PrefixCache(target)
    answer = replace(what, verifier=verifier)
    tokens: list[int] = []
    steps: list[RoundResult] = []
    prefills: list[Prefill] = []
    ends: list[FinishReason] = []
    for event in speculative_decode(reader, answer, drafting_with(drafter, what)):
        assert not ends, "it continued after its end"
        if isinstance(event, RoundResult):
            steps.append(event)
            tokens += event.tokens
        elif isinstance(event, LoopEnd):
            ends.append(event.reason)
        else:
            prefills.append(event)
    assert ends, "it stopped without an end"
    return Run(tokens, steps, prefills, ends[0])


def plain(
    target: FakeModel | PrefixCache, verifier: Verifier, what: PreparedAnswer
) -> Run:
    """The same without speculation."""
    return run(target, NoDrafter(), verifier, what)


# --- draws

Outcome = tuple[int, ...]


class Explorer(SeededRandom):
    """Takes every branch of random decisions, and computes each outcome's probability.

    The code is run again and again with a longer script of choices; at a new choice the first
    possible one is taken and the others wait.  A branch weighs the product of its probabilities
    just as they were given, so that a law whose sum is not 1 shows in the total mass.
    """

    def __init__(self) -> None:
        self.paths = 0
        self._script: list[int] = []
        self._at = 0
        self._weight = 1.0
        self._waiting: list[list[int]] = []

    def outcomes(
        self, code: Callable[[Explorer], Sequence[int]]
    ) -> dict[Outcome, float]:
        """The probability of each outcome of `code`, which draws from this explorer."""
        total: dict[Outcome, float] = {}
        self._waiting = [[]]
        while self._waiting:
            self._script = self._waiting.pop()
            self._at = 0
            self._weight = 1.0
            outcome = tuple(code(self))
            total[outcome] = total.get(outcome, 0.0) + self._weight
            self.paths += 1
        return total

    def choice(self, probs: NDArray[np.float64]) -> int:
        return self._take(probs.tolist())

    def accept(self, prob: float) -> bool:
        assert 0.0 <= prob <= 1.0, f"a probability of {prob}"
        return self._take([1.0 - prob, prob]) == 1

    def _take(self, probs: list[float]) -> int:
        if self._at == len(self._script):
            possible = [i for i, prob in enumerate(probs) if prob > 0]
            assert possible, "nothing can be drawn"
            self._waiting += [[*self._script, i] for i in possible[1:]]
            self._script = [*self._script, possible[0]]
        taken = self._script[self._at]
        self._at += 1
        self._weight *= probs[taken]
        return taken
