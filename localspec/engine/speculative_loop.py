"""The speculative loop: draft, verify, accept, commit; whole at every yield."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.engine.prefix_cache import PrefixCache
from localspec.engine.protocols import (
    DecodeInterrupted,
    Distribution,
    Draft,
    Drafter,
    Logits,
    Verifier,
)
from localspec.engine.sampling import compute_distribution
from localspec.engine.thinking_budget import ThinkingBudget
from localspec.engine.token_probabilities import TokenProbabilities
from localspec.protocol.events import FinishReason, Prefill, RoundTimes
from localspec.protocol.wire import SamplingParams


@dataclass(frozen=True, slots=True)
class GenerationJob:
    """One answer to produce."""

    prompt: list[int]
    sampling: SamplingParams
    max_tokens: int
    draft_length: int
    is_eog: Callable[[int], bool]
    cancelled: Callable[[], bool]
    on_round: Callable[[RoundResult], None] = lambda _: None
    """Told of every round, before it is yielded."""
    is_near_tie: Callable[[Logits, Sequence[int], int], bool] | None = None
    """Whether a row decides too narrowly after `recent`, at a place of the answer."""
    score_tokens: (
        Callable[[Logits, Sequence[int], Draft], tuple[TokenProbabilities, ...]] | None
    ) = None
    """Shown the row that each token of a round was decided by, where that was asked for."""
    resumed_tokens: tuple[int, ...] = ()
    """Tokens of the answer that are written already; `max_tokens` counts them."""
    thinking: ThinkingBudget | None = None
    """Follows the answer's thinking, and may end it."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round: what was drafted, how much of it stands, and the tokens that came out."""

    draft: Draft
    accepted: int
    tokens: list[int]
    ms: RoundTimes
    width: int
    """Tokens that the target read in this pass; 0 where these were given, not drawn."""
    guarded: int = 0
    """Tokens that were computed again, alone."""
    probabilities: tuple[TokenProbabilities, ...] = ()
    """One a token, where they were asked for."""


@dataclass(frozen=True, slots=True)
class LoopEnd:
    reason: FinishReason


def speculative_decode(
    target: PrefixCache, drafter: Drafter, verifier: Verifier, job: GenerationJob
) -> Iterator[Prefill | RoundResult | LoopEnd]:
    """Continue the prompt; the first round reads the prompt's last batch and drafts nothing.

    At every yield the target has read all tokens but the last, so closing needs no clean-up.
    """
    try:
        yield from _run_rounds(target, drafter, verifier, job)
    except DecodeInterrupted:
        yield LoopEnd("cancelled")


def _run_rounds(
    target: PrefixCache, drafter: Drafter, verifier: Verifier, job: GenerationJob
) -> Iterator[Prefill | RoundResult | LoopEnd]:
    tokens = [*job.prompt, *job.resumed_tokens]
    end = min(len(job.prompt) + job.max_tokens, target.model.n_ctx)
    if job.resumed_tokens and (ended := _check_end(tokens, end, target, job)) is not None:
        yield ended
        return
    reused = target.rewind_to(tokens)
    yield Prefill(reused, len(tokens), reused)
    for done in target.prefill(tokens, job.cancelled):
        yield Prefill(done, len(tokens), reused)
    limit = 0
    while True:
        if job.cancelled():
            yield LoopEnd("cancelled")
            return
        if closing := job.thinking.take_closing_tokens() if job.thinking else []:
            step = _forced_round(target, tokens, closing[: end - len(tokens)])
        else:
            step = _run_round(target, drafter, verifier, job, tokens, limit)
            job.on_round(step)
        yield step
        if (ended := _check_end(tokens, end, target, job)) is not None:
            yield ended
            return
        # The last token of a round is drawn, not drafted: one fewer may be guessed.
        limit = min(job.draft_length, end - len(tokens) - 1)


def _forced_round(target: PrefixCache, tokens: list[int], forced_tokens: list[int]) -> RoundResult:
    """A round in which nothing was drawn: these tokens are given."""
    tokens += forced_tokens
    target.rewind_to(tokens)
    return RoundResult(
        Draft(reason="the thinking is ended"), 0, forced_tokens, RoundTimes(0.0, 0.0, 0.0), 0
    )


def _check_end(
    tokens: list[int], end: int, target: PrefixCache, job: GenerationJob
) -> LoopEnd | None:
    if job.is_eog(tokens[-1]):
        return LoopEnd("eog")
    if len(tokens) >= end:
        return LoopEnd("context" if len(tokens) >= target.model.n_ctx else "length")
    return None


def _run_round(
    target: PrefixCache,
    drafter: Drafter,
    verifier: Verifier,
    job: GenerationJob,
    tokens: list[int],
    limit: int,
) -> RoundResult:
    began, verified = time.perf_counter(), target.model.decode_seconds
    draft = drafter.propose(tokens, limit) if limit > 0 else Draft()
    room = target.model.n_batch - len(draft.tokens)
    for _ in target.prefill_until(tokens, room, job.cancelled):
        pass  # only where a memory that cannot be cut was emptied
    if len(tokens) - target.n_cached > room:
        raise DecodeInterrupted
    fresh = tokens[target.n_cached :]
    rows = target.decode([*fresh, *draft.tokens], len(draft.tokens) + 1)
    width = len(fresh) + len(draft.tokens)
    accepted, new, rows, guarded = _verify_draft(target, verifier, job, tokens, draft, rows)
    new = new[: next((i + 1 for i, t in enumerate(new) if job.is_eog(t)), len(new))]
    if job.thinking is not None:
        new = new[: job.thinking.consume_tokens(new)]
    insights: tuple[TokenProbabilities, ...] = ()
    if job.score_tokens is not None:
        paused = time.perf_counter()
        insights = job.score_tokens(rows, new, draft)
        began += time.perf_counter() - paused  # looking is no part of the round
    tokens += new
    target.rewind_to(tokens)
    verify = target.model.decode_seconds - verified
    host = time.perf_counter() - began - verify - draft.decode_seconds
    times = RoundTimes(draft.decode_seconds * 1e3, verify * 1e3, host * 1e3)
    return RoundResult(draft, min(accepted, len(new)), new, times, width, guarded, insights)


def _verify_draft(
    target: PrefixCache,
    verifier: Verifier,
    job: GenerationJob,
    tokens: list[int],
    draft: Draft,
    rows: Logits,
) -> tuple[int, list[int], Logits, int]:
    """How many guesses stand, the new tokens, the rows they follow from, how many were guarded."""
    try:
        laws = _TargetDistributions(rows, job, tokens, draft.tokens)
        accepted, extra = verifier.verify(laws, draft, len(tokens) - len(job.prompt))
        new = [*draft.tokens[:accepted], extra]
        return accepted, new, rows, 0
    except _NearTieFound as doubt:
        kept = draft.tokens[: doubt.n_drafted]
        rows, extra = _recheck_alone(
            target, verifier, job, [*tokens, *kept], rows[: doubt.n_drafted]
        )
        new = [*kept, extra]
        return len(kept) + (draft.tokens[len(kept) : len(new)] == [extra]), new, rows, 1


def _recheck_alone(
    target: PrefixCache, verifier: Verifier, job: GenerationJob, text: list[int], rows: Logits
) -> tuple[Logits, int]:
    """The token after `text`, from a pass over its last token alone.

    Its row follows `rows`, those that decided the tokens before, where someone looks at them.
    """
    before = rows.copy() if job.score_tokens is not None else rows[:0]
    target.rewind_to(text)
    for _ in target.prefill_until(text, 1, job.cancelled):
        pass  # only where a memory that cannot be cut was emptied
    if len(text) - target.n_cached > 1:
        raise DecodeInterrupted
    row = target.decode(text[-1:], 1)
    _, token = verifier.verify(
        _TargetDistributions(row, job, text, []), Draft(), len(text) - len(job.prompt)
    )
    return (row if job.score_tokens is None else np.concatenate((before, row))), token


class _NearTieFound(Exception):  # noqa: N818  not an error
    """The row after `place` drafted tokens decides too narrowly."""

    def __init__(self, n_drafted: int) -> None:
        self.n_drafted = n_drafted


class _TargetDistributions:
    """The target's law after the first i drafted tokens, made when asked for: most are not."""

    def __init__(
        self, rows: Logits, job: GenerationJob, tokens: list[int], drafted: list[int]
    ) -> None:
        self._rows, self._sampling = rows, job.sampling
        self._tokens, self._drafted = tokens, drafted
        self._is_near_tie = job.is_near_tie if drafted else None
        self._index = len(tokens) - len(job.prompt)

    def __call__(self, i: int) -> Distribution:
        recent: list[int] = []
        if self._sampling.repeat_penalty != 1.0:
            recent = [*self._tokens[-self._sampling.repeat_last_n :], *self._drafted[:i]]
        row = self._rows[i]
        if self._is_near_tie is not None and self._is_near_tie(row, recent, self._index + i):
            raise _NearTieFound(i)
        return compute_distribution(row, self._sampling, recent)
