"""What guesses are worth, and what they cost, in tokens at the rate at which tokens come now."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from localspec.engine.control.acceptance_stats import PairStats, confidence_bucket, match_bucket
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.protocols import Distribution, Draft, Logits
from localspec.engine.sampling import one_hot

_MIN_PROBABILITY = 1e-3
"""A chance that is not followed further."""
_NEARLY_FREE_SHARE = 0.25
"""The share of what a try has cost already that one guess more may cost."""


class ExpectedGain:
    """One way of verifying's counts, put against what this machine's passes cost."""

    def __init__(self, costs: PassCosts, pair_stats: PairStats) -> None:
        self.costs, self.acceptance, self.throughput = (
            costs,
            pair_stats.acceptance,
            pair_stats.throughput,
        )

    @property
    def tokens_per_ms(self) -> float:
        """Tokens per millisecond."""
        return self.throughput.tokens_per_ms(self.costs.plain_ms)

    def model_gain(self, n_drafted: int, probability: float, limit: int) -> float:
        """The most tokens that further guesses of the model would win, less what they cost.

        `place` guesses are drafted and all stand with this `chance`.  It looks past the next
        one, because the verify curve has steps.
        """
        verify, rate = self.costs.verify_ms, self.tokens_per_ms
        step, before = self.costs.draft_ms, verify[n_drafted + 1]
        best, won, cost = -math.inf, 0.0, 0.0
        first = 0 if n_drafted == 0 else -1  # later passes have nothing to catch up with
        for n in range(n_drafted, min(n_drafted + limit, len(verify) - 2)):
            probability *= self.acceptance.mean_probability(n)
            if probability < _MIN_PROBABILITY:
                break
            won += probability
            cost += self.costs.first_draft_ms if n == first else step
            best = max(best, won - rate * (cost + verify[n + 2] - before))
        return best

    def verify_cost(self, n_drafted: int) -> float:
        """What verifying one guess more costs, in tokens, when `place` are drafted."""
        verify = self.costs.verify_ms
        return self.tokens_per_ms * (verify[n_drafted + 2] - verify[n_drafted + 1])

    def is_nearly_free(self, n_drafted: int) -> bool:
        """Whether a try that drafted `place` guesses learns more for little: a step was climbed."""
        verify, step = self.costs.verify_ms, self.costs.draft_ms
        so_far = n_drafted * step + verify[n_drafted + 1] - verify[1]
        return step + verify[n_drafted + 2] - verify[n_drafted + 1] < _NEARLY_FREE_SHARE * so_far

    def lookup_gain(
        self, lookup_draft: Draft, n_drafted: int, probability: float
    ) -> tuple[int, float]:
        """How many of these copied guesses to keep behind `place` others, and what they win."""
        if not lookup_draft.tokens:
            return 0, 0.0
        verify, rate = self.costs.verify_ms, self.tokens_per_ms
        bucket, table = match_bucket(lookup_draft.match_length), self.acceptance.lookup
        length, best, won = 0, 0.0, 0.0
        for n in range(min(len(lookup_draft.tokens), len(verify) - 2 - n_drafted)):
            probability *= table.probability(bucket, n)
            won += probability
            gain = won - rate * (verify[n_drafted + n + 2] - verify[n_drafted + 1])
            if gain > best:
                length, best = n + 1, gain
        return length, best

    def catch_up_cost(self, n: int) -> float:
        """What it costs that the draft model first reads n guesses of another source."""
        costs = self.costs
        return self.tokens_per_ms * costs.draft_ms * costs.verify_ms[n + 1] / costs.plain_ms


# --- A draft of the model while it grows, and drafts of two sources put together.

_MIN_TRIAL_PROBABILITY = 0.2
"""A try goes no further once its guesses stand together less often than this."""


class DraftBudget:
    """A `Gauge`: ends a draft where one more guess, or one more pass, would not pay.

    `overtaken` says whether another source now guesses as well for nothing; `forced` makes the
    first guess whatever it promises.
    """

    def __init__(
        self,
        gain: ExpectedGain,
        draft_prefix: Sequence[int],
        prefix_probability: float,
        limit: int,
        is_overtaken: Callable[[list[int]], bool],
    ) -> None:
        self._gain, self._is_overtaken = gain, is_overtaken
        self._drafted, self._end = list(draft_prefix), len(draft_prefix) + limit
        self.prefix_length = len(draft_prefix)
        self.probability = prefix_probability
        """That all guesses so far stand."""
        self.is_forced = False
        self.expected_accepted = 0.0
        """How many of the model's guesses will stand, as far as is known."""
        self.confidence_buckets: list[int] = []
        self.n_passes = 0

    def should_draft_token(self, confidence: float) -> bool:
        self.n_passes += 1
        place, bucket = len(self._drafted), confidence_bucket(confidence)
        survival = self._gain.acceptance
        own = survival.model.probability(bucket, place)
        chance = self.probability * own
        gain = chance - self._gain.verify_cost(place)
        if gain <= 0:
            gain += max(0.0, self._gain.model_gain(place + 1, chance, self._end - place - 1))
        if gain <= 0 and not self.is_forced:
            survival.record_model_token(place, own)
            return False
        self.probability = chance
        self.expected_accepted += chance
        self.confidence_buckets.append(bucket)
        return True

    def should_continue(self, token: int) -> bool:
        self._drafted.append(token)
        place = len(self._drafted)
        if place >= self._end:
            return False
        if self._gain.model_gain(place, self.probability, self._end - place) <= 0:
            cheap = self.probability > _MIN_TRIAL_PROBABILITY and self._gain.is_nearly_free(place)
            return self.is_forced and cheap
        return not self._is_overtaken(self._drafted)


def join_drafts(first: Draft, second: Draft) -> Draft:
    """One draft after the other; laws for all, where any guess was drawn from one."""
    seconds = first.decode_seconds + second.decode_seconds
    if not second.tokens:
        return replace(first, decode_seconds=seconds)
    laws: list[Distribution] | None = None
    if first.distributions is not None or second.distributions is not None:
        laws = [*_draft_distributions(first), *_draft_distributions(second)]
    rows: list[Logits | None] | None = None
    if first.logits is not None or second.logits is not None:
        rows = [*_draft_logits(first), *_draft_logits(second)]
    return Draft(
        [*first.tokens, *second.tokens],
        laws,
        f"{first.source}+{second.source}",
        seconds,
        max(first.match_length, second.match_length),
        f"{first.reason}; {second.reason}",
        rows,
    )


def _draft_logits(draft: Draft) -> Sequence[Logits | None]:
    return draft.logits if draft.logits is not None else [None] * len(draft.tokens)


def _draft_distributions(draft: Draft) -> list[Distribution]:
    return (
        draft.distributions
        if draft.distributions is not None
        else [one_hot(token) for token in draft.tokens]
    )
