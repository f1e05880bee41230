"""Logits to the one law that drafting, verifying and sampling share, and the noise to draw by.

The order of truncation is llama.cpp's default chain: repeat penalty, top-k, top-p, min-p and, on
what is left, temperature.  Temperature 0 is the limit: all mass on the first largest logit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.engine.protocols import Law, Logits
from localspec.errors import EngineError
from localspec.protocol.wire import Sampling

_ONE = np.ones(1)
_BLOCKS = 64
"""Rows of the fold that finds a threshold for top-k: few enough to stay in cache."""


def law(logits: Logits, sampling: Sampling, recent: Sequence[int] = ()) -> Law:
    """The law of the next token after `recent`, from one row of logits, shape (n_vocab,).

    Raises EngineError where the row holds NaN, or no finite maximum.
    """
    if sampling.repeat_penalty != 1.0 and recent:
        logits = _penalised(logits, sampling, recent)
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):
        raise EngineError(
            "The model produced invalid numbers (NaN or infinity).",
            "The file is probably damaged: download it again, or try another quantisation.",
        )
    if sampling.temperature <= 0 or sampling.top_k == 1:
        return Law(np.array([best]), _ONE)
    return _cooled(*_truncated(logits, sampling), sampling.temperature)


def _penalised(logits: Logits, sampling: Sampling, recent: Sequence[int]) -> Logits:
    """llama.cpp's repeat penalty over the distinct tokens of the last `repeat_last_n`."""
    ids = np.unique(np.asarray(recent[-sampling.repeat_last_n :], dtype=np.int64))
    out = logits.copy()
    values = out[ids]
    out[ids] = np.where(
        values > 0, values / sampling.repeat_penalty, values * sampling.repeat_penalty
    )
    return out


def _truncated(logits: Logits, sampling: Sampling) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids that survive top-k, top-p and min-p, largest first, and their logits minus the largest.

    Without top-k, min-p is used to sort fewer: it compares with the largest only, so what it
    removes cannot come back, and the total for top-p is still taken over the whole row.
    """
    k = sampling.top_k
    total = 0.0
    if 0 < k < len(logits):
        ids = largest(logits, k)
    else:
        high = logits.max()
        weights = np.exp(logits - high, dtype=np.float64)
        total = float(weights.sum())
        keep = weights >= sampling.min_p if sampling.min_p > 0 else np.isfinite(logits)
        ids = np.flatnonzero(keep)
        ids = ids[np.argsort(-logits[ids], kind="stable")]
    x = logits[ids].astype(np.float64)
    x -= x[0]
    weights = np.exp(x)
    n = len(ids)
    if sampling.top_p < 1.0:
        cumulated = np.cumsum(weights) / (total or weights.sum())
        n = min(n, int(np.searchsorted(cumulated, sampling.top_p)) + 1)
    if sampling.min_p > 0.0:
        n = min(n, int(np.searchsorted(-weights, -sampling.min_p, side="right")))
    n = max(n, 1)
    return ids[:n], x[:n]


def _cooled(ids: NDArray[np.int64], x: NDArray[np.float64], temperature: float) -> Law:
    weights = np.exp(x / temperature)
    return Law(ids, weights / weights.sum())


def largest(logits: Logits, k: int) -> NDArray[np.int64]:
    """Ids of the k largest, largest first, the lower id first among equals.

    The k-th largest of the maxima of a fold of the row is a lower bound of the k-th largest
    overall, so only what reaches it is sorted: a fifth of argpartition's time at 128k.
    """
    n = len(logits)
    width = n // _BLOCKS
    if width >= k:
        folded = logits[: width * _BLOCKS].reshape(_BLOCKS, width).max(axis=0)
        bound = np.partition(folded, width - k)[width - k]
        ids = np.flatnonzero(logits >= bound)
    else:
        ids = np.arange(n)
    return ids[np.argsort(-logits[ids], kind="stable")[:k]]


_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(z: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, index: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in (0, 1) that depend on (seed, index, id) only: splitmix64 as a counter."""
    key = _mixed((_mixed(seed & _MASK) + (index + 1) * _GOLDEN) & _MASK)
    z = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def gumbel(seed: int, index: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise for each id at one place of an answer: argmax(log p + noise) draws from p."""
    noise: NDArray[np.float64] = -np.log(-np.log(uniform(seed, index, ids)))
    return noise
