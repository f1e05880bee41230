"""Draft length: the expected gain of more draft tokens, minus their cost.

Gain and cost are in tokens: time is converted at the current throughput.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from localspec.engine.control.pair_stats import PairStats, confidence_bucket, match_bucket
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.protocols import Draft

_MIN_PROBABILITY = 1e-3
"""A draft is not planned beyond this acceptance probability."""
_NEARLY_FREE_SHARE = 0.25
"""A probe may draft one more token if that costs at most this share of its cost so far."""
_MAX_MIN_PROBE_LENGTH = 3


class ExpectedGain:
    """Compares acceptance statistics with pass costs."""

    def __init__(self, costs: PassCosts, pair_stats: PairStats) -> None:
        self.costs = costs
        self.acceptance, self.throughput = pair_stats.acceptance, pair_stats.throughput

    @property
    def tokens_per_ms(self) -> float:
        return self.throughput.tokens_per_ms(self.costs.plain_ms)

    def model_gain(self, n_drafted: int, probability: float, limit: int) -> float:
        """The best net gain of further draft tokens of the model, at most `limit`.

        `n_drafted` tokens are drafted; `probability` is that all of them are accepted. All lengths
        are tried, because the verify curve has steps.
        """
        verify, rate = self.costs.verify_ms, self.tokens_per_ms
        step, before = self.costs.draft_ms, verify[n_drafted + 1]
        best, gain, cost = -math.inf, 0.0, 0.0
        first = 0 if n_drafted == 0 else -1  # only the first pass catches up with the text
        for n in range(n_drafted, min(n_drafted + limit, len(verify) - 2)):
            probability *= self.acceptance.mean_probability(n)
            if probability < _MIN_PROBABILITY:
                break
            gain += probability
            cost += self.costs.first_draft_ms if n == first else step
            best = max(best, gain - rate * (cost + verify[n + 2] - before))
        return best

    def verify_cost(self, n_drafted: int) -> float:
        """The cost in tokens of verifying one more token than `n_drafted`."""
        verify = self.costs.verify_ms
        return self.tokens_per_ms * (verify[n_drafted + 2] - verify[n_drafted + 1])

    def is_nearly_free(self, n_drafted: int) -> bool:
        """Whether one more token adds little to the cost of a probe of `n_drafted` tokens."""
        verify, step = self.costs.verify_ms, self.costs.draft_ms
        cost_so_far = n_drafted * step + verify[n_drafted + 1] - verify[1]
        cost = step + verify[n_drafted + 2] - verify[n_drafted + 1]
        return cost < _NEARLY_FREE_SHARE * cost_so_far

    def min_probe_length(self) -> int:
        """The shortest draft that shows whether drafting pays; behind a cliff over one token."""
        n = 1
        while n < _MAX_MIN_PROBE_LENGTH and self.is_nearly_free(n):
            n += 1
        return n

    def lookup_gain(
        self, lookup_draft: Draft, n_drafted: int, probability: float
    ) -> tuple[int, float]:
        """How many lookup tokens to append to `n_drafted` tokens, and their net gain."""
        if not lookup_draft.tokens:
            return 0, 0.0
        verify, rate = self.costs.verify_ms, self.tokens_per_ms
        bucket, table = match_bucket(lookup_draft.match_length), self.acceptance.lookup
        length, best, expected = 0, 0.0, 0.0
        for n in range(min(len(lookup_draft.tokens), len(verify) - 2 - n_drafted)):
            probability *= table.probability(bucket, n)
            expected += probability
            gain = expected - rate * (verify[n_drafted + n + 2] - verify[n_drafted + 1])
            if gain > best:
                length, best = n + 1, gain
        return length, best

    def catch_up_cost(self, n: int) -> float:
        """The cost in tokens of the draft model first decoding n tokens of another source."""
        costs = self.costs
        return self.tokens_per_ms * costs.draft_ms * costs.verify_ms[n + 1] / costs.plain_ms


_MIN_TRIAL_PROBABILITY = 0.2
"""A probe ends when the acceptance probability of its whole draft falls below this."""


class GainStopPolicy:
    """A `DraftStopPolicy` that ends a draft when another token or pass is not worth its cost.

    `is_overtaken` returns whether another source is now as good at no cost. `is_forced` drafts
    the first token in any case (a probe).
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
        """That all draft tokens so far are accepted."""
        self.is_forced = False
        self.expected_accepted = 0.0
        """Estimated number of the model's draft tokens that are accepted."""
        self.confidence_buckets: list[int] = []
        self.n_passes = 0

    def should_draft_token(self, confidence: float) -> bool:
        self.n_passes += 1
        n, bucket = len(self._drafted), confidence_bucket(confidence)
        acceptance = self._gain.acceptance
        token_probability = acceptance.model.probability(bucket, n)
        probability = self.probability * token_probability
        gain = probability - self._gain.verify_cost(n)
        if gain <= 0:
            gain += max(0.0, self._gain.model_gain(n + 1, probability, self._end - n - 1))
        if gain <= 0 and not self.is_forced:
            acceptance.record_model_token(n, token_probability)
            return False
        self.probability = probability
        self.expected_accepted += probability
        self.confidence_buckets.append(bucket)
        return True

    def should_continue(self, token: int) -> bool:
        self._drafted.append(token)
        n = len(self._drafted)
        if n >= self._end:
            return False
        if self._gain.model_gain(n, self.probability, self._end - n) <= 0:
            is_cheap = self.probability > _MIN_TRIAL_PROBABILITY and self._gain.is_nearly_free(n)
            return self.is_forced and is_cheap
        return not self._is_overtaken(self._drafted)
