"""What a pair could have reached: how often its guesses stood, counted by place.

What that gains for each fixed draft length is in fit/gain.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from localspec.fit.gain import Best, Costs, best, speedup
from localspec.protocol.events import Round
from localspec.protocol.wire import DRAFT_MAX

__all__ = ["Best", "Costs", "Position", "best", "hazards", "positions", "speedup", "survival"]

_ENOUGH = 8
"""Guesses that must have been judged at a position before its own share is believed."""


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
