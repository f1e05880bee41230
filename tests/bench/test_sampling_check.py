"""bench/sampling_check.py: the chi-square distribution against tables and simulation."""

import random

import pytest

from localspec.bench import sampling_check


@pytest.mark.parametrize(
    ("x", "degrees", "known"),
    [
        (3.841458820694124, 1, 0.05),
        (16.918977604620448, 9, 0.05),
        (118.498, 100, 0.1),
        (0.0, 5, 1.0),
    ],
)
def test_tails_of_tables(x: float, degrees: int, known: float) -> None:
    assert sampling_check.chi_square_tail(x, degrees) == pytest.approx(
        known, rel=1e-6, abs=1e-300
    )


def test_known_sample_sizes() -> None:
    """Shifts that 8,600, 54,000 and 11,500 draws detect at level 1e-6 with power 0.999."""
    for n, bins, expected in (
        (8_600, 10, 0.05),
        (54_000, 10, 0.02),
        (11_500, 32, 0.05),
    ):
        shift = sampling_check.smallest_detectable_shift(
            n, bins, alpha=1e-6, target_power=0.999
        )
        assert shift == pytest.approx(expected, rel=0.01)


def test_the_smallest_shift_is_detected_with_the_given_power() -> None:
    n = 400
    shift = sampling_check.smallest_detectable_shift(
        n, bins=10, alpha=0.01, target_power=0.9
    )
    critical_value = sampling_check.chi_square_critical_value(alpha=0.01, degrees=9)
    # Half of the bins are likelier, and half as much less likely.
    weights = [1 + 2 * shift] * 5 + [1 - 2 * shift] * 5
    rng = random.Random(0)
    n_detected = 0
    for _ in range(1000):
        drawn = rng.choices(range(10), weights, k=n)
        counts = [drawn.count(bin_) for bin_ in range(10)]
        if sampling_check.chi_square_statistic(counts) >= critical_value:
            n_detected += 1
    assert 0.85 < n_detected / 1000 < 0.95
