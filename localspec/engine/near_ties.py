"""Exact mode: finds near-ties, whose tokens are recomputed in a pass of one token.

The logits of a wide pass and of a one-token pass may differ in the last bits (algorithms.md 8).
A near-tie is a choice closer than that difference. This does not guarantee plain decoding's text:
keys and values written by wide passes stay in the KV cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localspec.engine.protocols import Distribution, GrammarState, Logits
from localspec.engine.sampling import compute_distribution, find_allowed, gumbel_noise, top_k_ids
from localspec.protocol.wire import SamplingParams

_EXTRA_CANDIDATES = 24
"""Tokens beyond top-k that are examined before the whole vocabulary is sorted."""


class NearTieCheck:
    """Detects near-ties at temperature 0 and with seeded Gumbel noise (`coupled`).

    `max_logit_error` is the largest difference of a logit from that of a one-token pass.
    """

    def __init__(self, sampling: SamplingParams, max_logit_error: float) -> None:
        penalty = sampling.repeat_penalty
        self._sampling = sampling
        self._tolerance = 2.0 * max_logit_error * max(penalty, 1.0 / penalty)
        """The gap between two logits may change by this much."""
        self.n_found = 0

    def __call__(
        self, row: Logits, recent: Sequence[int], index: int, grammar: GrammarState | None = None
    ) -> bool:
        """Whether the choice after `recent`, at position `index` of the answer, is a near-tie."""
        if self._tolerance <= 0.0:
            return False
        is_near_tie = self._is_near_tie(row, recent, index, grammar)
        self.n_found += is_near_tie
        return is_near_tie

    def _is_near_tie(
        self, row: Logits, recent: Sequence[int], index: int, grammar: GrammarState | None
    ) -> bool:
        sampling = self._sampling
        if grammar is not None:
            allowed = find_allowed(row, self._n_examined(), grammar)
            row, logits = np.full_like(row, -np.inf), row
            row[allowed] = logits[allowed]
        distribution = compute_distribution(row, sampling, recent)
        greedy = sampling.temperature <= 0 or sampling.top_k == 1
        best = (
            int(distribution.ids[0])
            if greedy
            else pick_coupled_token(distribution, sampling, index)
        )
        if not sampling.changes_logits and (
            self._has_clear_argmax(row) if greedy else self._has_clear_winner(row, index, best)
        ):
            return False
        return decision_margin(row, sampling, recent, index, best) <= self._tolerance

    def _n_examined(self) -> int:
        """How many of the largest logits decide; 0 for all."""
        sampling = self._sampling
        if sampling.changes_logits:
            return 0
        k = 1 if sampling.temperature <= 0 else sampling.top_k
        return k and k + _EXTRA_CANDIDATES

    def _has_clear_argmax(self, row: Logits) -> bool:
        ids = top_k_ids(row, 2)
        return len(ids) < 2 or float(row[ids[0]]) - float(row[ids[1]]) > self._tolerance

    def _has_clear_winner(self, row: Logits, index: int, best: int) -> bool:
        """Whether `best` surely wins for every truncation; False if that is not cheap to show."""
        sampling, limit = self._sampling, self._tolerance
        k = sampling.top_k
        if not 0 < k < len(row) - _EXTRA_CANDIDATES:
            return False
        ids = top_k_ids(row, k + _EXTRA_CANDIDATES)
        x = row[ids].astype(np.float64)
        if x[k] == -math.inf:  # a grammar allows few tokens
            return False
        chosen = int((ids == best).nonzero()[0][0])
        if x[k - 1] - x[-1] <= limit or chosen >= k or x[chosen] - x[k] <= limit:
            return False
        scores = x + sampling.temperature * gumbel_noise(sampling.seed, index, ids)
        if scores[chosen] - np.delete(scores, chosen).max() <= limit:
            return False
        min_p = sampling.min_p
        if min_p > 0.0 and chosen and x[chosen] - x[0] - math.log(min_p) <= limit:
            return False
        return self._is_safely_in_top_p(x[:k], chosen)

    def _is_safely_in_top_p(self, x: NDArray[np.float64], chosen: int) -> bool:
        """Whether top-p keeps the token at `chosen` for every change of logits in the tolerance."""
        top_p = self._sampling.top_p
        if top_p >= 1.0 or (chosen == 0 and x[0] - x[1] > self._tolerance):
            return True
        weights = np.exp(x - x[0])
        before = float(weights[x > x[chosen] - self._tolerance].sum() - weights[chosen])
        rest = float(weights.sum()) - before
        # Changing every logit by half the tolerance changes the log-odds of a set by the tolerance.
        return before / rest * math.exp(self._tolerance) < top_p / (1.0 - top_p)


_NO_OTHER_TOKEN = 1e30
"""Margin if there is no other token: JSON has no infinity."""
_MAX_CANDIDATES = 4096
"""Tokens examined at the truncation boundary: all others are far from it."""


def pick_coupled_token(distribution: Distribution, sampling: SamplingParams, index: int) -> int:
    """The token that the seed's Gumbel noise samples at position `index` of the answer."""
    scores = np.log(distribution.probs) + gumbel_noise(sampling.seed, index, distribution.ids)
    return int(distribution.ids[scores.argmax()])


def decision_margin(
    row: Logits, sampling: SamplingParams, recent: Sequence[int], index: int, best: int
) -> float:
    """How much closer another token's logit must come to be chosen instead of `best`."""
    # Without truncation the log-probabilities are the penalised logits minus a constant.
    untruncated = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    distribution = compute_distribution(row, untruncated, recent)
    order = (-distribution.probs).argsort(kind="stable")
    ids = distribution.ids[order]
    x = np.log(distribution.probs[order])
    x -= x[0]
    if sampling.temperature <= 0 or sampling.top_k == 1:
        return float(x[0] - x[1]) if len(x) > 1 else _NO_OTHER_TOKEN
    scores = x + sampling.temperature * gumbel_noise(sampling.seed, index, ids)
    chosen = int((ids == best).nonzero()[0][0])
    enter, leave = _truncation_margins(x, sampling, chosen)
    gaps = np.maximum(scores[chosen] - scores, 0.0)
    gaps[: len(enter)] = np.maximum(gaps[: len(enter)], enter)
    gaps[len(enter) :] = math.inf
    gaps[chosen] = leave
    return min(float(gaps.min()), _NO_OTHER_TOKEN)


def _truncation_margins(
    x: NDArray[np.float64], sampling: SamplingParams, chosen: int
) -> tuple[NDArray[np.float64], float]:
    """Margins by which each token is truncated away, and by which the one at `chosen` is kept.

    `x` are the logits, sorted, largest first, minus the largest.
    """
    k, min_p = sampling.top_k, sampling.min_p
    has_top_k = 0 < k < len(x)
    if not has_top_k and sampling.top_p >= 1.0 and min_p <= 0.0:
        return np.zeros(len(x)), math.inf
    n = min(len(x), max(_MAX_CANDIDATES, k + 1, chosen + 1))
    enter, leave = np.zeros(n), math.inf
    if has_top_k:
        enter = np.maximum(enter, x[k - 1] - x[:n])
        leave = min(leave, float(x[chosen] - x[k]))
    if min_p > 0.0 and len(x) > 1:
        enter = np.maximum(enter, math.log(min_p) - x[:n])
        leave = min(leave, float(x[chosen] - x[0 if chosen else 1]) - math.log(min_p))
    if sampling.top_p < 1.0:
        kept = x[:k] if has_top_k else x
        outside, inside = _top_p_margins(kept, sampling.top_p, min(n, len(kept)), chosen)
        enter[: len(outside)] = np.maximum(enter[: len(outside)], outside)
        leave = min(leave, inside)
    return enter, max(leave, 0.0)


def _top_p_margins(
    x: NDArray[np.float64], top_p: float, n_candidates: int, chosen: int
) -> tuple[NDArray[np.float64], float]:
    """As `_truncation_margins`, for top-p alone and the first `n_candidates` tokens.

    Top-p keeps a token while the mass of all likelier ones is below `top_p`. If logits change by
    at most d, the log-odds of a set change by at most 2 d, and a token can overtake those within
    2 d of it.
    """
    weights = np.exp(x)
    shares = (weights.cumsum() - weights)[:n_candidates] / weights.sum()
    limit = math.log(top_p / (1 - top_p))
    needed = _log_odds(shares) - limit  # change after which the first j have less than top_p
    # Overtaking all but the first j needs x[j] - x[r]; `needed` rises with j, and this falls.
    j = np.minimum(
        (needed - x[:n_candidates]).searchsorted(-x[:n_candidates]), np.arange(n_candidates)
    )
    outside = np.maximum(needed[j], x[j] - x[:n_candidates])
    before = np.maximum(j - 1, 0)
    outside = np.minimum(outside, np.maximum(needed[before], x[before] - x[:n_candidates]))
    others = np.delete(weights[:n_candidates], chosen).cumsum() / weights.sum()
    gaps = x[chosen] - np.delete(x[:n_candidates], chosen)
    inside = np.maximum(limit - _log_odds(others), gaps)
    return np.maximum(outside, 0.0), float(inside.min(initial=math.inf))


def _log_odds(share: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        log_odds: NDArray[np.float64] = np.log(share) - np.log1p(-np.minimum(share, 1.0))
    return log_odds
