"""Sampling: logits to a distribution, and the seeded Gumbel noise to draw from it.

Drafting and verification use the same distribution. The order is that of llama.cpp's
default sampler chain: logit bias, penalties, DRY, top-k, top-p, min-p, XTC,
temperature. At temperature 0 all mass is on the first largest logit. A grammar forbids
tokens before top-k.

A row has up to 260,000 logits and is needed in every round, so most of this file is
about not sorting it. In the order of their cost:

- At temperature 0: the argmax (`_truncate_and_cool`).
- The logits near the largest, if all others certainly do not matter
  (`_distribution_near_largest`).
- The k largest, found through a grid (`_top_k`).
- Without top-k: all that min-p keeps, or as many of the largest as top-p needs
  (`_truncate_without_top_k`).

`x` are logits minus the largest, so exp(x) is 1 for the likeliest token and cannot
overflow. They are float64 from there on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from localspec.errors import EngineError, GrammarError
from localspec.protocol.wire import DRY_WINDOW, SamplingParams
from localspec.spec.protocols import Distribution, GrammarState, Logits


class InvalidLogitsError(EngineError):
    """A row of logits contains NaN, or has no finite maximum."""


class NoAllowedTokenError(GrammarError):
    """The grammar allows no token of the vocabulary here."""


_ONE = np.ones(1)
_FOLD_WIDTH = 1024
"""To find the top k, a row is folded to a grid at least this wide and at most 64 high."""
_TOP_P_CANDIDATES = (256, 4096)
"""Candidate counts tried for top-p before the whole vocabulary is sorted."""


def compute_distribution(
    logits: Logits,
    sampling: SamplingParams,
    recent: Sequence[int] = (),
    grammar: GrammarState | None = None,
) -> Distribution:
    """The distribution of the token after `recent`, from one row of logits.

    The row has the shape (n_vocab,). Raises InvalidLogitsError if it contains NaN, or has
    no finite maximum; NoAllowedTokenError if the grammar allows no token.
    """
    if sampling.logit_bias or sampling.history_length:
        logits = _apply_bias_and_penalties(logits, sampling, recent)
    if grammar is None:
        return _truncate_and_cool(logits, sampling)
    n_needed = 1 if sampling.temperature <= 0 else sampling.top_k
    ids = find_allowed(logits, n_needed, grammar)
    # Its ids are places in `ids`.
    among_allowed = _truncate_and_cool(logits[ids], sampling)
    return Distribution(ids[among_allowed.ids], among_allowed.probs)


def _truncate_and_cool(logits: Logits, sampling: SamplingParams) -> Distribution:
    """The distribution after top-k, top-p, min-p, XTC and temperature."""
    if sampling.temperature <= 0 or sampling.top_k == 1:
        best = int(logits.argmax())
        _check_finite(logits[best])
        return one_hot(best)
    if 0 < sampling.top_k < len(logits):
        near = _distribution_near_largest(logits, sampling)
        if near is not None:
            return near
        ids, values = _top_k(logits, sampling.top_k)
        x = values.astype(np.float64)
        x -= x[0]
        n = _n_after_truncation(x, sampling, None)
        return _apply_temperature(ids[:n], x[:n], sampling)
    ids, x = _truncate_without_top_k(logits, sampling)
    return _apply_temperature(ids, x, sampling)


_GRAMMAR_CANDIDATES = (1, 64, 512)
"""So many of the largest logits are tested, before all that a grammar allows are
computed, which takes long.
"""


def find_allowed(logits: Logits, n: int, grammar: GrammarState) -> NDArray[np.int64]:
    """The allowed tokens with the `n` largest logits, and perhaps more; all if n is 0.

    Returns their ids, ascending. Raises NoAllowedTokenError if there are none.
    """
    for n_tested in _GRAMMAR_CANDIDATES:
        if not 0 < n <= n_tested < len(logits):
            continue
        ids = top_k_ids(logits, n_tested)
        is_allowed = grammar.allows(ids)
        allowed = ids[is_allowed]
        if len(allowed) >= n:
            return np.sort(allowed)
    allowed = grammar.allowed_tokens()
    # A draft model's vocabulary may be smaller than the grammar's.
    allowed = allowed[allowed < len(logits)]
    if not len(allowed):
        raise NoAllowedTokenError(
            "The grammar does not allow any token of this model here.",
            "Check that it does not need control characters or special tokens.",
        )
    return np.sort(allowed)


def top_token_confidence(
    logits: Logits, distribution: Distribution, grammar: GrammarState | None = None
) -> float:
    """A model's confidence in its likeliest token, in (0, 1].

    At temperature 0 it comes from the margin to the second one. `logits` is modified
    during the call and restored.
    """
    if len(distribution.ids) > 1:
        return float(distribution.probs.max())
    if grammar is not None:
        allowed = np.sort(logits[find_allowed(logits, 2, grammar)])
        if len(allowed) == 1:
            return 1.0
        return margin_confidence(float(allowed[-1]) - float(allowed[-2]))
    best = distribution.ids[0]
    highest = logits[best]
    logits[best] = -np.inf
    margin = float(highest) - float(logits.max())
    logits[best] = highest
    return margin_confidence(margin)


def margin_confidence(margin: float) -> float:
    """The probability of the likelier of two tokens whose logits differ by `margin`."""
    return 1.0 / (1.0 + math.exp(-min(margin, 700.0)))


@lru_cache(maxsize=4096)
def one_hot(token: int) -> Distribution:
    return Distribution(np.array([token]), _ONE)


def _check_finite(highest: np.float32) -> None:
    if not math.isfinite(highest):
        raise InvalidLogitsError(
            "The model produced invalid numbers (NaN or infinity).",
            "The file is probably damaged: download it again, or try another quantisation.",
        )


def _apply_bias_and_penalties(
    logits: Logits, sampling: SamplingParams, recent: Sequence[int]
) -> Logits:
    """llama.cpp's logit bias, penalties over the last `repeat_last_n` tokens, and DRY."""
    out = logits.copy()
    if sampling.logit_bias:
        tokens, biases = _bias_arrays(sampling.logit_bias)
        is_known = _are_tokens(tokens, len(out))
        np.add.at(out, tokens[is_known], biases[is_known])
    if sampling.has_penalties:
        window = np.asarray(recent[-sampling.repeat_last_n :], dtype=np.int64)
        is_known = _are_tokens(window, len(out))
        ids, counts = np.unique(window[is_known], return_counts=True)
        values = out[ids]
        penalty = sampling.repeat_penalty
        out[ids] = np.where(values > 0, values / penalty, values * penalty)
        out[ids] -= counts * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.has_dry:
        for token, loss in _dry_penalties(sampling, recent):
            if 0 <= token < len(out):
                out[token] -= loss
    return out


def _are_tokens(ids: NDArray[np.int64], n_vocab: int) -> NDArray[np.bool_]:
    """Which of the ids are tokens of the model.

    A draft model may have fewer tokens than the text. The negative id of a picture would
    count as a token from the end of the vocabulary.
    """
    return np.logical_and(ids >= 0, ids < n_vocab)


_SEQUENCE_BREAKERS = (b"\n", b":", b'"', b"*")
"""A repeated sequence ends at a token that contains one of them, as in llama.cpp."""
_MAX_LOG = 88.7228391  # The logarithm of the largest float32.
_MAX_LOSS = 1e30  # More would make a logit infinite.


class VocabularySampling(SamplingParams, frozen=True):
    """Parameters that know the bytes of tokens, which DRY needs."""

    piece: Callable[[int], bytes] = lambda _: b""

    def is_breaker(self, token: int) -> bool:
        piece = self.piece(token)
        return any(breaker in piece for breaker in _SEQUENCE_BREAKERS)


def bind_vocabulary(
    sampling: SamplingParams, piece: Callable[[int], bytes]
) -> SamplingParams:
    """The parameters for tokens of this vocabulary."""
    if not sampling.has_dry:
        return sampling
    return VocabularySampling(**asdict(sampling), piece=piece)


def _dry_penalties(
    sampling: SamplingParams, recent: Sequence[int]
) -> Iterator[tuple[int, float]]:
    """What each token loses that would extend a sequence which the text repeats (DRY).

    A sequence is the end of the text, as far back as it occurs earlier in the window
    too. With the text [5, 6, 7, 2, 5, 6] the end [5, 6] occurred before, and 7 followed:
    7 loses multiplier * base ** (2 - allowed length).
    """
    text = recent[-DRY_WINDOW:]
    allowed = sampling.dry_allowed_length

    def is_breaker(token: int) -> bool:
        if token < 0:
            return True  # A picture, which has no bytes.
        # Only these parameters know a token's bytes.
        return isinstance(sampling, VocabularySampling) and sampling.is_breaker(token)

    n = len(text)
    limit = n  # The longest sequence at the end that no breaker ends.
    for i, token in enumerate(reversed(text)):
        if is_breaker(token):
            limit = i
            break
    if n <= allowed or limit < allowed:
        return

    longest: dict[int, int] = {}  # By the token that followed: the longest repetition.
    for end in range(n - 1):
        length = 0
        longest_here = min(limit, end + 1)
        while length < longest_here and text[end - length] == text[n - 1 - length]:
            length += 1
        if length >= allowed:
            follower = text[end + 1]
            longest[follower] = max(length, longest.get(follower, 0))
    base = sampling.dry_base
    max_exponent = int(_MAX_LOG / math.log(base)) if base > 1.000001 else n
    for token, length in longest.items():
        if not is_breaker(token):
            exponent = min(length - allowed, max_exponent)
            yield token, min(sampling.dry_multiplier * base**exponent, _MAX_LOSS)


@lru_cache(maxsize=16)
def _bias_arrays(
    logit_bias: tuple[tuple[int, float], ...],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    tokens, biases = zip(*logit_bias, strict=True)
    return np.array(tokens, np.int64), np.array(biases, np.float32)


def _n_after_truncation(
    x: NDArray[np.float64], sampling: SamplingParams, total: float | None
) -> int:
    """How many logits top-p and min-p keep; at least one.

    `x` holds logits minus the largest, in descending order. `total` is the mass that
    top-p refers to: that of `x` if None.

    With x of 0, -1 and -4 the weights exp(x) are 1, 0.37 and 0.02. min-p 0.05 keeps two:
    ln 0.05 is -3.0. top-p 0.7 keeps one, as 1 is at least 0.7 of the mass, 1.39; top-p
    0.9 keeps two.
    """
    n = len(x)
    if sampling.min_p > 0.0:
        n = int((-x).searchsorted(-math.log(sampling.min_p), "right"))
    if sampling.top_p < 1.0:
        mass = np.exp(x).cumsum()
        if total is None:
            total = float(mass[-1])
        n = min(n, int(mass.searchsorted(sampling.top_p * total)) + 1)
    return max(n, 1)


def _truncate_without_top_k(
    logits: Logits, sampling: SamplingParams
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ids kept without top-k, and their logits minus the largest.

    They are not sorted if top-p is off.
    """
    high = logits.max()
    _check_finite(high)
    if sampling.top_p >= 1.0:
        low = -math.inf
        if sampling.min_p > 0.0:
            low = float(high) + math.log(sampling.min_p)
        ids = (logits >= low).nonzero()[0]
        return ids, logits[ids].astype(np.float64) - float(high)
    total = float(np.exp(logits - high).sum(dtype=np.float64))
    for k in (*_TOP_P_CANDIDATES, len(logits)):
        ids = top_k_ids(logits, min(k, len(logits)))
        x = logits[ids].astype(np.float64) - float(high)
        n = _n_after_truncation(x, sampling, total)
        if n < len(ids) or len(ids) == len(logits):
            break
    return ids[:n], x[:n]


_NEAR = 8.0  # Logits this far below the largest seldom matter.
_MAX_NEAR = 256
_ROUNDING = 0.01  # More than float32 rounds a logit by.


def _distribution_near_largest(
    logits: Logits, sampling: SamplingParams
) -> Distribution | None:
    """The distribution by the logits near the largest alone; None if others may matter.

    Top-k is on. This takes half the time of sorting out the k largest.

    Near are those at most 8 below the largest: of 12, 11.2, 9.5, 4.1, 3.9 … the first
    four. With top-k 40, the other 36 of the top k are missing. min-p 0.05 cuts below
    12 + ln 0.05 = 9.0, so all of them are cut, and they count only in the mass that
    top-p refers to. Each has a weight of at most e^-8, where the largest has 1, all
    together 0.012 at most. So that mass is between 1.532 and 1.544. With either, top-p
    0.95 keeps the first three logits, and the result is exact. Where the two masses
    give different numbers, or nothing cuts the missing logits, it is None.
    """
    best = int(logits.argmax())
    high = logits[best]
    _check_finite(high)
    ids = (logits >= high - _NEAR).nonzero()[0]
    if len(ids) > _MAX_NEAR:
        return None
    values = logits[ids]
    lowest = math.log(sampling.min_p) if sampling.min_p > 0.0 else -math.inf
    are_others_cut = lowest > _ROUNDING - _NEAR
    if are_others_cut and np.count_nonzero(values >= high + (lowest - _ROUNDING)) == 1:
        return one_hot(best)
    order = (-values).argsort(kind="stable")[: sampling.top_k]
    x = values[order].astype(np.float64)
    x -= x[0]
    n = _n_after_truncation(x, sampling, None)
    n_missing = sampling.top_k - len(order)
    if n_missing > 0:
        # Nothing is cut here: the missing ones may belong to the distribution.
        if n == len(order) and not are_others_cut:
            return None
        missing_mass = n_missing * math.exp(_ROUNDING - _NEAR)
        total = float(np.exp(x).sum()) + missing_mass
        if _n_after_truncation(x, sampling, total) != n:
            return None
    return _apply_temperature(ids[order[:n]], x[:n], sampling)


def _apply_temperature(
    ids: NDArray[np.int64], x: NDArray[np.float64], sampling: SamplingParams
) -> Distribution:
    """The distribution of `ids`, from `x`, their logits minus the largest."""
    weights = np.exp(x / sampling.temperature)
    weights /= weights.sum()
    if sampling.xtc_probability > 0.0:
        weights = _mix_with_xtc(x, weights, sampling)
    if not weights.all():  # Some underflowed to 0: these are never drawn.
        nonzero = weights > 0.0
        ids = ids[nonzero]
        weights = weights[nonzero]
    return Distribution(ids, weights)


def _mix_with_xtc(
    x: NDArray[np.float64], probs: NDArray[np.float64], sampling: SamplingParams
) -> NDArray[np.float64]:
    """The distribution of a token that is sampled with XTC, which applies by chance.

    XTC removes all of the top tokens but the least likely, with a certain probability.
    Its coin is not drawn: the mixture of both outcomes has the same distribution, and
    as one distribution it is coupled and verified like any other. With the probabilities
    0.6, 0.3 and 0.1, a threshold of 0.2 and the probability 0.5:

        not applied, 0.5 x    0.600  0.300  0.100
        applied,     0.5 x    0      0.750  0.250    0.6 is removed; the rest to 1
        mixture               0.300  0.525  0.175
    """
    before = np.exp(x)  # XTC compares probabilities at temperature 1.
    is_over_threshold = before >= sampling.xtc_threshold * before.sum()
    # Among those that did not underflow to 0.
    top = np.logical_and(is_over_threshold, probs > 0.0).nonzero()[0]
    if len(top) < 2:
        return probs
    least = top[(-x[top]).argsort(kind="stable")[-1]]
    excluded = probs.copy()
    excluded[top] = 0.0
    excluded[least] = probs[least]
    excluded *= sampling.xtc_probability / excluded.sum()
    mixture: NDArray[np.float64] = (1.0 - sampling.xtc_probability) * probs + excluded
    return mixture


def top_k_ids(logits: Logits, k: int) -> NDArray[np.int64]:
    """Ids of the k largest logits, largest first; among equals the lower id first."""
    return _top_k(logits, k)[0]


def _top_k(logits: Logits, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ids of the k largest logits, and these logits; ordered as in `top_k_ids`.

    The row is folded into a grid. The k-th largest column maximum is a lower bound of
    the k-th largest logit, so only columns that reach the bound hold candidates. With
    k = 2 and a grid of three columns:

        5  1  2
        4  7  0     maxima 5, 7, 2; the second largest is 5

    At least two logits are 5 or more, so the third column cannot be among the top two:
    of the other two columns only 5 and 7 reach the bound.

    Raises InvalidLogitsError if the row contains NaN, or has no finite maximum.
    """
    height = min(64, len(logits) // _FOLD_WIDTH)
    width = len(logits) // height if height else 0
    if width < k:
        _check_finite(logits.max())
        ids = (-logits).argsort(kind="stable")[:k]
        return ids, logits[ids]
    grid = logits[: width * height].reshape(height, width)
    highest = grid.max(axis=0)
    rest = logits[width * height :]  # The logits that do not fill another row.
    largest = highest.max()
    if len(rest):
        largest = np.maximum(largest, rest.max())  # Unlike `max`, it is NaN with a NaN.
    _check_finite(largest)
    bound = np.partition(highest, width - k)[width - k]
    columns = (highest >= bound).nonzero()[0]
    row, column = (grid[:, columns] >= bound).nonzero()
    ids = row * width + columns[column]
    if len(rest):
        ids = np.concatenate((ids, (rest >= bound).nonzero()[0] + width * height))
    values = logits[ids]
    order = (-values).argsort(kind="stable")[:k]
    return ids[order], values[order]


_MASK = 0xFFFFFFFFFFFFFFFF
_GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN_U64 = np.uint64(_GOLDEN)
_MIX_STEPS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
_UNUSED_BITS = np.uint64(12)  # Low bits that do not fit into a double's mantissa.


# --- Noise. That of a token is a hash of (seed, position, token), so it depends neither on
# the drafter nor on the order of the draws: whoever asks for position 7 and token 42 of
# an answer gets the same number. The hash exists twice, for numpy arrays
# (`keyed_uniform`) and for a single token in plain Python (`gumbel_argmax`). Both must
# give the same numbers to the last bit, or a seeded text would depend on how many tokens
# a distribution has.


def _splitmix64(z: int) -> int:
    """The finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _noise_key(seed: int, index: int) -> int:
    """The hash of an answer's seed and a position in it."""
    return _splitmix64((_splitmix64(seed & _MASK) + (index + 1) * _GOLDEN) & _MASK)


def keyed_uniform(seed: int, index: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in (0, 1) per id, from (seed, index, id) alone.

    It is splitmix64, used as a counter-based generator: the number of an id is the
    finaliser of key + (id + 1) * golden ratio, of which the upper 52 bits become the
    mantissa of a double, plus a half to keep it above 0.
    """
    key = _noise_key(seed, index)
    z = ids.view(np.uint64) * _GOLDEN_U64
    z += np.uint64((key + _GOLDEN) & _MASK)
    # `_splitmix64`, in place.
    for shift, factor in _MIX_STEPS:
        z ^= z >> shift
        z *= factor
    z ^= z >> _LAST_SHIFT
    u = (z >> _UNUSED_BITS).astype(np.float64)
    u += 0.5
    u *= 2.0**-52
    return u


_MAX_PLAIN_PYTHON = 12
"""Up to this many tokens plain Python is faster: after a decode the numpy code is cold.
"""


def gumbel_argmax(seed: int, index: int, distribution: Distribution) -> int:
    """Sample a token with the noise of position `index` of an answer (Gumbel-max).

    Computes argmax(log(u) / p), which equals argmax(log p - log(-log u)), where
    -log(-log u) is the Gumbel noise, in fewer steps. With the probabilities 0.5 and 0.3
    and u of 0.4 and 0.8 the scores are -0.92 / 0.5 = -1.83 and -0.22 / 0.3 = -0.74: the
    second token is sampled. (With the noise: -0.69 + 0.09 = -0.61 and -1.20 + 1.50 = 0.30.)
    """
    if len(distribution.ids) > _MAX_PLAIN_PYTHON:
        noise = keyed_uniform(seed, index, distribution.ids)
        np.log(noise, noise)
        noise /= distribution.probs
        return int(distribution.ids[noise.argmax()])
    key = _noise_key(seed, index)
    best = -1
    best_score = -math.inf
    for token, prob in zip(
        distribution.ids.tolist(), distribution.probs.tolist(), strict=True
    ):
        z = _splitmix64((key + (token + 1) * _GOLDEN) & _MASK)
        score = math.log(((z >> 12) + 0.5) * 2.0**-52) / prob
        if score > best_score:
            best = token
            best_score = score
    return best


def gumbel_noise(seed: int, index: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise per id at position `index` of an answer.

    argmax(log p + noise) is a sample of p.
    """
    noise = keyed_uniform(seed, index, ids)
    for step in (np.log, np.negative, np.log, np.negative):  # in place: -log(-log u)
        step(noise, noise)
    return noise
