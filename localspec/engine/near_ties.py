"""Which decisions of a wide pass its last bits might have made: those are taken again, alone.

A pass over several tokens and one over a single token may differ in the last bits (algorithms.md
8).  Where a choice is closer than that, the guard asks for it to be computed alone.  It narrows,
and does not promise: keys and values that a wide pass wrote stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localspec.engine.protocols import Distribution, Logits
from localspec.engine.sampling import compute_distribution, gumbel_noise, top_k_ids
from localspec.protocol.wire import SamplingParams

_EXTRA_CANDIDATES = 24
"""Tokens beyond top-k that are looked at before a whole vocabulary is sorted."""


class NearTieCheck:
    """Doubts a decision at temperature 0, or with the seed's own noise (`coupled`).

    `off` is how far a logit may be from what a pass of one token gives.
    """

    def __init__(self, sampling: SamplingParams, max_logit_error: float) -> None:
        penalty = sampling.repeat_penalty
        self._sampling = sampling
        self._tolerance = 2.0 * max_logit_error * max(penalty, 1.0 / penalty)
        """Two logits may come nearer to each other by this much."""

    def __call__(self, row: Logits, recent: Sequence[int], index: int) -> bool:
        """Whether the token after `recent`, at place `index` of the answer, is in doubt."""
        if self._tolerance <= 0.0:
            return False
        sampling = self._sampling
        said = compute_distribution(row, sampling, recent)
        greedy = sampling.temperature <= 0 or sampling.top_k == 1
        best = int(said.ids[0]) if greedy else pick_coupled_token(said, sampling, index)
        plain = sampling.repeat_penalty == 1.0
        if plain and (
            self._has_clear_argmax(row, best)
            if greedy
            else self._has_clear_winner(row, index, best)
        ):
            return False
        return decision_margin(row, sampling, recent, index, best) <= self._tolerance

    def _has_clear_argmax(self, row: Logits, best: int) -> bool:
        ids = top_k_ids(row, 2)
        return len(ids) < 2 or float(row[ids[0]]) - float(row[ids[1]]) > self._tolerance

    def _has_clear_winner(self, row: Logits, index: int, best: int) -> bool:
        """Whether `best` wins however truncation falls; False where that takes a closer look."""
        sampling, limit = self._sampling, self._tolerance
        k = sampling.top_k
        if not 0 < k < len(row) - _EXTRA_CANDIDATES:
            return False
        ids = top_k_ids(row, k + _EXTRA_CANDIDATES)
        x = row[ids].astype(np.float64)
        mine = int((ids == best).nonzero()[0][0])
        if x[k - 1] - x[-1] <= limit or mine >= k or x[mine] - x[k] <= limit:
            return False
        scores = x + sampling.temperature * gumbel_noise(sampling.seed, index, ids)
        if scores[mine] - np.delete(scores, mine).max() <= limit:
            return False
        if sampling.min_p > 0.0 and mine and x[mine] - x[0] - math.log(sampling.min_p) <= limit:
            return False
        return self._is_safely_in_top_p(x[:k], mine)

    def _is_safely_in_top_p(self, x: NDArray[np.float64], mine: int) -> bool:
        """Whether top-p keeps the token at `mine` wherever logits move within the limit."""
        top_p = self._sampling.top_p
        if top_p >= 1.0 or (mine == 0 and x[0] - x[1] > self._tolerance):
            return True
        weights = np.exp(x - x[0])
        before = float(weights[x > x[mine] - self._tolerance].sum() - weights[mine])
        rest = float(weights.sum()) - before
        # Moving every logit by half the limit moves the odds of a set by the limit.
        return before / rest * math.exp(self._tolerance) < top_p / (1.0 - top_p)


# --- How far a row of logits is from a choice, and from another one than it makes.

_NO_OTHER_TOKEN = 1e30
"""Where there is no other token: JSON knows no infinity."""
_MAX_CANDIDATES = 4096
"""Tokens looked at where the law is cut off: the others are far from its edge."""


def pick_coupled_token(distribution: Distribution, sampling: SamplingParams, index: int) -> int:
    """The token that the seed's noise picks from a law at place `index` of the answer."""
    scores = np.log(distribution.probs) + gumbel_noise(sampling.seed, index, distribution.ids)
    return int(distribution.ids[scores.argmax()])


def decision_margin(
    row: Logits, sampling: SamplingParams, recent: Sequence[int], index: int, best: int
) -> float:
    """How much nearer another token must come until it is chosen instead of `best`."""
    # Nothing is cut off: the logarithm of this law is the logits, less a constant.
    uncut = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    everything = compute_distribution(row, uncut, recent)
    order = (-everything.probs).argsort(kind="stable")
    ids = everything.ids[order]
    x = np.log(everything.probs[order])
    x -= x[0]
    if sampling.temperature <= 0 or sampling.top_k == 1:
        return float(x[0] - x[1]) if len(x) > 1 else _NO_OTHER_TOKEN
    scores = x + sampling.temperature * gumbel_noise(sampling.seed, index, ids)
    mine = int((ids == best).nonzero()[0][0])
    enter, leave = _truncation_margins(x, sampling, mine)
    gaps = np.maximum(scores[mine] - scores, 0.0)
    gaps[: len(enter)] = np.maximum(gaps[: len(enter)], enter)
    gaps[len(enter) :] = math.inf
    gaps[mine] = leave
    return min(float(gaps.min()), _NO_OTHER_TOKEN)


def _truncation_margins(
    x: NDArray[np.float64], sampling: SamplingParams, mine: int
) -> tuple[NDArray[np.float64], float]:
    """How far each token is outside of the law, and how far the one at `mine` is inside.

    `x` are the logits, largest first and less the largest.
    """
    k, min_p = sampling.top_k, sampling.min_p
    cut = 0 < k < len(x)
    if not cut and sampling.top_p >= 1.0 and min_p <= 0.0:
        return np.zeros(len(x)), math.inf
    most = min(len(x), max(_MAX_CANDIDATES, k + 1, mine + 1))
    enter, leave = np.zeros(most), math.inf
    if cut:
        enter = np.maximum(enter, x[k - 1] - x[:most])
        leave = min(leave, float(x[mine] - x[k]))
    if min_p > 0.0 and len(x) > 1:
        enter = np.maximum(enter, math.log(min_p) - x[:most])
        leave = min(leave, float(x[mine] - x[0 if mine else 1]) - math.log(min_p))
    if sampling.top_p < 1.0:
        head = x[:k] if cut else x
        outside, inside = _top_p_margins(head, sampling.top_p, min(most, len(head)), mine)
        enter[: len(outside)] = np.maximum(enter[: len(outside)], outside)
        leave = min(leave, inside)
    return enter, max(leave, 0.0)


def _top_p_margins(
    x: NDArray[np.float64], top_p: float, n_candidates: int, mine: int
) -> tuple[NDArray[np.float64], float]:
    """As `_edge`, of the first `most`, for top-p alone.

    A token is in the law while all that stand above it have less than `top_p`.  Where logits move
    by d, the log-odds of a set move by 2 d at most, and a token passes those within 2 d of it.
    """
    weights = np.exp(x)
    shares = (weights.cumsum() - weights)[:n_candidates] / weights.sum()
    wanted = math.log(top_p / (1 - top_p))
    needed = _log_odds(shares) - wanted  # until the first j are too little
    # Passing all but the first j takes x[j] - x[r]; needed rises with j and that falls.
    j = np.minimum(
        (needed - x[:n_candidates]).searchsorted(-x[:n_candidates]), np.arange(n_candidates)
    )
    outside = np.maximum(needed[j], x[j] - x[:n_candidates])
    before = np.maximum(j - 1, 0)
    outside = np.minimum(outside, np.maximum(needed[before], x[before] - x[:n_candidates]))
    others = np.delete(weights[:n_candidates], mine).cumsum() / weights.sum()
    inside = np.maximum(wanted - _log_odds(others), x[mine] - np.delete(x[:n_candidates], mine))
    return np.maximum(outside, 0.0), float(inside.min(initial=math.inf))


def _log_odds(share: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = np.log(share) - np.log1p(-np.minimum(share, 1.0))
    return found
