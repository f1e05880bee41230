"""Speed-up of speculative decoding with a fixed draft length.

It follows from costs and acceptance.  A round with γ draft tokens takes γ·c + v(γ + 1)
+ o one-token passes and emits 1 + Σ P(the first j draft tokens are accepted), j = 1 …
γ.  With one acceptance rate α the speed-up is (1 − α^(γ+1)) / (1 − α) / (γ·c + v(γ + 1)
+ o).  γ = 0 is plain decoding, with speed-up 1.

Example: α = 0.8, γ = 4, a draft token costs c = 0.1, a pass of five tokens v(5) = 1.4,
o = 0.  A round emits (1 − 0.8^5) / 0.2 = 3.36 tokens and takes 4 × 0.1 + 1.4 = 1.8
passes: the speed-up is 1.87.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

from msgspec import Struct

from localspec.protocol.wire import MODEL_DRAFT_MAX, MeasuredCosts


class SpeculationCosts(Struct, frozen=True):
    """In one-token passes of the target."""

    c: float  # One draft token.
    verify_curve: Mapping[int, float]  # v: a target pass, by the number of tokens.
    host: float = 0.0  # o: added to each drafting round.
    max_draft: int = MODEL_DRAFT_MAX

    def verify_cost(self, width: float) -> float:
        return interpolate_curve(self.verify_curve, width)

    def best_speedup(self, rate: float) -> float:
        """With the best draft length, and a draft in every round.

        It is below 1 if plain decoding is faster.
        """
        lengths = range(1, self.max_draft + 1)
        probs = [rate**n for n in lengths]
        speedups = (expected_speedup(self, probs, n) for n in lengths)
        return max(speedups, default=1.0)


class BestDraftLength(Struct, frozen=True):
    gamma: int
    speedup: float


def interpolate_curve(curve: Mapping[int, float], width: float) -> float:
    """Linear interpolation, extrapolated beyond the last point; v(1) is 1."""
    points = dict(curve) | {1: 1.0}
    if len(points) == 1:
        return 1.0
    spans = list(pairwise(sorted(points)))
    low, high = next((span for span in spans if width <= span[1]), spans[-1])
    slope = (points[high] - points[low]) / (high - low)
    if width > high:
        return points[high] + max(slope, 0.0) * (width - high)
    return points[low] + slope * (width - low)


def expected_speedup(
    costs: SpeculationCosts, prefix_probs: Sequence[float], gamma: int
) -> float:
    """Relative to plain decoding, with `gamma` draft tokens in every round."""
    if gamma == 0:
        return 1.0
    emitted = 1 + sum(prefix_probs[:gamma])
    return emitted / (gamma * costs.c + costs.verify_cost(gamma + 1) + costs.host)


def best_draft_length(
    costs: SpeculationCosts, prefix_probs: Sequence[float]
) -> BestDraftLength:
    """The fastest fixed length, from 0 to the length of `prefix_probs`."""
    lengths = range(min(MODEL_DRAFT_MAX, len(prefix_probs)) + 1)
    gamma = max(lengths, key=lambda n: expected_speedup(costs, prefix_probs, n))
    return BestDraftLength(gamma, expected_speedup(costs, prefix_probs, gamma))


NEVER_PAYS = 1.01  # A break-even rate that no draft reaches.


def break_even_rate(measured: MeasuredCosts) -> float | None:
    """The acceptance rate from which drafting pays, to a hundredth.

    NEVER_PAYS if none is enough, None if the costs are unknown.  Without a draft model
    it is that of prompt lookup, whose drafts take no time.
    """
    curve = {int(width): v for width, v in measured.curve.items() if width.isdecimal()}
    if len(curve) < 2:
        return None
    costs = SpeculationCosts(measured.c or 0.0, curve)

    def pays(percent: int) -> bool:
        probs = [(percent / 100) ** j for j in range(1, MODEL_DRAFT_MAX + 1)]
        return best_draft_length(costs, probs).speedup > 1

    percent = bisect_left(range(101), True, key=pays)
    if percent > 100:
        return NEVER_PAYS
    return percent / 100
