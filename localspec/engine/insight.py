"""What the models gave to a token that was taken, and to those that might have been.

Probabilities are softmax of the raw logits: before any penalty, temperature or truncation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.engine.protocols import Draft, Logits
from localspec.engine.sampling import largest

OTHERS = 3
"""How many of the target's own other choices are told."""


@dataclass(frozen=True, slots=True)
class Chance:
    """One token at one place: the target's probability and rank, and the draft model's."""

    id: int
    p: float
    rank: int
    """1 is the likeliest; the lower id first among equals."""
    p_draft: float | None = None
    """None where no draft model guessed."""
    guessed: bool = False
    """Whether this is the guess that was rejected here."""


@dataclass(frozen=True, slots=True)
class Insight:
    """One place of an answer: the token taken; the rejected guess and the likeliest others."""

    taken: Chance
    instead: tuple[Chance, ...]


def look(rows: Logits, tokens: Sequence[int], draft: Draft) -> tuple[Insight, ...]:
    """An insight for each of a round's tokens, from the row that it was decided by."""
    theirs = draft.rows or []
    found = []
    for i, token in enumerate(tokens):
        guess = draft.tokens[i] if i < len(draft.tokens) else token
        found.append(_seen(rows[i], token, guess, theirs[i] if i < len(theirs) else None))
    return tuple(found)


def _seen(row: Logits, token: int, guess: int, theirs: Logits | None) -> Insight:
    total = _log_total(row)
    total_theirs = 0.0 if theirs is None else _log_total(theirs)
    best = largest(row, min(OTHERS + 2, len(row))).tolist()

    def chance(other: int, guessed: bool = False) -> Chance:
        p_draft = None if theirs is None else _probability(theirs, other, total_theirs)
        rank = best.index(other) + 1 if other in best else _rank(row, other)
        return Chance(other, _probability(row, other, total), rank, p_draft, guessed)

    others = [
        Chance(other, _probability(row, other, total), rank)
        for rank, other in enumerate(best, 1)
        if other not in (token, guess)
    ]
    rejected = [chance(guess, guessed=True)] if guess != token else []
    return Insight(chance(token), (*rejected, *others[:OTHERS]))


def _log_total(row: Logits) -> float:
    """Logarithm of the sum of a row's exponentials."""
    high = row.max()
    weights = row - high
    np.exp(weights, weights)
    return float(high) + math.log(float(weights.sum()))


def _probability(row: Logits, token: int, log_total: float) -> float:
    """0 for a token that the model does not know."""
    return math.exp(min(0.0, float(row[token]) - log_total)) if token < len(row) else 0.0


def _rank(row: Logits, token: int) -> int:
    mine = row[token]
    before = np.count_nonzero(row > mine) + np.count_nonzero(row[:token] == mine)
    return int(before) + 1
