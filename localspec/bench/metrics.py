"""Acceptance by draft position, and how much a text repeats itself or its prompt.

The speed-up of a fixed draft length is computed in fit/speedup_model.py.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence

from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import Round
from localspec.protocol.wire import DRAFT_MAX

_MIN_VERIFIED = 8
"""A position with fewer verified draft tokens uses the rate of the position before it."""


@dataclass(frozen=True, slots=True)
class PositionCounts:
    """Draft tokens verified at one position, that is, after all earlier ones were accepted."""

    reached: int
    accepted: int


def count_by_position(rounds: Iterable[Round]) -> list[PositionCounts]:
    """A round that ended with its answer rejected nothing."""
    reached, accepted = [0] * DRAFT_MAX, [0] * DRAFT_MAX
    for event in rounds:
        verified = event.accepted
        if event.accepted < min(event.drafted, len(event.tokens)):
            verified += 1  # the rejected one
        for j in range(min(verified, DRAFT_MAX)):
            reached[j] += 1
            accepted[j] += j < event.accepted
    n_positions = sum(1 for n in reached if n)
    return [PositionCounts(reached[j], accepted[j]) for j in range(n_positions)]


def conditional_acceptance(counts: Sequence[PositionCounts]) -> list[float | None]:
    """By position: the share accepted of the draft tokens verified there."""
    return [p.accepted / p.reached if p.reached else None for p in counts]


def cumulative_acceptance(counts: Sequence[PositionCounts]) -> list[float]:
    """Probability that the first 1, 2, … DRAFT_MAX draft tokens are all accepted.

    Empty without counts.
    """
    if not counts:
        return []
    rate = counts[0].accepted / counts[0].reached
    probabilities, product = [], 1.0
    for j in range(DRAFT_MAX):
        if j < len(counts) and counts[j].reached >= _MIN_VERIFIED:
            rate = counts[j].accepted / counts[j].reached
        product *= rate
        probabilities.append(product)
    return probabilities


# --- Repetition, within a text and of its prompt.

_NGRAM_SIZE = 4
_WORD_PATTERN = re.compile(r"\w+|[^\w\s]")


def distinct_4grams(ids: Sequence[int]) -> float | None:
    """Share of distinct 4-grams; None for fewer than four tokens."""
    grams = _ngrams(ids)
    return len(set(grams)) / len(grams) if grams else None


def copied_share(prompt: str, text: str) -> float | None:
    """Share of the text's word 4-grams that occur in the prompt; None for fewer than four words.

    Words, because the prompt's token ids are unknown here. White space does not count.
    """
    grams = _ngrams(_WORD_PATTERN.findall(text))
    prompt_grams = set(_ngrams(_WORD_PATTERN.findall(prompt)))
    return sum(gram in prompt_grams for gram in grams) / len(grams) if grams else None


def _ngrams(items: Sequence[Hashable]) -> list[tuple[Hashable, ...]]:
    return [tuple(items[i : i + _NGRAM_SIZE]) for i in range(len(items) - _NGRAM_SIZE + 1)]
