"""Draft length: the expected gain of more draft tokens, minus their cost.

Gain and cost are in tokens: time is converted at the current throughput.
"""

from __future__ import annotations

import math

from localspec.spec.control.pair_stats import (
    PairStats,
    confidence_bucket,
    match_bucket,
)
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.control.regret_budget import RegretBudget
from localspec.spec.protocols import Draft

_MIN_PROBABILITY = 1e-3  # A draft is not planned beyond this acceptance probability.


class ExpectedGain:
    """Compares acceptance statistics with pass costs."""

    def __init__(self, costs: PassCosts, pair_stats: PairStats) -> None:
        self.costs = costs
        self.stats = pair_stats
        self.acceptance = pair_stats.acceptance

    @property
    def tokens_per_ms(self) -> float:
        return self.stats.tokens_per_ms(self.costs.plain_ms)

    def model_gain(self, n_drafted: int, probability: float, limit: int) -> float:
        """The best net gain of further draft tokens of the model, at most `limit`.

        `n_drafted` tokens are drafted; `probability` is that all of them are accepted.
        All lengths are tried, because the verify curve has steps.
        """
        verify = self.costs.verify_ms
        rate = self.tokens_per_ms
        step = self.costs.draft_ms
        before = verify[n_drafted + 1]
        best = -math.inf
        gain = 0.0
        cost = 0.0
        for n in range(n_drafted, min(n_drafted + limit, len(verify) - 2)):
            probability *= self.acceptance.mean_probability(n)
            if probability < _MIN_PROBABILITY:
                break
            gain += probability
            if n == 0:
                cost += self.costs.first_draft_ms
            else:
                cost += step
            best = max(best, gain - rate * (cost + verify[n + 2] - before))
        return best

    def lookup_gain(
        self,
        lookup_draft: Draft,
        limit: int,
        regret: RegretBudget,
        *,
        in_prompt: bool = False,
    ) -> tuple[int, float]:
        """How many tokens of a lookup draft to use, and their net gain.

        At most `limit` are used.
        Behind each accepted token the match is one token longer. `in_prompt` as in
        `match_bucket`. Lengths that the budget does not cover are left out.
        """
        verify = self.costs.verify_ms
        rate = self.tokens_per_ms
        lookup = self.acceptance.lookup
        length = 0
        best = 0.0
        match = lookup_draft.match_length
        probability = 1.0
        cautious_probability = 1.0
        expected = 0.0
        cautious = 0.0
        for n in range(1, min(len(lookup_draft.tokens), limit, len(verify) - 2) + 1):
            bucket = match_bucket(match + n - 1, in_prompt=in_prompt)
            probability *= lookup.probability(bucket)
            expected += probability
            cautious_probability *= lookup.cautious_probability(bucket)
            cautious += cautious_probability
            gain = expected - rate * (verify[n + 1] - verify[1])
            if gain > best:
                loss = self.costs.verify_loss(n)
                if regret.can_afford(loss, gains=cautious >= loss, in_prompt=in_prompt):
                    length = n
                    best = gain
        return length, best


class GainStopPolicy:
    """Ends a draft when another token or pass is not worth its cost.

    `is_probe` drafts one token in any case.
    """

    def __init__(self, gain: ExpectedGain, limit: int, *, is_probe: bool) -> None:
        self._gain = gain
        self._limit = limit
        self._is_probe = is_probe
        self._probability = 1.0  # That all draft tokens so far are accepted.
        # Estimated number of draft tokens that are accepted.
        self.expected_accepted = 0.0
        self.confidence_buckets: list[int] = []
        self.n_passes = 0

    def should_draft_token(self, confidence: float) -> bool:
        self.n_passes += 1
        n = len(self.confidence_buckets)
        bucket = confidence_bucket(confidence)
        verify = self._gain.costs.verify_ms
        acceptance = self._gain.acceptance
        token_probability = acceptance.model.probability(bucket)
        probability = self._probability * token_probability
        gain = probability - self._gain.tokens_per_ms * (verify[n + 2] - verify[n + 1])
        if gain <= 0:
            further = self._gain.model_gain(n + 1, probability, self._limit - n - 1)
            gain += max(0.0, further)
        if gain <= 0 and not self._is_probe:
            acceptance.record_model_token(n, token_probability)
            return False
        self._probability = probability
        self.expected_accepted += probability
        self.confidence_buckets.append(bucket)
        return True

    def should_continue(self, token: int) -> bool:
        n = len(self.confidence_buckets)
        self._is_probe = False
        return (
            n < self._limit
            and self._gain.model_gain(n, self._probability, self._limit - n) > 0
        )
