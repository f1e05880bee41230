"""Probabilities of emitted tokens and of their alternatives.

They are the softmax of the raw logits: before any penalty, temperature or truncation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from localspec.protocol.events import Alternative
from localspec.spec.protocols import Draft, Logits
from localspec.spec.sampling import top_k_ids

N_ALTERNATIVES = 3  # Default number of the target's next-best tokens that are reported.


class TokenProbabilities(Struct, frozen=True):
    """The probabilities at one position of an answer.

    The tokens have no text yet: `engine/output_processor.py` adds it.
    """

    chosen: Alternative
    """The emitted token."""
    alternatives: tuple[Alternative, ...]
    """A rejected draft token, if there is one, and the likeliest others."""


def score_tokens(
    rows: Logits,
    tokens: Sequence[int],
    draft: Draft,
    n_alternatives: int = N_ALTERNATIVES,
) -> tuple[TokenProbabilities, ...]:
    """Probabilities of each of a round's tokens, from the row that decided it."""
    draft_rows = draft.logits or []
    scores = []
    for i, token in enumerate(tokens):
        draft_token = draft.tokens[i] if i < len(draft.tokens) else token
        draft_row = draft_rows[i] if i < len(draft_rows) else None
        score = _score_token(
            rows[i],
            token,
            draft_token=draft_token,
            draft_row=draft_row,
            n_alternatives=n_alternatives,
        )
        scores.append(score)
    return tuple(scores)


def _score_token(
    row: Logits,
    token: int,
    *,
    draft_token: int,
    draft_row: Logits | None,
    n_alternatives: int,
) -> TokenProbabilities:
    log_total = _log_sum_exp(row)
    draft_log_total = 0.0 if draft_row is None else _log_sum_exp(draft_row)
    # Two more, because the emitted and the drafted token may be among them.
    likeliest = top_k_ids(row, min(n_alternatives + 2, len(row))).tolist()

    def candidate(id_: int, was_drafted: bool = False) -> Alternative:
        p_draft = None
        if draft_row is not None:
            p_draft = _probability(draft_row, id_, draft_log_total)
        rank = likeliest.index(id_) + 1 if id_ in likeliest else _rank(row, id_)
        p = _probability(row, id_, log_total)
        return Alternative(
            id_, "", p=p, rank=rank, p_draft=p_draft, was_drafted=was_drafted
        )

    rejected: list[Alternative] = []
    if draft_token != token:
        rejected.append(candidate(draft_token, was_drafted=True))
    others: list[Alternative] = []
    for rank, id_ in enumerate(likeliest, 1):
        if id_ not in (token, draft_token):
            p = _probability(row, id_, log_total)
            others.append(Alternative(id_, "", p, rank))
    return TokenProbabilities(candidate(token), (*rejected, *others[:n_alternatives]))


def _log_sum_exp(row: Logits) -> float:
    high = row.max()
    weights = row - high
    np.exp(weights, weights)
    return float(high) + math.log(float(weights.sum()))


def _probability(row: Logits, token: int, log_total: float) -> float:
    """Softmax probability; 0 for a token outside the model's vocabulary."""
    if token >= len(row):
        return 0.0
    # Rounding may put a logit that has all of the mass above the total.
    return math.exp(min(0.0, float(row[token]) - log_total))


def _rank(row: Logits, token: int) -> int:
    """The token's place by logit, from 1; among equals the lower id is first."""
    logit = row[token]
    n_before = np.count_nonzero(row > logit) + np.count_nonzero(row[:token] == logit)
    return int(n_before) + 1
