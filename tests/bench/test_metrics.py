"""bench/aggregation.py: acceptance by position, and the speed-up of fixed draft lengths."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench.aggregation import (
    cumulative_acceptance,
)
from localspec.fit.speedup_model import SpeculationCosts, best_draft_length, expected_speedup
from localspec.protocol.events import Round, RoundTimes, Token
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import DRAFT_MAX

FLAT = {1: 1.0, 17: 1.0}


def independent(alpha: float) -> list[float]:
    """Cumulative acceptance if every draft token is accepted with probability `alpha`."""
    return [alpha**j for j in range(1, DRAFT_MAX + 1)]


def drafted(n: int, accepted: int, emitted: int | None = None) -> Round:
    count = accepted + 1 if emitted is None else emitted
    tokens = tuple(Token(i, "", "plain") for i in range(count))
    return Round(0, "model" if n else None, "", n, accepted, tokens, RoundTimes(0, 0, 0))


@given(
    st.floats(0.01, 0.99),
    st.floats(0, 1),
    st.floats(0, 0.5),
    st.floats(0, 0.5),
    st.integers(1, DRAFT_MAX),
)
def test_independent_acceptance_gives_the_closed_formula(
    alpha: float, c: float, slope: float, host: float, gamma: int
) -> None:
    curve = {w: 1 + slope * (w - 1) for w in (1, 2, 4, 8)}
    emitted = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    expected = emitted / (gamma * c + 1 + slope * gamma + host)
    assert expected_speedup(
        SpeculationCosts(c, curve, host), independent(alpha), gamma
    ) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("alpha", "c", "gamma", "gain"),
    [(0.5, 0.02, 4, 1.79), (0.7, 0.05, 6, 2.35), (0.8, 0.10, 6, 2.47), (0.9, 0.30, 5, 1.87)],
)
def test_the_best_length_with_a_flat_curve(alpha: float, c: float, gamma: int, gain: float) -> None:
    """Leviathan et al. 2023, optimal draft lengths."""
    found = best_draft_length(SpeculationCosts(c, FLAT), independent(alpha))
    assert (found.gamma, round(found.speedup, 2)) == (gamma, gain)


@given(st.floats(0, 0.95), st.floats(0, 2))
def test_the_best_draft_length_is_never_slower_than_plain(alpha: float, c: float) -> None:
    found = best_draft_length(SpeculationCosts(c, FLAT), independent(alpha))
    assert found.speedup >= 1
    assert found.gamma == 0 or alpha > c


def test_the_verify_curve_is_interpolated_and_extrapolated_linearly() -> None:
    costs = SpeculationCosts(0.1, {1: 1.0, 2: 1.5, 8: 3.0})
    assert [costs.verify_cost(w) for w in (1, 2, 5, 8, 10)] == pytest.approx(
        [1, 1.5, 2.25, 3.0, 3.5]
    )
    assert SpeculationCosts(0.1, {}).verify_cost(9) == 1.0
    assert SpeculationCosts(0.1, {1: 1.0, 4: 0.9}).verify_cost(16) == pytest.approx(0.9), (
        "extrapolation never falls"
    )


# --- acceptance by position -------------------------------------------------------------------


def verified(rounds: list[Round]) -> list[tuple[int, int]]:
    return [(place.drafted, place.accepted) for place in RoundTotals.of(rounds).by_position]


def test_positions_count_verified_and_accepted_tokens() -> None:
    rounds = [drafted(3, 3), drafted(3, 1), drafted(2, 0), drafted(0, 0)]
    assert verified(rounds) == [(3, 2), (2, 1), (1, 1)]
    rates = [place.acceptance_rate for place in RoundTotals.of(rounds).by_position]
    assert rates == pytest.approx([2 / 3, 1 / 2, 1])


def test_a_round_cut_at_the_end_of_its_answer_rejected_nothing() -> None:
    assert verified([drafted(5, 2, emitted=2)]) == [(1, 1), (1, 1)]
    assert verified([drafted(0, 0)]) == []


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), min_size=1, max_size=60))
def test_cumulative_acceptance_falls_and_stays_a_probability(pairs: list[tuple[int, int]]) -> None:
    rounds = [drafted(n, min(n, accepted)) for n, accepted in pairs]
    values = cumulative_acceptance(RoundTotals.of(rounds).by_position)
    assert len(values) in (0, DRAFT_MAX)
    assert all(1 >= a >= b >= 0 for a, b in zip([1.0, *values], values, strict=False))


def test_a_rare_position_uses_the_rate_of_the_one_before() -> None:
    counts = [DraftTotals(1, 100, 80), DraftTotals(1, 80, 40), DraftTotals(1, 2, 0)]
    assert cumulative_acceptance(counts)[:3] == pytest.approx([0.8, 0.4, 0.2])
