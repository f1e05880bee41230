"""What the models gave to a token that was taken, and to those that might have been.

Probabilities are softmax of the raw logits: before any penalty, temperature or truncation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localspec.engine.protocols import Draft, Logits
from localspec.engine.sampling import top_k_ids

N_ALTERNATIVES = 3
"""How many of the target's own other choices are told."""


@dataclass(frozen=True, slots=True)
class TokenCandidate:
    """One token at one place: the target's probability and rank, and the draft model's."""

    id: int
    p: float
    rank: int
    """1 is the likeliest; the lower id first among equals."""
    p_draft: float | None = None
    """None where no draft model guessed."""
    is_rejected_draft: bool = False
    """Whether this is the guess that was rejected here."""


@dataclass(frozen=True, slots=True)
class TokenProbabilities:
    """One place of an answer: the token taken; the rejected guess and the likeliest others."""

    chosen: TokenCandidate
    alternatives: tuple[TokenCandidate, ...]


def score_tokens(
    rows: Logits, tokens: Sequence[int], draft: Draft
) -> tuple[TokenProbabilities, ...]:
    """An insight for each of a round's tokens, from the row that it was decided by."""
    theirs = draft.logits or []
    found = []
    for i, token in enumerate(tokens):
        guess = draft.tokens[i] if i < len(draft.tokens) else token
        found.append(_score_token(rows[i], token, guess, theirs[i] if i < len(theirs) else None))
    return tuple(found)


def _score_token(
    row: Logits, token: int, draft_token: int, draft_row: Logits | None
) -> TokenProbabilities:
    total = _log_sum_exp(row)
    total_theirs = 0.0 if draft_row is None else _log_sum_exp(draft_row)
    best = top_k_ids(row, min(N_ALTERNATIVES + 2, len(row))).tolist()

    def chance(other: int, guessed: bool = False) -> TokenCandidate:
        p_draft = None if draft_row is None else _probability(draft_row, other, total_theirs)
        rank = best.index(other) + 1 if other in best else _rank(row, other)
        return TokenCandidate(other, _probability(row, other, total), rank, p_draft, guessed)

    others = [
        TokenCandidate(other, _probability(row, other, total), rank)
        for rank, other in enumerate(best, 1)
        if other not in (token, draft_token)
    ]
    rejected = [chance(draft_token, guessed=True)] if draft_token != token else []
    return TokenProbabilities(chance(token), (*rejected, *others[:N_ALTERNATIVES]))


def _log_sum_exp(row: Logits) -> float:
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
