"""Logits to the one law that drafting, verifying and sampling share, and the noise to draw by.

The order of truncation is llama.cpp's default chain: repeat penalty, top-k, top-p, min-p and, on
what is left, temperature.  Temperature 0 is the limit: all mass on the first largest logit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from localspec.engine.protocols import Law, Logits
from localspec.errors import EngineError
from localspec.protocol.wire import Sampling


class InvalidNumbersError(EngineError):
    """A row of logits holds NaN, or no finite maximum."""


_ONE = np.ones(1)
_FOLD = 1024
"""Width that a row is folded to for a bound of top-k, until it is 64 rows high."""
_TRIES = (256, 4096)
"""How many of the largest are tried before a whole vocabulary is sorted for top-p."""


def law(logits: Logits, sampling: Sampling, recent: Sequence[int] = ()) -> Law:
    """The law of the next token after `recent`, from one row of logits, shape (n_vocab,).

    Raises EngineError where the row holds NaN, or no finite maximum.
    """
    if sampling.repeat_penalty != 1.0 and sampling.repeat_last_n > 0 and recent:
        logits = _penalised(logits, sampling, recent)
    if sampling.temperature <= 0 or sampling.top_k == 1:
        best = int(logits.argmax())
        _check(logits[best])
        return certain(best)
    if 0 < sampling.top_k < len(logits):
        ids, found = _largest(logits, sampling.top_k)
        x = found.astype(np.float64)
        x -= x[0]
        n = _kept(x, sampling, None)
        return _cooled(ids[:n], x[:n], sampling.temperature)
    return _cooled(*_from_whole(logits, sampling), sampling.temperature)


def confidence(logits: Logits, said: Law) -> float:
    """How sure a model is of its likeliest token, in (0, 1]; at temperature 0 by the margin.

    The row is left as it was.
    """
    if len(said.ids) > 1:
        return float(said.probs.max())
    best = said.ids[0]
    highest = logits[best]
    logits[best] = -np.inf
    margin = float(highest) - float(logits.max())
    logits[best] = highest
    return 1.0 / (1.0 + math.exp(-min(margin, 700.0)))


@lru_cache(maxsize=4096)
def certain(token: int) -> Law:
    """All mass on one token."""
    return Law(np.array([token]), _ONE)


def _check(highest: np.float32) -> None:
    if not math.isfinite(highest):
        raise InvalidNumbersError(
            "The model produced invalid numbers (NaN or infinity).",
            "The file is probably damaged: download it again, or try another quantisation.",
        )


def _penalised(logits: Logits, sampling: Sampling, recent: Sequence[int]) -> Logits:
    """llama.cpp's repeat penalty over the distinct tokens of the last `repeat_last_n`."""
    ids = np.unique(np.asarray(recent[-sampling.repeat_last_n :], dtype=np.int64))
    out = logits.copy()
    values = out[ids]
    penalty = sampling.repeat_penalty
    out[ids] = np.where(values > 0, values / penalty, values * penalty)
    return out


def _kept(x: NDArray[np.float64], sampling: Sampling, total: float | None) -> int:
    """How many of these logits, largest first and less the largest, top-p and min-p leave.

    `total` is the mass that top-p is a share of: that of `x` itself unless given.
    """
    n = len(x)
    if sampling.min_p > 0.0:
        n = int((-x).searchsorted(-math.log(sampling.min_p), "right"))
    if sampling.top_p < 1.0:
        mass = np.exp(x).cumsum()
        wanted = sampling.top_p * (mass[-1] if total is None else total)
        n = min(n, int(mass.searchsorted(wanted)) + 1)
    return max(n, 1)


def _from_whole(
    logits: Logits, sampling: Sampling
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids that survive without top-k, and their logits less the largest; in no order if all do."""
    high = logits.max()
    _check(high)
    if sampling.top_p >= 1.0:
        low = float(high) + math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
        ids = (logits >= low).nonzero()[0]
        return ids, logits[ids].astype(np.float64) - float(high)
    total = float(np.exp(logits - high).sum(dtype=np.float64))
    for k in (*_TRIES, len(logits)):
        ids = largest(logits, min(k, len(logits)))
        x = logits[ids].astype(np.float64) - float(high)
        n = _kept(x, sampling, total)
        if n < len(ids) or len(ids) == len(logits):
            break
    return ids[:n], x[:n]


def _cooled(ids: NDArray[np.int64], x: NDArray[np.float64], temperature: float) -> Law:
    weights = np.exp(x / temperature)
    if not weights.all():  # so small that they are never drawn
        some = weights > 0.0
        ids, weights = ids[some], weights[some]
    weights /= weights.sum()
    return Law(ids, weights)


def largest(logits: Logits, k: int) -> NDArray[np.int64]:
    """Ids of the k largest, largest first, the lower id first among equals."""
    return _largest(logits, k)[0]


def _largest(logits: Logits, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids of the k largest, and their logits; ordered as `largest`.

    The k-th largest maximum of a fold of the row is a lower bound of the k-th largest overall, so
    one pass over the row and a look into the columns that reach the bound find all candidates.
    Raises EngineError where the row holds NaN, or no finite maximum.
    """
    height = min(64, len(logits) // _FOLD)
    width = len(logits) // height if height else 0
    if width < k:
        _check(logits.max())
        ids = (-logits).argsort(kind="stable")[:k]
        return ids, logits[ids]
    grid = logits[: width * height].reshape(height, width)
    highest = grid.max(axis=0)
    rest = logits[width * height :]
    _check(np.maximum(highest.max(), rest.max()) if len(rest) else highest.max())
    bound = np.partition(highest, width - k)[width - k]
    columns = (highest >= bound).nonzero()[0]
    row, column = (grid[:, columns] >= bound).nonzero()
    ids = row * width + columns[column]
    if len(rest):
        ids = np.concatenate((ids, (rest >= bound).nonzero()[0] + width * height))
    found = logits[ids]
    order = (-found).argsort(kind="stable")[:k]
    return ids[order], found[order]


_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
_STEP = np.uint64(_GOLDEN)
_ROUNDS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST = np.uint64(31)
_SPARE = np.uint64(12)
"""Bits that a double has no room for."""


def _mixed(z: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def uniform(seed: int, index: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in (0, 1) that depend on (seed, index, id) only: splitmix64 as a counter."""
    key = _mixed((_mixed(seed & _MASK) + (index + 1) * _GOLDEN) & _MASK)
    z = ids.view(np.uint64) * _STEP
    z += np.uint64((key + _GOLDEN) & _MASK)
    for shift, factor in _ROUNDS:
        z ^= z >> shift
        z *= factor
    z ^= z >> _LAST
    u = (z >> _SPARE).astype(np.float64)
    u += 0.5
    u *= 2.0**-52
    return u


_FEW = 12
"""Tokens up to which plain Python is faster: after a pass every numpy call is cold."""


def race(seed: int, index: int, law: Law) -> int:
    """Draw from a law with the noise of one place of an answer: who comes first in a race.

    argmin(-log(u) / p) is argmax(log p + Gumbel noise) (Gumbel-max), with fewer steps.
    """
    if len(law.ids) > _FEW:
        noise = uniform(seed, index, law.ids)
        np.log(noise, noise)
        noise /= law.probs
        return int(law.ids[noise.argmax()])
    key = _mixed((_mixed(seed & _MASK) + (index + 1) * _GOLDEN) & _MASK)
    best, first = -1, -math.inf
    for token, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
        z = _mixed((key + (token + 1) * _GOLDEN) & _MASK)
        arrival = math.log(((z >> 12) + 0.5) * 2.0**-52) / prob
        if arrival > first:
            best, first = token, arrival
    return best


def gumbel(seed: int, index: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise for each id at one place of an answer: argmax(log p + noise) draws from p."""
    noise = uniform(seed, index, ids)
    for step in (np.log, np.negative, np.log, np.negative):  # in place: -log(-log u)
        step(noise, noise)
    return noise
