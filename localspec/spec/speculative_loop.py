"""The speculative decoding loop: draft, verify, accept, commit.

A round, with numbers. The text has five tokens. The target's KV cache holds all of them
but the last, which the round before has emitted:

    text    [12, 7, 31, 5, 40]
    cache   [12, 7, 31, 5]

1. Draft. The drafter proposes [8, 9, 2].
2. Verify. One `llama_decode` of [40, 8, 9, 2] gives four rows of logits. Row i is the
   target's opinion after i draft tokens: row 0 (after 40) decides about 8, row 1 about 9,
   row 2 about 2, and row 3 tells what follows the whole draft.
3. Accept. The verifier accepts 8 and 9, rejects 2, and samples 6 from row 2 instead.
   Row 3 comes after a token that is not in the text, so it is not used.
4. Commit. The text grows by [8, 9, 6]. The cache holds the 2 in place of the 6: it is
   truncated, and again lacks just the last token.

    text    [12, 7, 31, 5, 40, 8, 9, 6]
    cache   [12, 7, 31, 5, 40, 8, 9]

So one pass of the target emitted three tokens. It emits at least one, also if the first
draft token is rejected, and at most one more than were drafted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext

from msgspec import Struct

from localspec.protocol.events import FinishReason, Prefill, RoundTimes, SpeculationPlan
from localspec.protocol.wire import DRAFT_MAX
from localspec.spec.picture_ids import last_tokens
from localspec.spec.prefix_cache import PrefixCache
from localspec.spec.prepared_answer import PreparedAnswer
from localspec.spec.protocols import (
    DecodeInterrupted,
    Distribution,
    Draft,
    Drafter,
    DraftWait,
    InvalidDraftError,
    Logits,
    OverlapRound,
)
from localspec.spec.sampling import compute_distribution
from localspec.spec.token_probabilities import TokenProbabilities, score_tokens

_NO_OVERLAP = nullcontext(DraftWait())


class Drafting(Struct, frozen=True):
    """What drafts for one answer."""

    drafter: Drafter
    max_length: int  # The most draft tokens of a round; 0 for plain decoding.
    plan: SpeculationPlan = SpeculationPlan("on", "")  # Known before the first round.
    plan_change: Callable[[], SpeculationPlan | None] = lambda: None
    """Returns a new plan if the state of speculation has changed.

    The loop does not call it: `engine/output_processor.py` does, after every round that
    it reports.
    """
    on_round: Callable[[RoundResult], None] = lambda _: None
    """The loop calls it with every round that has a target pass, before it is yielded.

    A round of forced tokens (`_force_tokens`) has no pass, and says nothing of a draft.
    """
    overlap: OverlapRound = lambda _tokens, _draft: _NO_OVERLAP
    """Entered around each target pass that verifies a draft."""


class RoundResult(Struct):
    """One round: the draft, how many of its tokens were accepted, and what it emitted.

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
    target: PrefixCache, answer: PreparedAnswer, drafting: Drafting
) -> Iterator[Prefill | RoundResult | LoopEnd]:
    """Generate an answer.

    The first round decodes the prompt's last batch and drafts nothing. At every yield
    the target holds all tokens but the last, so the generator can be closed there.
    """
    try:
        prompt = answer.prompt
        n_prompt = len(prompt)
        tokens = [*prompt, *answer.resumed_tokens]
        end = min(n_prompt + answer.max_tokens, target.model.n_ctx)
        if answer.resumed_tokens:
            ended = _check_end(tokens, end, target, answer)
            if ended is not None:
                yield ended
                return

        reused = target.rewind_to(tokens)
        yield Prefill(reused, len(tokens), reused)
        for done in target.prefill(tokens, answer.is_cancelled):
            yield Prefill(done, len(tokens), reused)

        max_draft = min(drafting.max_length, target.model.n_batch - 1)
        limit = 0
        while True:
            if answer.is_cancelled():
                raise DecodeInterrupted
            closing = answer.thinking.take_closing_tokens() if answer.thinking else []
            if closing:
                step = _force_tokens(target, tokens, closing[: end - len(tokens)])
            else:
                step = _run_round(
                    target,
                    answer,
                    drafting,
                    tokens,
                    index=len(tokens) - n_prompt,
                    limit=limit,
                )
                drafting.on_round(step)
            if answer.constraint is not None and not answer.is_eog(tokens[-1]):
                answer.constraint.commit(tokens)
            yield step

            ended = _check_end(tokens, end, target, answer)
            if ended is not None:
                yield ended
                return
            # A round emits one token more than it accepts.
            limit = min(max_draft, end - len(tokens) - 1)
    except DecodeInterrupted:
        yield LoopEnd("cancelled")


def _check_end(
    tokens: list[int], end: int, target: PrefixCache, answer: PreparedAnswer
) -> LoopEnd | None:
    if answer.is_eog(tokens[-1]):
        return LoopEnd("eog")
    if len(tokens) < end:
        return None
    if len(tokens) >= target.model.n_ctx:
        return LoopEnd("context")
    return LoopEnd("length")


def _force_tokens(
    target: PrefixCache, tokens: list[int], forced: list[int]
) -> RoundResult:
    """A round without a pass: the tokens are given, as those that end the thinking."""
    tokens += forced
    target.rewind_to(tokens)
    draft = Draft(reason="thinking budget reached")
    return RoundResult(draft, 0, forced, RoundTimes(0.0, 0.0, 0.0), width=0)


def _run_round(
    target: PrefixCache,
    answer: PreparedAnswer,
    drafting: Drafting,
    tokens: list[int],
    *,
    index: int,
    limit: int,
) -> RoundResult:
    """Steps 1 to 4 of the example above; `tokens` grows by what the round emits.

    `index` is the answer's length before the round, `limit` the most draft tokens.

    Only `target.decode` in the middle knows of the pass. What comes before makes a
    batch for one answer, and what comes after reads that answer's rows: rounds of
    several answers could share a pass there.
    """
    began = time.perf_counter()
    decoded = target.model.decode_seconds
    draft = Draft()
    if len(tokens) - target.n_cached > 1:
        # The pass reads text again, behind the last checkpoint: another return to that
        # would read still more. It is no wider than that of the longest draft.
        n_unread = len(tokens) - target.n_cached
        limit = min(limit, target.max_rollback, DRAFT_MAX + 1 - n_unread)
    if limit > 0:
        draft = _make_draft(
            drafting.drafter, answer, tokens, limit=limit, n_vocab=target.model.n_vocab
        )

    if len(draft.tokens) > target.max_rollback and not target.save_draft_start():
        draft = draft.first(target.max_rollback)
    batch = _make_batch(target, answer, tokens, draft)
    with drafting.overlap(tokens, draft) as wait:
        rows = target.decode(batch, len(draft.tokens) + 1)

    distributions = _TargetDistributions(rows, answer, tokens, draft.tokens)
    accepted, extra = answer.verifier.verify(distributions, draft, index)
    new = _cut_at_end(answer, [*draft.tokens[:accepted], extra])

    probabilities: tuple[TokenProbabilities, ...] = ()
    if answer.n_alternatives is not None:
        scoring_began = time.perf_counter()
        probabilities = score_tokens(rows, new, draft, answer.n_alternatives)
        # Looking must not count as host time: rounds that nobody watches have none.
        began += time.perf_counter() - scoring_began

    tokens += new
    target.rewind_to(tokens)

    verify = target.model.decode_seconds - decoded
    drafted = draft.decode_seconds + wait.seconds
    host = time.perf_counter() - began - verify - drafted
    times = RoundTimes(drafted * 1e3, verify * 1e3, host * 1e3)
    return RoundResult(
        draft=draft,
        accepted=min(accepted, len(new)),
        tokens=new,
        ms=times,
        width=len(batch),
        probabilities=probabilities,
    )


def _make_draft(
    drafter: Drafter,
    answer: PreparedAnswer,
    tokens: list[int],
    *,
    limit: int,
    n_vocab: int,
) -> Draft:
    """The part of a drafter's draft that the target can verify.

    `limit` is at least 1, and below the target's batch, so one pass always has room for
    the draft and the token before it. Of ids that the target's vocabulary of 32,000
    lacks, and with a limit of 3:

        drafted                     verified
        [8, 9, 2, 2]                [8, 9, 2]   the limit
        [8, -1, 2]                  [8]         certain tokens end before a wrong id
        [8, -1, 2], distributions   error

    Tokens that were sampled cannot be cut because of what they are: where a drafter
    samples 8 half of the time and a wrong id otherwise, the target would be left alone
    only where 8 was not sampled, and 8 would become too frequent in the text.
    """
    draft = drafter.propose(tokens, limit)
    n = min(len(draft.tokens), limit)
    distributions = draft.distributions
    if distributions is not None and len(distributions) != len(draft.tokens):
        problem = f"{len(draft.tokens)} tokens with {len(distributions)} distributions"
        raise InvalidDraftError(_name_drafter(draft, answer), problem)
    for i in range(n):
        token = draft.tokens[i]
        if 0 <= token < n_vocab:
            continue
        if distributions is not None:
            problem = f"it drafted token {token}, and the target has {n_vocab:,} tokens"
            raise InvalidDraftError(_name_drafter(draft, answer), problem)
        n = i
        break
    if n < len(draft.tokens):
        draft = draft.first(n)

    if answer.constraint is not None:
        draft = answer.constraint.fit_draft(tokens, draft, limit)
    return draft


def _name_drafter(draft: Draft, answer: PreparedAnswer) -> str:
    return draft.source or answer.drafting.method


def _make_batch(
    target: PrefixCache, answer: PreparedAnswer, tokens: list[int], draft: Draft
) -> list[int]:
    """The tokens that the cache lacks, and the draft: at most `n_batch`."""
    max_left = target.model.n_batch - len(draft.tokens)
    # In most rounds one token is left. All are left if the memory had to be emptied.
    if len(tokens) - target.n_cached > max_left:
        for _ in target.prefill_until(tokens, max_left, answer.is_cancelled):
            pass
        if len(tokens) - target.n_cached > max_left:
            raise DecodeInterrupted
    return [*tokens[target.n_cached :], *draft.tokens]


def _cut_at_end(answer: PreparedAnswer, new: list[int]) -> list[int]:
    """The new tokens up to the first that ends the answer or its thinking budget."""
    for i, token in enumerate(new, 1):
        if answer.is_eog(token):
            del new[i:]
            break
    if answer.thinking is not None:
        del new[answer.thinking.consume_tokens(new) :]
    return new


class _TargetDistributions:
    """Computes the target's distribution after the first i draft tokens, on demand.

    A verifier that rejects the first draft token needs one row, and not all of them.
    """

    def __init__(
        self,
        rows: Logits,
        answer: PreparedAnswer,
        tokens: list[int],
        drafted: list[int],
    ) -> None:
        self._rows = rows
        self._sampling = answer.sampling
        self._constraint = answer.constraint
        self._tokens = tokens
        self._drafted = drafted

    def __call__(self, i: int) -> Distribution:
        recent: list[int] = []
        n = self._sampling.history_length
        if n:
            recent = [*last_tokens(self._tokens, n), *self._drafted[:i]]
        grammar = None
        if self._constraint is not None:
            grammar = self._constraint.state_after(self._tokens, self._drafted[:i])
        return compute_distribution(self._rows[i], self._sampling, recent, grammar)
