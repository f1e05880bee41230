"""The speed-up of fixed draft lengths, from acceptance and pass costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.fit.speedup_model import (
    SpeculationCosts,
    best_draft_length,
    expected_speedup,
)
from localspec.protocol.wire import DRAFT_MAX

FLAT = {1: 1.0, 17: 1.0}


def independent(alpha: float) -> list[float]:
    """Cumulative acceptance if every draft token is accepted with probability `alpha`."""
    return [alpha**j for j in range(1, DRAFT_MAX + 1)]


@given(
    alpha=st.floats(0.01, 0.99),
    c=st.floats(0, 1),
    slope=st.floats(0, 0.5),
    host=st.floats(0, 0.5),
    gamma=st.integers(1, DRAFT_MAX),
)
def test_the_closed_formula(
    alpha: float, c: float, slope: float, host: float, gamma: int
) -> None:
    """The names are those of Leviathan et al.: acceptance, cost, draft length."""
    curve = {w: 1 + slope * (w - 1) for w in (1, 2, 4, 8)}
    costs = SpeculationCosts(c, curve, host)
    emitted = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    expected = emitted / (gamma * c + 1 + slope * gamma + host)

    found = expected_speedup(costs, independent(alpha), gamma)

    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "gain"),
    [
        (0.5, 0.02, 4, 1.79),
        (0.7, 0.05, 6, 2.35),
        (0.8, 0.10, 6, 2.47),
        (0.9, 0.30, 5, 1.87),
    ],
)
def test_the_best_length_with_a_flat_curve(
    alpha: float, c: float, gamma: int, gain: float
) -> None:
    """Leviathan et al. 2023, optimal draft lengths."""
    found = best_draft_length(SpeculationCosts(c, FLAT), independent(alpha))
    assert (found.gamma, round(found.speedup, 2)) == (gamma, gain)


def test_the_verify_curve_is_interpolated_and_extrapolated_linearly() -> None:
    costs = SpeculationCosts(0.1, {1: 1.0, 2: 1.5, 8: 3.0})
    assert [costs.verify_cost(w) for w in (1, 2, 5, 8, 10)] == pytest.approx(
        [1, 1.5, 2.25, 3.0, 3.5]
    )
    assert SpeculationCosts(0.1, {}).verify_cost(9) == 1.0
    assert SpeculationCosts(0.1, {1: 1.0, 4: 0.9}).verify_cost(16) == pytest.approx(
        0.9
    ), "extrapolation never falls"
