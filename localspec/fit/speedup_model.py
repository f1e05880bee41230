"""What drafting gains: the speed-up of each fixed draft length, from costs and survival.

A round that drafts γ guesses takes γ·c + v(γ + 1) + o one-token passes and emits
1 + Σ (chance that the first j guesses all stand), j = 1 … γ.  With the same chance α everywhere
that is (1 − α^(γ+1)) / (1 − α) / (γ·c + v(γ + 1) + o).  γ = 0 is plain decoding: 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from localspec.protocol.wire import DRAFT_MAX


@dataclass(frozen=True, slots=True)
class SpeculationCosts:
    """In one-token passes of the target: a guess, passes by width, what a drafting round adds."""

    c: float
    verify_curve: Mapping[int, float]
    host: float = 0.0

    def verify_cost(self, width: float) -> float:
        """v by straight lines between what was measured, and on after the last."""
        return interpolate_curve(self.verify_curve, width)


@dataclass(frozen=True, slots=True)
class BestDraftLength:
    """The fixed draft length that would be fastest."""

    gamma: int
    speedup: float


def interpolate_curve(curve: Mapping[int, float], width: float) -> float:
    """A verify curve by straight lines between its points, and on after the last; v(1) is 1."""
    points = dict(curve) | {1: 1.0}
    known = sorted(points)
    if len(known) == 1:
        return 1.0
    spans = list(pairwise(known))
    low, high = next((span for span in spans if width <= span[1]), spans[-1])
    slope = (points[high] - points[low]) / (high - low)
    if width > high:
        return points[high] + max(slope, 0.0) * (width - high)
    return points[low] + slope * (width - low)


def expected_speedup(costs: SpeculationCosts, prefix_probs: Sequence[float], gamma: int) -> float:
    """Against plain decoding, drafting `gamma` guesses every round."""
    if gamma == 0:
        return 1.0
    emitted = 1 + sum(prefix_probs[:gamma])
    return emitted / (gamma * costs.c + costs.verify_cost(gamma + 1) + costs.host)


def best_draft_length(costs: SpeculationCosts, prefix_probs: Sequence[float]) -> BestDraftLength:
    """The fastest of the fixed lengths 0 … DRAFT_MAX."""
    lengths = range(min(DRAFT_MAX, len(prefix_probs)) + 1)
    gamma = max(lengths, key=lambda n: expected_speedup(costs, prefix_probs, n))
    return BestDraftLength(gamma, expected_speedup(costs, prefix_probs, gamma))
