"""The speculative decoding loop: draft, verify, accept, commit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

from msgspec import Struct

from localspec.protocol.events import FinishReason, Prefill, RoundTimes
from localspec.protocol.wire import SamplingParams
from localspec.spec.constraints.output_constraint import OutputConstraint
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.protocols import (
    DecodeInterrupted,
    Distribution,
    Draft,
    Drafter,
    DraftWait,
    Logits,
    OverlapRound,
    Verifier,
)
from localspec.spec.sampling import compute_distribution
from localspec.spec.thinking_budget import ThinkingBudget
from localspec.spec.token_probabilities import TokenProbabilities

TokenScorer = Callable[[Logits, Sequence[int], Draft], tuple[TokenProbabilities, ...]]

_NO_OVERLAP = nullcontext(DraftWait())


class GenerationJob(Struct, frozen=True):
    """The input of one answer."""

    prompt: list[int]
    sampling: SamplingParams
    max_tokens: int
    draft_length: int
    is_eog: Callable[[int], bool]
    cancelled: Callable[[], bool]
    on_round: Callable[[RoundResult], None] = lambda _: None
    """Called with every round, before it is yielded."""
    score_tokens: TokenScorer | None = None
    """Computes the probabilities of a round's tokens from their rows of logits."""
    resumed_tokens: tuple[int, ...] = ()
    """Tokens of the answer from an earlier run; `max_tokens` includes them."""
    thinking: ThinkingBudget | None = None
    constraint: OutputConstraint | None = None
    """The grammar that the answer follows; `resumed_tokens` are committed to it."""
    overlap: OverlapRound = lambda _tokens, _draft: _NO_OVERLAP
    """Entered around each target pass that verifies a draft."""


class RoundResult(Struct):
    """One round: the draft, how many of its tokens were accepted, and the emitted
    tokens.

    Not frozen, because that costs time in every round.
    """

    draft: Draft
    accepted: int
    tokens: list[int]
    ms: RoundTimes
    width: int  # Tokens in this round's target pass; 0 if the tokens were forced.
    probabilities: tuple[TokenProbabilities, ...] = ()  # One per token, if requested.


class LoopEnd(Struct, frozen=True):
    reason: FinishReason


def speculative_decode(
    target: PrefixCache, drafter: Drafter, verifier: Verifier, job: GenerationJob
) -> Iterator[Prefill | RoundResult | LoopEnd]:
    """Generate an answer; the first round decodes the prompt's last batch and drafts
    nothing.

    At every yield the target holds all tokens but the last, so the generator can be
    closed there.
    """
    try:
        tokens = [*job.prompt, *job.resumed_tokens]
        end = min(len(job.prompt) + job.max_tokens, target.model.n_ctx)
        if (
            job.resumed_tokens
            and (ended := _check_end(tokens, end, target, job)) is not None
        ):
            yield ended
            return
        reused = target.rewind_to(tokens)
        yield Prefill(reused, len(tokens), reused)
        for done in target.prefill(tokens, job.cancelled):
            yield Prefill(done, len(tokens), reused)
        limit = 0
        while True:
            if job.cancelled():
                raise DecodeInterrupted
            if closing := job.thinking.take_closing_tokens() if job.thinking else []:
                forced = closing[: end - len(tokens)]
                tokens += forced
                target.rewind_to(tokens)
                nothing = Draft(reason="thinking budget reached")
                step = RoundResult(nothing, 0, forced, RoundTimes(0.0, 0.0, 0.0), 0)
            else:
                step = _run_round(target, drafter, verifier, job, tokens, limit)
                job.on_round(step)
            if job.constraint is not None and not job.is_eog(tokens[-1]):
                job.constraint.commit(tokens)
            yield step
            if (ended := _check_end(tokens, end, target, job)) is not None:
                yield ended
                return
            # A round emits one token more than it accepts.
            limit = min(job.draft_length, end - len(tokens) - 1)
    except DecodeInterrupted:
        yield LoopEnd("cancelled")


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
    max_left = target.model.n_batch - len(draft.tokens)
    if len(tokens) - target.n_cached > max_left:  # the memory had to be emptied
        for _ in target.prefill_until(tokens, max_left, job.cancelled):
            pass
        if len(tokens) - target.n_cached > max_left:
            raise DecodeInterrupted
    batch = [*tokens[target.n_cached :], *draft.tokens]
    with job.overlap(tokens, draft) as wait:
        rows = target.decode(batch, len(draft.tokens) + 1)
    distributions = _TargetDistributions(rows, job, tokens, draft.tokens)
    accepted, extra = verifier.verify(
        distributions, draft, len(tokens) - len(job.prompt)
    )
    new = [*draft.tokens[:accepted], extra]
    for i, token in enumerate(new, 1):
        if job.is_eog(token):
            del new[i:]
            break
    if job.thinking is not None:
        del new[job.thinking.consume_tokens(new) :]
    probabilities: tuple[TokenProbabilities, ...] = ()
    if job.score_tokens is not None:
        scoring_began = time.perf_counter()
        probabilities = job.score_tokens(rows, new, draft)
        # not counted as host time of the round
        began += time.perf_counter() - scoring_began
    tokens += new
    target.rewind_to(tokens)
    verify = target.model.decode_seconds - verified
    drafting = draft.decode_seconds + wait.seconds
    host = time.perf_counter() - began - verify - drafting
    times = RoundTimes(drafting * 1e3, verify * 1e3, host * 1e3)
    return RoundResult(
        draft, min(accepted, len(new)), new, times, len(batch), probabilities
    )


class _TargetDistributions:
    """Computes the target's distribution after the first i draft tokens, on demand."""

    def __init__(
        self, rows: Logits, job: GenerationJob, tokens: list[int], drafted: list[int]
    ) -> None:
        self._rows, self._sampling = rows, job.sampling
        self._tokens, self._drafted = tokens, drafted
        self._constraint = job.constraint

    def __call__(self, i: int) -> Distribution:
        recent: list[int] = []
        if n := self._sampling.history_length:
            recent = [*self._tokens[-n:], *self._drafted[:i]]
        row, grammar = self._rows[i], None
        if self._constraint is not None:
            grammar = self._constraint.state_after(self._tokens, self._drafted[:i])
        return compute_distribution(row, self._sampling, recent, grammar)
