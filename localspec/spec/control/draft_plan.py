"""What drafting is expected to gain at each length, and where a draft has to end.

All costs are in one-token passes of the target, and all gains in tokens: time is
converted at the rate of now, in tokens per pass (Dinkelbach's method for a ratio).

An example with numbers. A draft pass costs .1, verifying 2, 3, 4 rows costs 1.1, 1.2,
1.3 passes, and each draft token is accepted with probability .6 if those before it are.
The rate is 1 token per pass. Two draft tokens give .6 + .36 = .96 tokens more than a
plain round, and cost 2 * .1 + (1.2 - 1) = .4 passes more: a gain of .56. A third adds
.216 tokens and costs .1 + .1, a gain of .016 more; a fourth would lose. So the plan
gains .576 tokens a round.

At a rate of 2 tokens per pass the same time is worth twice as much. The first token
still gains .6 - 2 * .2 = .2, and the second loses: drafts are shorter where time is dear.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from msgspec import Struct

from localspec.protocol.wire import MODEL_DRAFT_MAX
from localspec.spec.control.pair_beliefs import (
    Acceptance,
    PairBeliefs,
    confidence_bucket,
)

_HELD_WIDTHS = (1, 2, 3, 4, 6, 8)
"""Widths of which one may be held where another costs extra."""
_HELD_ADVANTAGE = (
    0.03  # Another width than the held one must gain this many tokens more.
)


class DraftCosts(Struct, frozen=True):
    """Costs of passes, in one-token passes of the target."""

    verify: Sequence[float]
    """Of a target pass by width, from 1 on; the place 0 is not used."""
    first_draft: float  # Of the first draft pass of a round.
    next_draft: float  # Of each after it; 0 if one pass drafts a block.
    excursion: float = 0.0
    """Of a pass whose width is not the one before it, and of coming back."""
    max_rollback: int = sys.maxsize
    """Rejected draft tokens of a pass that can be dropped.

    If there are more, the memory returns to its state before the pass, and the next pass
    reads what was accepted once more.
    """

    def drafting(self, n: int) -> float:
        """Cost of drafting n tokens."""
        if not n:
            return 0.0
        return self.first_draft + self.next_draft * (n - 1)

    def with_held_width(self, held: int) -> list[float]:
        """Of a target pass by width, if most passes have the width `held`."""
        costs = [cost + self.excursion for cost in self.verify]
        costs[held] = self.verify[held]
        return costs


class DraftPlan:
    """The gain of drafting, and two thresholds a draft token, until the next plan.

    `rate`: the tokens that a pass is worth.
    """

    def __init__(
        self,
        beliefs: PairBeliefs,
        acceptance: Acceptance,
        costs: DraftCosts,
        *,
        rate: float,
        held_width: int,
    ) -> None:
        self._beliefs = beliefs
        self._costs = costs
        self._verify = costs.with_held_width(held_width)
        self._copies: dict[tuple[int, int], CopyGain] = {}
        self._thresholds: _Thresholds | None = None
        self.acceptance = acceptance
        self.rate = rate
        self.held_width = held_width
        # A plain round, too, has to leave the held width.
        leaving = self._verify[1] - costs.verify[1]
        self._best = self._best_length()
        self.gain = self._best.gain - rate * leaving

    def _best_length(self) -> _LengthGain:
        """Of the lengths from 1 on."""
        mean = self.acceptance.mean
        best: _LengthGain | None = None
        probability = 1.0
        tokens = 0.0
        for n in range(1, self.max_draft + 1):
            probability *= mean
            tokens += probability
            cost = self.round_cost(n)
            gain = tokens - self.rate * cost
            if best is None or gain > best.gain:
                best = _LengthGain(gain, tokens, cost)
        assert best is not None
        return best

    def saved_share(self, gain_error: float) -> float:
        """The share of the passes of plain decoding that drafting saves; below 0 if none.

        If rounds with the best length have .96 more tokens than plain ones and cost .4
        passes more, 1.96 tokens take 1.4 passes: .29 of the passes are saved.
        """
        tokens = max(0.0, self._best.tokens + gain_error)
        return 1 - (1 + self._best.cost) / (1 + tokens)

    @property
    def max_draft(self) -> int:
        return min(MODEL_DRAFT_MAX, len(self._verify) - 2)

    def round_cost(self, n: int) -> float:
        """What a round with n draft tokens costs more than a plain one."""
        return self._costs.drafting(n) + self._verify[n + 1] - self._verify[1]

    def copy_gain(self, match_length: int, n_copied: int) -> CopyGain:
        """Of a copy of at most `n_copied` tokens behind a match."""
        key = (match_length, n_copied)
        found = self._copies.get(key)
        if found is None:
            found = self._best_copy(match_length, n_copied)
            self._copies[key] = found
        return found

    def _best_copy(self, match_length: int, n_copied: int) -> CopyGain:
        """The gain by length, with what reading again costs where it is needed.

        For example up to 2 tokens can be dropped, and 6 are copied. Where 0, 1, 2 or 3
        of them are right, more than 2 are wrong: with 3 right ones the next pass reads
        these, the token before them and the correction, 5 rows in place of 1.
        """
        best = CopyGain(0, 0.0, 0.0)
        verify = self._verify
        probability = 1.0
        tokens = 0.0
        # By the number of right tokens: what reading them again costs, if no more are.
        reading_again: list[float] = []
        for n in range(1, min(n_copied, len(verify) - 2) + 1):
            before = probability
            probability *= self._beliefs.copy_probability(match_length + n - 1)
            tokens += probability
            cost = verify[n + 1] - verify[1]
            reading_again.append((before - probability) * cost)
            cost += sum(reading_again[: max(0, n - self._costs.max_rollback)])
            gain = tokens - self.rate * cost
            if gain > best.gain:
                best = CopyGain(n, gain, tokens)
        return best

    @property
    def thresholds(self) -> _Thresholds:
        """Made when they are needed: most plans of a pause draft nothing."""
        if self._thresholds is None:
            self._thresholds = self._find_thresholds()
        return self._thresholds

    def _find_thresholds(self) -> _Thresholds:
        """With n tokens drafted, all accepted with probability q, k more give q * a_k.

        a_k is the sum of mean, mean ** 2, … mean ** k. Another draft pass pays if for
        some k that is more than its cost at the present rate: if q is above the least
        ratio of cost and a_k. The token that a pass has given pays for its row in the
        same way, and its pass is paid already.
        """
        mean = self.acceptance.mean
        drafting = self._costs.drafting
        verify = self._verify
        end = self.max_draft
        go_on: list[float] = []
        take: list[float] = []
        for n in range(end):
            least_go_on = math.inf
            least_take = self.rate * (verify[n + 2] - verify[n + 1])
            tokens = 0.0
            power = 1.0
            for k in range(1, end - n + 1):
                power *= mean
                tokens += power
                rows = verify[n + k + 1] - verify[n + 1]
                cost = drafting(n + k) - drafting(n) + rows
                least_go_on = min(least_go_on, self.rate * cost / tokens)
                if n + k < end:
                    rows = verify[n + k + 2] - verify[n + 1]
                    cost = drafting(n + 1 + k) - drafting(n + 1) + rows
                    least_take = min(least_take, self.rate * cost / (1 + tokens))
            go_on.append(least_go_on)
            take.append(least_take)
        return _Thresholds(go_on, take)


class _LengthGain(Struct, frozen=True):
    """What rounds with so many draft tokens have and cost more than plain rounds."""

    gain: float
    tokens: float
    cost: float  # In one-token passes.


class CopyGain(Struct, frozen=True):
    """The best number of tokens to copy, and what they are expected to give."""

    n: int
    gain: float
    expected_right: float


class _Thresholds(Struct, frozen=True):
    """By the number of tokens drafted: the least probability that all are accepted."""

    go_on: list[float]
    """For another pass of the draft: the token that it gives has to pay for the pass, too."""
    take: list[float]
    """For drafting the token that a pass has given: it has to pay for its row alone.

    The next token counts here: all are accepted up to it with this probability.
    """


def plan_drafts(
    beliefs: PairBeliefs, costs: DraftCosts, *, rate: float, held_width: int
) -> tuple[DraftPlan, DraftPlan]:
    """Plans of drafting if most passes are plain, and if most have the best held width.

    They are the same where a change of the width costs nothing. `rate` is that of now, and
    at least the one that the beliefs promise: else the first plan of an answer, made at the
    rate of plain decoding, would draft too much. `held_width` is that of the plan before.
    """
    acceptance = beliefs.acceptance()
    rate = max(rate, _promised_rate(acceptance.mean, costs))
    from_plain = DraftPlan(beliefs, acceptance, costs, rate=rate, held_width=1)
    best = from_plain
    if costs.excursion:
        best_value = -math.inf
        for width in _HELD_WIDTHS:
            if width >= len(costs.verify):
                break
            plan = from_plain
            if width > 1:
                plan = DraftPlan(
                    beliefs, acceptance, costs, rate=rate, held_width=width
                )
            value = plan.gain
            if width == held_width:
                value += _HELD_ADVANTAGE
            if value > best_value:
                best = plan
                best_value = value
    return from_plain, best


def _promised_rate(mean: float, costs: DraftCosts) -> float:
    """Tokens per pass of the best fixed draft length."""
    best = 1.0
    tokens = 1.0
    probability = 1.0
    for n in range(1, min(MODEL_DRAFT_MAX, len(costs.verify) - 2) + 1):
        probability *= mean
        tokens += probability
        best = max(best, tokens / (costs.verify[n + 1] + costs.drafting(n)))
    return best


class PlannedStop:
    """Ends a draft where another token or pass is not worth its cost.

    A probe drafts its first token in any case, and further ones where they pay: it shows
    how good the draft is by now.
    """

    def __init__(self, plan: DraftPlan, limit: int, *, is_probe: bool) -> None:
        self._plan = plan
        self._limit = min(limit, plan.max_draft)
        self._is_probe = is_probe
        self._probability = 1.0  # That all draft tokens so far are accepted.
        self.expected_accepted = 0.0
        self.buckets: list[int] = []  # Confidence of each draft token.
        self.refused_bucket: int | None = None  # Of the token that was not drafted.
        self.n_passes = 0

    def should_draft_token(self, confidence: float) -> bool:
        self.n_passes += 1
        n = len(self.buckets)
        bucket = confidence_bucket(confidence)
        probability = self._probability * self._plan.acceptance.by_confidence[bucket]
        is_forced = self._is_probe and n == 0
        if probability <= self._plan.thresholds.take[n] and not is_forced:
            self.refused_bucket = bucket
            return False
        self._probability = probability
        self.expected_accepted += probability
        self.buckets.append(bucket)
        return True

    def should_continue(self, token: int) -> bool:
        n = len(self.buckets)
        return n < self._limit and self._probability > self._plan.thresholds.go_on[n]
