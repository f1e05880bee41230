"""What a pair could reach: the speed-up of each fixed draft length, from costs and survival.

A round that drafts γ guesses takes γ·c + v(γ + 1) + o one-token passes and emits
1 + Σ (chance that the first j guesses all stand), j = 1 … γ.  With the same chance α everywhere
that is (1 − α^(γ+1)) / (1 − α) / (γ·c + v(γ + 1) + o).  γ = 0 is plain decoding: 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from localspec.protocol.events import Round
from localspec.protocol.wire import DRAFT_MAX

_ENOUGH = 8
"""Guesses that must have been judged at a position before its own share is believed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """In one-token passes of the target: a guess, passes by width, what a drafting round adds."""

    c: float
    verify: Mapping[int, float]
    host: float = 0.0

    def at(self, width: int) -> float:
        """v by straight lines between what was measured, and on after the last."""
        known = sorted({1: 1.0} | dict(self.verify))
        if len(known) == 1:
            return 1.0
        spans = list(pairwise(known))
        low, high = next((span for span in spans if width <= span[1]), spans[-1])
        first, last = self._of(low), self._of(high)
        slope = (last - first) / (high - low)
        if width > high:
            return last + max(slope, 0.0) * (width - high)
        return first + slope * (width - low)

    def _of(self, width: int) -> float:
        return 1.0 if width == 1 else self.verify[width]


@dataclass(frozen=True, slots=True)
class Best:
    """The fixed draft length that would be fastest."""

    gamma: int
    speedup: float


@dataclass(frozen=True, slots=True)
class Position:
    """Guesses judged at one position: all before them stood."""

    reached: int
    kept: int


def positions(rounds: Iterable[Round]) -> list[Position]:
    """Counts by position.  A round that was cut at the end of its answer rejected nothing."""
    reached, kept = [0] * DRAFT_MAX, [0] * DRAFT_MAX
    for event in rounds:
        judged = event.accepted
        if event.accepted < min(event.drafted, len(event.tokens)):
            judged += 1  # the one that was corrected
        for j in range(min(judged, DRAFT_MAX)):
            reached[j] += 1
            kept[j] += j < event.accepted
    seen = sum(1 for n in reached if n)
    return [Position(reached[j], kept[j]) for j in range(seen)]


def hazards(counts: Sequence[Position]) -> list[float | None]:
    """Share kept at each position among those that reached it."""
    return [p.kept / p.reached if p.reached else None for p in counts]


def survival(counts: Sequence[Position]) -> list[float]:
    """Chance that the first 1, 2, … DRAFT_MAX guesses all stand; empty where nothing was judged.

    A position judged too rarely goes by the one before it.
    """
    if not counts:
        return []
    share = counts[0].kept / counts[0].reached
    chances, stands = [], 1.0
    for j in range(DRAFT_MAX):
        if j < len(counts) and counts[j].reached >= _ENOUGH:
            share = counts[j].kept / counts[j].reached
        stands *= share
        chances.append(stands)
    return chances


def speedup(costs: Costs, chances: Sequence[float], gamma: int) -> float:
    """Against plain decoding, drafting `gamma` guesses every round."""
    if gamma == 0:
        return 1.0
    emitted = 1 + sum(chances[:gamma])
    return emitted / (gamma * costs.c + costs.at(gamma + 1) + costs.host)


def best(costs: Costs, chances: Sequence[float]) -> Best:
    """The fastest of the fixed lengths 0 … DRAFT_MAX."""
    lengths = range(min(DRAFT_MAX, len(chances)) + 1)
    gamma = max(lengths, key=lambda n: speedup(costs, chances, n))
    return Best(gamma, speedup(costs, chances, gamma))
