"""Tests whether sampled tokens follow the target's distribution (probability integral transform).

A token t of a distribution p becomes F(before t) + v p(t), with v uniform in [0, 1). If every token
is drawn from its distribution, these numbers are uniform in [0, 1) and independent, whatever the
distributions (Rosenblatt 1952). So one chi-square test covers all positions of all answers. It is
done for two orders: by token id, and by falling probability. The second detects the typical error
of speculation, a bias to likely or unlikely tokens, which averages out by id.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localspec.bench.answer_comparison import (
    RecordedAnswer,
    ReplayEngine,
    record_answer,
    replay_answer,
)
from localspec.protocol.wire import GenerateCommand, ReplayResult, SamplingParams, VerifyMode

SIGNIFICANCE_LEVEL = 1e-3
"""Of all tests together; a rejection counts only if a second sample is rejected too."""
DETECTION_POWER = 0.9
"""Probability that both samples detect the reported shift."""
_MIN_TOKENS_PER_BIN = 20
"""Expected tokens per bin; from there on the chi-square tail is accurate."""
_MAX_BINS = 20
_SAMPLING_SETTINGS = (
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
)
"""The settings of `run`, and without truncation, alternating."""


@dataclass(frozen=True, slots=True)
class SampleSize:
    """How many tokens to draw for one verification method."""

    min_tokens: int = 200
    max_tokens: int = 2000
    tokens_per_answer: int = 64
    seconds: float = 20.0
    max_answers: int = 200
    """A limit for answers that end immediately."""


@dataclass(slots=True)
class TokenSample:
    """Tokens drawn with one verification method, each as its transform in [0, 1)."""

    verify: VerifyMode
    by_id: list[float] = field(default_factory=list)
    by_rank: list[float] = field(default_factory=list)
    impossible: int = 0
    """Tokens of probability 0."""
    drafted: int = 0
    accepted: int = 0
    is_confirmation: bool = False
    """This is the second sample, because the first was rejected."""

    def add(self, answer: RecordedAnswer, replay: ReplayResult, rng: random.Random) -> None:
        self.drafted += answer.drafted
        self.accepted += answer.accepted
        self.impossible += sum(p <= 0 for p in replay.probability)
        for p, below, above in zip(replay.probability, replay.below, replay.above, strict=True):
            self.by_id.append(below + rng.random() * p)
            self.by_rank.append(above + rng.random() * p)

    @property
    def tokens(self) -> int:
        return len(self.by_id)

    @property
    def bins(self) -> int:
        """0 if there are too few tokens for a test."""
        bins = min(_MAX_BINS, self.tokens // _MIN_TOKENS_PER_BIN)
        return bins if bins > 1 else 0

    @property
    def p_value(self) -> float | None:
        """The smaller of the two tests' values, doubled (Bonferroni)."""
        if not self.bins:
            return None
        values = (_uniformity_p_value(x, self.bins) for x in (self.by_id, self.by_rank))
        return min(1.0, 2 * min(values))

    def is_rejected(self, n_tests: int) -> bool:
        """`n_tests`: the verification methods tested together."""
        p = self.p_value
        return self.impossible > 0 or (p is not None and p < SIGNIFICANCE_LEVEL / n_tests)

    def detectable_shift(self, n_tests: int) -> float | None:
        """The smallest total variation between the bins that both samples would detect."""
        if not self.bins:
            return None
        return smallest_detectable_shift(
            self.tokens, self.bins, SIGNIFICANCE_LEVEL / (2 * n_tests), DETECTION_POWER**0.5
        )


def _uniformity_p_value(values: Sequence[float], bins: int) -> float:
    counts = [0] * bins
    for value in values:
        counts[min(int(value * bins), bins - 1)] += 1  # a rounded sum may reach 1
    return chi_square_tail(chi_square_statistic(counts), bins - 1)


def draw_tokens(
    engine: ReplayEngine,
    sample: TokenSample,
    spec: str,
    texts: Sequence[str],
    size: SampleSize,
    seed: int,
) -> Iterator[TokenSample]:
    """Fills the sample and yields it after every answer; seeds count up from `seed`."""
    rng = random.Random(seed)
    until = time.monotonic() + size.seconds
    for n in range(size.max_answers):
        enough = sample.tokens >= size.min_tokens and time.monotonic() > until
        if enough or sample.tokens >= size.max_tokens:
            return
        settings = _SAMPLING_SETTINGS[n % len(_SAMPLING_SETTINGS)]
        sampling = SamplingParams(
            settings.temperature, settings.top_k, settings.top_p, settings.min_p, seed=seed + n
        )
        text = texts[(n // len(_SAMPLING_SETTINGS)) % len(texts)]
        request = GenerateCommand(
            text,
            sampling,
            size.tokens_per_answer,
            verify=sample.verify,
            spec=spec,
            draft_length=4,
        )
        answer = record_answer(engine, request)
        sample.add(answer, replay_answer(engine, answer), rng)
        yield sample


# --- The chi-square distribution: tail probability and power.

_TINY = 1e-300
_TOLERANCE = 1e-15
_MAX_ITERATIONS = 10_000


def chi_square_statistic(counts: Sequence[int]) -> float:
    """Pearson's statistic against equal probabilities."""
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


def chi_square_tail(x: float, degrees: float) -> float:
    """The probability of a statistic of `x` or more."""
    return _upper_gamma(degrees / 2, x / 2)


def chi_square_critical_value(alpha: float, degrees: float) -> float:
    """The statistic that is exceeded with probability `alpha`."""
    return _find_root(lambda x: chi_square_tail(x, degrees) - alpha)


def chi_square_power(noncentrality: float, x: float, degrees: int) -> float:
    """The probability of a statistic of `x` or more under this noncentrality.

    A noncentral chi-square is a central one with 2 J more degrees of freedom, J Poisson.
    """
    half = noncentrality / 2
    weight, seen, total = math.exp(-half), 0.0, 0.0
    for j in range(_MAX_ITERATIONS):
        total += weight * chi_square_tail(x, degrees + 2 * j)
        seen += weight
        if seen > 1 - 1e-12:
            break
        weight *= half / (j + 1)
    return total


def smallest_detectable_shift(n: int, bins: int, alpha: float, target_power: float) -> float:
    """The smallest shift between bins, as total variation, detected with `target_power`.

    Of all shifts of total variation d, the even one (half of the bins up, half down) has the
    smallest noncentrality, 4 n d^2; any other is easier to detect.
    """
    x = chi_square_critical_value(alpha, bins - 1)
    # exp(-half) underflows above 1400; a total variation is at most 1.
    max_noncentrality = min(4.0 * n, 1400.0)
    if chi_square_power(max_noncentrality, x, bins - 1) < target_power:
        return 1.0
    noncentrality = _find_root(
        lambda value: target_power - chi_square_power(value, x, bins - 1), max_noncentrality
    )
    return math.sqrt(noncentrality / (4 * n))


def _find_root(f: Callable[[float], float], upper_bound: float | None = None) -> float:
    """The zero of a decreasing function of x > 0, by bisection."""
    low, high = 0.0, upper_bound or 1.0
    while upper_bound is None and f(high) > 0:
        low, high = high, high * 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    return (low + high) / 2


def _upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x)."""
    if x <= 0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    return (
        1.0 - front * _gamma_series(a, x) if x < a + 1 else front * _gamma_continued_fraction(a, x)
    )


def _gamma_series(a: float, x: float) -> float:
    """Sum of x^n / (a (a+1) … (a+n)); converges fast for small x."""
    term = total = 1.0 / a
    for n in range(1, _MAX_ITERATIONS):
        term *= x / (a + n)
        total += term
        if term < total * _TOLERANCE:
            break
    return total


def _gamma_continued_fraction(a: float, x: float) -> float:
    """The continued fraction of Q(a, x), by Lentz's method; converges fast for large x."""
    b = x + 1.0 - a
    c, d = 1.0 / _TINY, 1.0 / b
    product = d
    for n in range(1, _MAX_ITERATIONS):
        factor = n * (a - n)
        b += 2.0
        d = 1.0 / (b + factor * d or _TINY)
        c = b + factor / c or _TINY
        product *= d * c
        if abs(d * c - 1.0) < _TOLERANCE:
            break
    return product
