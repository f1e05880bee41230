"""Tests whether sampled tokens follow the target's distribution.

The test uses the probability integral transform. A token t of a distribution p becomes
the number F + v p(t), where F is the probability of all tokens before t, and v is
uniform in [0, 1). With three tokens of probability 0.5, 0.3 and 0.2, the second one
becomes a number between 0.5 and 0.8.

If every token is drawn from its distribution, these numbers are uniform in [0, 1) and
independent, whatever the distributions are (Rosenblatt 1952). So one chi-square test
covers all positions of all answers. It is done for two orders of the tokens: by id, and
by falling probability. The second detects the typical error of speculation, a bias to
likely or unlikely tokens, which averages out by id.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat

from msgspec import Struct, field

from localspec.bench.measurement import RecordedAnswer
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import ReplayResult, VerifyMode

VERIFY_MODES: tuple[VerifyMode, ...] = ("coupled", "rejection", "block")
"""The verification methods that are sampled."""
SIGNIFICANCE_LEVEL = 1e-3
"""The probability that the tests of any method reject a correct engine's first sample.

A rejection counts only if a second sample is rejected too.
"""
_LEVEL_PER_METHOD = SIGNIFICANCE_LEVEL / len(VERIFY_MODES)
DETECTION_POWER = 0.9  # Probability that both samples detect the reported shift.
_MIN_TOKENS_PER_BIN = 20
"""Expected tokens per bin from which on the chi-square tail is accurate."""
_MAX_BINS = 20


class TokenSample(Struct):
    """Tokens drawn with one verification method, each as its transform in [0, 1)."""

    verify: VerifyMode
    by_id: list[float] = field(default_factory=list)
    by_rank: list[float] = field(default_factory=list)
    impossible: int = 0  # Tokens of probability 0.
    totals: RoundTotals = field(default_factory=RoundTotals)
    is_confirmation: bool = False
    """This is the second sample, because the first was rejected."""

    def add(
        self, answer: RecordedAnswer, replay: ReplayResult, rng: random.Random
    ) -> None:
        for event in answer.rounds:
            self.totals.add(event)
        positions = zip(replay.probability, replay.below, replay.above, strict=True)
        for probability, below, above in positions:
            if probability <= 0:
                self.impossible += 1
            self.by_id.append(below + rng.random() * probability)
            self.by_rank.append(above + rng.random() * probability)

    @property
    def tokens(self) -> int:
        return len(self.by_id)

    @property
    def bins(self) -> int:
        """0 if there are too few tokens for a test."""
        bins = min(_MAX_BINS, self.tokens // _MIN_TOKENS_PER_BIN)
        if bins < 2:
            return 0
        return bins

    @property
    def p_value(self) -> float | None:
        """The smaller of the two tests' values, doubled (Bonferroni)."""
        if not self.bins:
            return None
        by_id = _uniformity_p_value(self.by_id, self.bins)
        by_rank = _uniformity_p_value(self.by_rank, self.bins)
        return min(1.0, 2 * min(by_id, by_rank))

    @property
    def is_rejected(self) -> bool:
        if self.impossible:
            return True
        p = self.p_value
        return p is not None and p < _LEVEL_PER_METHOD

    @property
    def is_wrong(self) -> bool:
        """Speculation changed the distribution: no other sample has to confirm it.

        A first rejection may be chance; a token of probability 0 is not.
        """
        if self.impossible:
            return True
        return self.is_confirmation and self.is_rejected

    @property
    def detectable_shift(self) -> float | None:
        """The smallest total variation between the bins that both samples would detect.

        Two samples that detect it with probability 0.95 each both do with 0.9.
        """
        if not self.bins:
            return None
        return smallest_detectable_shift(
            self.tokens,
            self.bins,
            alpha=_LEVEL_PER_METHOD / 2,  # Two tests, by id and by rank.
            target_power=DETECTION_POWER**0.5,
        )


def _uniformity_p_value(values: Sequence[float], bins: int) -> float:
    counts = [0] * bins
    for value in values:
        bin_ = min(int(value * bins), bins - 1)  # A rounded sum may reach 1.
        counts[bin_] += 1
    return chi_square_tail(chi_square_statistic(counts), bins - 1)


# --- The chi-square distribution: tail probability and power.


def chi_square_statistic(counts: Sequence[int]) -> float:
    """Pearson's statistic against equal probabilities."""
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


def chi_square_tail(x: float, degrees: int) -> float:
    """The probability of a statistic of `x` or more."""
    return next(_chi_square_tails(x, degrees))


def _chi_square_tails(x: float, degrees: int) -> Iterator[float]:
    """The tails of `degrees`, `degrees + 2`, `degrees + 4`, …

    With a = degrees / 2 and h = x / 2, the tail is the regularized gamma function
    Q(a, h). Each follows from the one before:

    Q(a + 1, h) = Q(a, h) + h^a e^-h / Γ(a + 1)

    The first is Q(0, h) = 0 for even degrees, and Q(1/2, h) = erfc(√h) for odd ones.
    """
    if x <= 0:
        yield from repeat(1.0)  # It never ends, so nothing below runs.
    h = x / 2
    first = 0.0
    tail = 0.0
    if degrees % 2:
        first = 0.5
        tail = math.erfc(math.sqrt(h))
    for a in count(first):
        if a >= degrees / 2:
            yield tail
        tail += math.exp(a * math.log(h) - h - math.lgamma(a + 1))


def chi_square_critical_value(alpha: float, degrees: int) -> float:
    """The statistic that is exceeded with probability `alpha`."""
    high = 1.0
    while chi_square_tail(high, degrees) > alpha:
        high *= 2
    return _find_root(lambda x: chi_square_tail(x, degrees) - alpha, high)


def chi_square_power(noncentrality: float, x: float, degrees: int) -> float:
    """The probability of a statistic of `x` or more under this noncentrality.

    A noncentral chi-square is a central one with 2 J more degrees of freedom, where J
    is a Poisson number with the mean noncentrality / 2.
    """
    half = noncentrality / 2
    weight = math.exp(-half)  # The Poisson probability of j.
    total = 0.0
    for j, tail in enumerate(_chi_square_tails(x, degrees)):
        if j > half and weight < 1e-15:
            break
        total += weight * tail
        weight *= half / (j + 1)
    return total


def smallest_detectable_shift(
    n: int, bins: int, alpha: float, target_power: float
) -> float:
    """The smallest shift between bins, as total variation, with `target_power`.

    Of all shifts of total variation d, the even one (half of the bins up, half down)
    has the smallest noncentrality, 4 n d^2; any other is easier to detect.
    """
    x = chi_square_critical_value(alpha, bins - 1)
    # exp(-half) underflows above 1400; a total variation is at most 1.
    max_noncentrality = min(4.0 * n, 1400.0)
    if chi_square_power(max_noncentrality, x, bins - 1) < target_power:
        return 1.0
    noncentrality = _find_root(
        lambda value: target_power - chi_square_power(value, x, bins - 1),
        max_noncentrality,
    )
    return math.sqrt(noncentrality / (4 * n))


def _find_root(f: Callable[[float], float], high: float) -> float:
    """The zero of a decreasing function between 0 and `high`, by bisection."""
    low = 0.0
    for _ in range(80):
        middle = (low + high) / 2
        if f(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
