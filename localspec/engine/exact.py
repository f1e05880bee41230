"""Which decisions of a wide pass its last bits might have made: those are taken again, alone.

A pass over several tokens and one over a single token may differ in the last bits (algorithms.md
8).  Where a choice is closer than that, the guard asks for it to be computed alone.  It narrows,
and does not promise: keys and values that a wide pass wrote stay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.engine.margin import choice, margin
from localspec.engine.protocols import Logits
from localspec.engine.sampling import gumbel, largest, law
from localspec.protocol.wire import Sampling

_SPARE = 24
"""Tokens beyond top-k that are looked at before a whole vocabulary is sorted."""


class Guard:
    """Doubts a decision at temperature 0, or with the seed's own noise (`coupled`).

    `off` is how far a logit may be from what a pass of one token gives.
    """

    def __init__(self, sampling: Sampling, off: float) -> None:
        penalty = sampling.repeat_penalty
        self._sampling = sampling
        self._limit = 2.0 * off * max(penalty, 1.0 / penalty)
        """Two logits may come nearer to each other by this much."""

    def __call__(self, row: Logits, recent: Sequence[int], index: int) -> bool:
        """Whether the token after `recent`, at place `index` of the answer, is in doubt."""
        if self._limit <= 0.0:
            return False
        sampling = self._sampling
        said = law(row, sampling, recent)
        greedy = sampling.temperature <= 0 or sampling.top_k == 1
        best = int(said.ids[0]) if greedy else choice(said, sampling, index)
        plain = sampling.repeat_penalty == 1.0
        if plain and (self._clear_lead(row, best) if greedy else self._clear(row, index, best)):
            return False
        return margin(row, sampling, recent, index, best) <= self._limit

    def _clear_lead(self, row: Logits, best: int) -> bool:
        ids = largest(row, 2)
        return len(ids) < 2 or float(row[ids[0]]) - float(row[ids[1]]) > self._limit

    def _clear(self, row: Logits, index: int, best: int) -> bool:
        """Whether `best` wins however truncation falls; False where that takes a closer look."""
        sampling, limit = self._sampling, self._limit
        k = sampling.top_k
        if not 0 < k < len(row) - _SPARE:
            return False
        ids = largest(row, k + _SPARE)
        x = row[ids].astype(np.float64)
        mine = int((ids == best).nonzero()[0][0])
        if x[k - 1] - x[-1] <= limit or mine >= k or x[mine] - x[k] <= limit:
            return False
        scores = x + sampling.temperature * gumbel(sampling.seed, index, ids)
        if scores[mine] - np.delete(scores, mine).max() <= limit:
            return False
        if sampling.min_p > 0.0 and mine and x[mine] - x[0] - math.log(sampling.min_p) <= limit:
            return False
        return self._inside(x[:k], mine)

    def _inside(self, x: NDArray[np.float64], mine: int) -> bool:
        """Whether top-p keeps the token at `mine` wherever logits move within the limit."""
        top_p = self._sampling.top_p
        if top_p >= 1.0 or (mine == 0 and x[0] - x[1] > self._limit):
            return True
        weights = np.exp(x - x[0])
        before = float(weights[x > x[mine] - self._limit].sum() - weights[mine])
        rest = float(weights.sum()) - before
        # Moving every logit by half the limit moves the odds of a set by the limit.
        return before / rest * math.exp(self._limit) < top_p / (1.0 - top_p)
