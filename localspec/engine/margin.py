"""How far a row of logits is from a choice, and from another one than it makes.

The unit is the logit: where two passes compute each logit to within d of one another, they can
only choose differently where the margin is at most 2 d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from localspec.engine.protocols import Law, Logits
from localspec.engine.sampling import gumbel, law
from localspec.protocol.wire import Sampling

_FAR = 1e30
"""Where there is no other token: JSON knows no infinity."""
_MOST = 4096
"""Tokens looked at where the law is cut off: the others are far from its edge."""


def choice(said: Law, sampling: Sampling, index: int) -> int:
    """The token that the seed's noise picks from a law at place `index` of the answer."""
    scores = np.log(said.probs) + gumbel(sampling.seed, index, said.ids)
    return int(said.ids[scores.argmax()])


def margin(row: Logits, sampling: Sampling, recent: Sequence[int], index: int, best: int) -> float:
    """How much nearer another token must come until it is chosen instead of `best`."""
    # Nothing is cut off: the logarithm of this law is the logits, less a constant.
    uncut = replace(sampling, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    everything = law(row, uncut, recent)
    order = (-everything.probs).argsort(kind="stable")
    ids = everything.ids[order]
    x = np.log(everything.probs[order])
    x -= x[0]
    if sampling.temperature <= 0 or sampling.top_k == 1:
        return float(x[0] - x[1]) if len(x) > 1 else _FAR
    scores = x + sampling.temperature * gumbel(sampling.seed, index, ids)
    mine = int((ids == best).nonzero()[0][0])
    enter, leave = _edge(x, sampling, mine)
    gaps = np.maximum(scores[mine] - scores, 0.0)
    gaps[: len(enter)] = np.maximum(gaps[: len(enter)], enter)
    gaps[len(enter) :] = math.inf
    gaps[mine] = leave
    return min(float(gaps.min()), _FAR)


def _edge(
    x: NDArray[np.float64], sampling: Sampling, mine: int
) -> tuple[NDArray[np.float64], float]:
    """How far each token is outside of the law, and how far the one at `mine` is inside.

    `x` are the logits, largest first and less the largest.
    """
    k, min_p = sampling.top_k, sampling.min_p
    cut = 0 < k < len(x)
    if not cut and sampling.top_p >= 1.0 and min_p <= 0.0:
        return np.zeros(len(x)), math.inf
    most = min(len(x), max(_MOST, k + 1, mine + 1))
    enter, leave = np.zeros(most), math.inf
    if cut:
        enter = np.maximum(enter, x[k - 1] - x[:most])
        leave = min(leave, float(x[mine] - x[k]))
    if min_p > 0.0 and len(x) > 1:
        enter = np.maximum(enter, math.log(min_p) - x[:most])
        leave = min(leave, float(x[mine] - x[0 if mine else 1]) - math.log(min_p))
    if sampling.top_p < 1.0:
        head = x[:k] if cut else x
        outside, inside = _top_p(head, sampling.top_p, min(most, len(head)), mine)
        enter[: len(outside)] = np.maximum(enter[: len(outside)], outside)
        leave = min(leave, inside)
    return enter, max(leave, 0.0)


def _top_p(
    x: NDArray[np.float64], top_p: float, most: int, mine: int
) -> tuple[NDArray[np.float64], float]:
    """As `_edge`, of the first `most`, for top-p alone.

    A token is in the law while all that stand above it have less than `top_p`.  Where logits move
    by d, the log-odds of a set move by 2 d at most, and a token passes those within 2 d of it.
    """
    weights = np.exp(x)
    shares = (weights.cumsum() - weights)[:most] / weights.sum()
    wanted = math.log(top_p / (1 - top_p))
    needed = _log_odds(shares) - wanted  # until the first j are too little
    # Passing all but the first j takes x[j] - x[r]; needed rises with j and that falls.
    j = np.minimum((needed - x[:most]).searchsorted(-x[:most]), np.arange(most))
    outside = np.maximum(needed[j], x[j] - x[:most])
    before = np.maximum(j - 1, 0)
    outside = np.minimum(outside, np.maximum(needed[before], x[before] - x[:most]))
    others = np.delete(weights[:most], mine).cumsum() / weights.sum()
    inside = np.maximum(wanted - _log_odds(others), x[mine] - np.delete(x[:most], mine))
    return np.maximum(outside, 0.0), float(inside.min(initial=math.inf))


def _log_odds(share: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = np.log(share) - np.log1p(-np.minimum(share, 1.0))
    return found
