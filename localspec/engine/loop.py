"""The speculative loop: draft, verify, accept, commit; whole at every yield."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from localspec.engine.insight import Insight
from localspec.engine.protocols import Draft, Drafter, Interrupted, Law, Logits, Verifier
from localspec.engine.reader import Reader
from localspec.engine.sampling import law
from localspec.engine.thought import Thought
from localspec.protocol.events import FinishReason, Prefill, Times
from localspec.protocol.wire import Sampling


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to produce."""

    prompt: list[int]
    sampling: Sampling
    max_tokens: int
    draft_length: int
    is_end: Callable[[int], bool]
    cancelled: Callable[[], bool]
    learn: Callable[[Step], None] = lambda _: None
    """Told of every round, before it is yielded."""
    guard: Callable[[Logits, Sequence[int], int], bool] | None = None
    """Whether a row decides too narrowly after `recent`, at a place of the answer."""
    look: Callable[[Logits, Sequence[int], Draft], tuple[Insight, ...]] | None = None
    """Shown the row that each token of a round was decided by, where that was asked for."""
    begun: tuple[int, ...] = ()
    """Tokens of the answer that are written already; `max_tokens` counts them."""
    thought: Thought | None = None
    """Follows the answer's thinking, and may end it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One round: what was drafted, how much of it stands, and the tokens that came out."""

    draft: Draft
    accepted: int
    tokens: list[int]
    ms: Times
    width: int
    """Tokens that the target read in this pass; 0 where these were given, not drawn."""
    guarded: int = 0
    """Tokens that were computed again, alone."""
    insights: tuple[Insight, ...] = ()
    """One a token, where they were asked for."""


@dataclass(frozen=True, slots=True)
class End:
    reason: FinishReason


def generate(
    target: Reader, drafter: Drafter, verifier: Verifier, job: Job
) -> Iterator[Prefill | Step | End]:
    """Continue the prompt; the first round reads the prompt's last batch and drafts nothing.

    At every yield the target has read all tokens but the last, so closing needs no clean-up.
    """
    try:
        yield from _rounds(target, drafter, verifier, job)
    except Interrupted:
        yield End("cancelled")


def _rounds(
    target: Reader, drafter: Drafter, verifier: Verifier, job: Job
) -> Iterator[Prefill | Step | End]:
    tokens = [*job.prompt, *job.begun]
    end = min(len(job.prompt) + job.max_tokens, target.model.n_ctx)
    if job.begun and (ended := _ended(tokens, end, target, job)) is not None:
        yield ended
        return
    reused = target.align(tokens)
    yield Prefill(reused, len(tokens), reused)
    for done in target.approach(tokens, job.cancelled):
        yield Prefill(done, len(tokens), reused)
    limit = 0
    while True:
        if job.cancelled():
            yield End("cancelled")
            return
        if closing := job.thought.closing() if job.thought else []:
            step = _written(target, tokens, closing[: end - len(tokens)])
        else:
            step = _round(target, drafter, verifier, job, tokens, limit)
            job.learn(step)
        yield step
        if (ended := _ended(tokens, end, target, job)) is not None:
            yield ended
            return
        # The last token of a round is drawn, not drafted: one fewer may be guessed.
        limit = min(job.draft_length, end - len(tokens) - 1)


def _written(target: Reader, tokens: list[int], more: list[int]) -> Step:
    """A round in which nothing was drawn: these tokens are given."""
    tokens += more
    target.align(tokens)
    return Step(Draft(reason="the thinking is ended"), 0, more, Times(0.0, 0.0, 0.0), 0)


def _ended(tokens: list[int], end: int, target: Reader, job: Job) -> End | None:
    if job.is_end(tokens[-1]):
        return End("eog")
    if len(tokens) >= end:
        return End("context" if len(tokens) >= target.model.n_ctx else "length")
    return None


def _round(
    target: Reader,
    drafter: Drafter,
    verifier: Verifier,
    job: Job,
    tokens: list[int],
    limit: int,
) -> Step:
    began, verified = time.perf_counter(), target.model.seconds
    draft = drafter.propose(tokens, limit) if limit > 0 else Draft()
    room = target.model.n_batch - len(draft.tokens)
    for _ in target.skim(tokens, room, job.cancelled):
        pass  # only where a memory that cannot be cut was emptied
    if len(tokens) - target.n_read > room:
        raise Interrupted
    fresh = tokens[target.n_read :]
    rows = target.read([*fresh, *draft.tokens], len(draft.tokens) + 1)
    width = len(fresh) + len(draft.tokens)
    accepted, new, rows, guarded = _decide(target, verifier, job, tokens, draft, rows)
    new = new[: next((i + 1 for i, t in enumerate(new) if job.is_end(t)), len(new))]
    if job.thought is not None:
        new = new[: job.thought.hear(new)]
    insights: tuple[Insight, ...] = ()
    if job.look is not None:
        paused = time.perf_counter()
        insights = job.look(rows, new, draft)
        began += time.perf_counter() - paused  # looking is no part of the round
    tokens += new
    target.align(tokens)
    verify = target.model.seconds - verified
    host = time.perf_counter() - began - verify - draft.seconds
    times = Times(draft.seconds * 1e3, verify * 1e3, host * 1e3)
    return Step(draft, min(accepted, len(new)), new, times, width, guarded, insights)


def _decide(
    target: Reader, verifier: Verifier, job: Job, tokens: list[int], draft: Draft, rows: Logits
) -> tuple[int, list[int], Logits, int]:
    """How many guesses stand, the new tokens, the rows they follow from, how many were guarded."""
    try:
        laws = _Laws(rows, job, tokens, draft.tokens)
        accepted, extra = verifier.verify(laws, draft, len(tokens) - len(job.prompt))
        new = [*draft.tokens[:accepted], extra]
        return accepted, new, rows, 0
    except _Doubt as doubt:
        kept = draft.tokens[: doubt.place]
        rows, extra = _alone(target, verifier, job, [*tokens, *kept], rows[: doubt.place])
        new = [*kept, extra]
        return len(kept) + (draft.tokens[len(kept) : len(new)] == [extra]), new, rows, 1


def _alone(
    target: Reader, verifier: Verifier, job: Job, text: list[int], rows: Logits
) -> tuple[Logits, int]:
    """The token after `text`, from a pass over its last token alone.

    Its row follows `rows`, those that decided the tokens before, where someone looks at them.
    """
    before = rows.copy() if job.look is not None else rows[:0]
    target.align(text)
    for _ in target.skim(text, 1, job.cancelled):
        pass  # only where a memory that cannot be cut was emptied
    if len(text) - target.n_read > 1:
        raise Interrupted
    row = target.read(text[-1:], 1)
    _, token = verifier.verify(_Laws(row, job, text, []), Draft(), len(text) - len(job.prompt))
    return (row if job.look is None else np.concatenate((before, row))), token


class _Doubt(Exception):  # noqa: N818  not an error
    """The row after `place` drafted tokens decides too narrowly."""

    def __init__(self, place: int) -> None:
        self.place = place


class _Laws:
    """The target's law after the first i drafted tokens, made when asked for: most are not."""

    def __init__(self, rows: Logits, job: Job, tokens: list[int], drafted: list[int]) -> None:
        self._rows, self._sampling = rows, job.sampling
        self._tokens, self._drafted = tokens, drafted
        self._guard = job.guard if drafted else None
        self._index = len(tokens) - len(job.prompt)

    def __call__(self, i: int) -> Law:
        recent: list[int] = []
        if self._sampling.repeat_penalty != 1.0:
            recent = [*self._tokens[-self._sampling.repeat_last_n :], *self._drafted[:i]]
        row = self._rows[i]
        if self._guard is not None and self._guard(row, recent, self._index + i):
            raise _Doubt(i)
        return law(row, self._sampling, recent)
