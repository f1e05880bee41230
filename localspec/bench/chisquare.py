"""The chi-square distribution: how unlikely a statistic is, and what a test would have seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

_SMALL = 1e-300
_CLOSE = 1e-15
_STEPS = 10_000


def statistic(counts: Sequence[int]) -> float:
    """Pearson's, against equally likely bins."""
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


def tail(x: float, degrees: float) -> float:
    """The probability of a statistic of `x` or more."""
    return _upper_gamma(degrees / 2, x / 2)


def critical(alpha: float, degrees: float) -> float:
    """The statistic that is reached with probability `alpha`."""
    return _falling(lambda x: tail(x, degrees) - alpha)


def power(noncentrality: float, x: float, degrees: int) -> float:
    """The probability of a statistic of `x` or more where the bins are off by so much.

    A noncentral chi-square is a central one with 2 J more degrees, J from Poisson's law.
    """
    half = noncentrality / 2
    weight, seen, total = math.exp(-half), 0.0, 0.0
    for j in range(_STEPS):
        total += weight * tail(x, degrees + 2 * j)
        seen += weight
        if seen > 1 - 1e-12:
            break
        weight *= half / (j + 1)
    return total


def shift_seen(n: int, bins: int, alpha: float, wanted: float) -> float:
    """The smallest shift of probability between the bins that is seen with probability `wanted`.

    The shift is a total variation d.  Of all ways to shift it the even one, half of the bins up and
    half down, gives the smallest noncentrality, 4 n d^2: any other is seen sooner.
    """
    x = critical(alpha, bins - 1)
    # Up to 1400 exp(-half) is a number; beyond a shift of 1 there is nothing to look for.
    most = min(4.0 * n, 1400.0)
    if power(most, x, bins - 1) < wanted:
        return 1.0
    needed = _falling(lambda value: wanted - power(value, x, bins - 1), most)
    return math.sqrt(needed / (4 * n))


def _falling(f: Callable[[float], float], most: float | None = None) -> float:
    """Where a falling function of x > 0 crosses 0."""
    low, high = 0.0, most or 1.0
    while most is None and f(high) > 0:
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
    return 1.0 - front * _series(a, x) if x < a + 1 else front * _fraction(a, x)


def _series(a: float, x: float) -> float:
    """Sum of x^n / (a (a+1) … (a+n)): quick where x is small."""
    term = total = 1.0 / a
    for n in range(1, _STEPS):
        term *= x / (a + n)
        total += term
        if term < total * _CLOSE:
            break
    return total


def _fraction(a: float, x: float) -> float:
    """The continued fraction of the rest, by Lentz's method: quick where x is large."""
    b = x + 1.0 - a
    c, d = 1.0 / _SMALL, 1.0 / b
    found = d
    for n in range(1, _STEPS):
        factor = n * (a - n)
        b += 2.0
        d = 1.0 / (b + factor * d or _SMALL)
        c = b + factor / c or _SMALL
        found *= d * c
        if abs(d * c - 1.0) < _CLOSE:
            break
    return found
