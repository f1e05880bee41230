"""What a pair could have reached: how often its guesses stood, counted by place.

What that gains for each fixed draft length is in fit/gain.py.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from localspec.fit.speedup_model import (
    BestDraftLength,
    SpeculationCosts,
    best_draft_length,
    expected_speedup,
)
from localspec.protocol.events import Round
from localspec.protocol.wire import DRAFT_MAX

__all__ = [
    "BestDraftLength",
    "PositionCounts",
    "SpeculationCosts",
    "best_draft_length",
    "conditional_acceptance",
    "count_by_position",
    "cumulative_acceptance",
    "expected_speedup",
]

_MIN_JUDGED = 8
"""Guesses that must have been judged at a position before its own share is believed."""


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Guesses judged at one position: all before them stood."""

    reached: int
    accepted: int


def count_by_position(rounds: Iterable[Round]) -> list[PositionCounts]:
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
    return [PositionCounts(reached[j], kept[j]) for j in range(seen)]


def conditional_acceptance(counts: Sequence[PositionCounts]) -> list[float | None]:
    """Share kept at each position among those that reached it."""
    return [p.accepted / p.reached if p.reached else None for p in counts]


def cumulative_acceptance(counts: Sequence[PositionCounts]) -> list[float]:
    """Chance that the first 1, 2, … DRAFT_MAX guesses all stand; empty where nothing was judged.

    A position judged too rarely goes by the one before it.
    """
    if not counts:
        return []
    share = counts[0].accepted / counts[0].reached
    chances, stands = [], 1.0
    for j in range(DRAFT_MAX):
        if j < len(counts) and counts[j].reached >= _MIN_JUDGED:
            share = counts[j].accepted / counts[j].reached
        stands *= share
        chances.append(stands)
    return chances


# --- How much a text repeats itself, and how much of it stood in its prompt.

_NGRAM_SIZE = 4
_WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


def distinct_4grams(ids: Sequence[int]) -> float | None:
    """Distinct runs of four tokens among all; None where there is none."""
    grams = _ngrams(ids)
    return len(set(grams)) / len(grams) if grams else None


def copied_share(prompt: str, text: str) -> float | None:
    """Share of the text's runs of four words that stand in the prompt; None where there is none.

    A word is a run of letters and digits, or one other visible character: white space is left
    out, and the prompt's token ids are not known here.
    """
    grams = _ngrams(_WORD_PATTERN.findall(text))
    there = set(_ngrams(_WORD_PATTERN.findall(prompt)))
    return sum(gram in there for gram in grams) / len(grams) if grams else None


def _ngrams(items: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    return [tuple(items[i : i + _NGRAM_SIZE]) for i in range(len(items) - _NGRAM_SIZE + 1)]
