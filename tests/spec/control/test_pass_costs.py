"""Costs of passes: between the measured widths, and as they are learnt from runs."""

import pytest

from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts
from localspec.spec.control.pass_costs import PassCosts, UsualCosts

SHOWN = MeasuredCosts(10.0, {"1": 1.0, "2": 1.2, "4": 1.4, "8": 2.0}, 0.1)


def test_widths_between_and_beyond_the_measured_lie_on_straight_lines() -> None:
    verify = PassCosts(SHOWN).verify_ms
    assert len(verify) == DRAFT_MAX + 2
    assert verify[1:5] == pytest.approx([10, 12, 13, 14])
    assert verify[6] == pytest.approx(17)
    assert verify[16] == pytest.approx(20 + 8 * 1.5)


def test_a_width_that_gets_cheaper_is_not_extrapolated_below_it() -> None:
    verify = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "4": 3.0, "8": 2.5})).verify_ms
    assert verify[6] == pytest.approx(27.5)
    assert verify[12] == pytest.approx(25)


def test_a_cliff_at_two_rows_is_not_thought_to_go_on() -> None:
    """Q8_0 on a CPU, before wider passes are timed: nothing would be tried again."""
    costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0}))
    costs.record_pass(2, 25.0)
    assert costs.verify_ms[2] == pytest.approx(25.0)
    assert costs.verify_ms[4] == pytest.approx(25.0 + 2 * 3.5)


def test_one_wild_time_moves_little_and_a_first_pass_that_catches_up_not_the_next_ones() -> (
    None
):
    costs = PassCosts(SHOWN)
    costs.record_pass(1, 10_000.0)
    assert costs.plain_ms == pytest.approx(12)
    costs.record_draft(1e6, 2)
    assert costs.draft_ms == pytest.approx(1.2)
    costs = PassCosts(SHOWN)
    for _ in range(40):
        costs.record_draft(1.6, 1)
    assert costs.draft_ms == pytest.approx(1.0)
    assert costs.draft_passes_ms(3) == pytest.approx(3.6, rel=0.02)


def test_what_passes_of_another_width_cost_is_priced_until_their_graph_is_there() -> (
    None
):
    costs = PassCosts(SHOWN, settling=2)
    assert costs.change_ms == pytest.approx(0.9)  # as on a card that was measured
    costs.change_ms = 3.0
    for ms in (13.0, 13.0, 10.0):
        costs.record_pass(1, ms)
    assert costs.plain_ms == pytest.approx(10) and costs.change_ms == pytest.approx(3)
    in_passes = costs.in_passes()
    assert in_passes.verify[4] == pytest.approx(1.4)
    assert in_passes.excursion == pytest.approx(0.9)  # its own, and two after it
    costs.record_pass(4, 17.0)
    # The price of the change is not in the time of the width.
    assert costs.verify_ms[1:5] == pytest.approx([10, 12, 13, 14])
    assert costs.verify_curve() == pytest.approx(SHOWN.curve)
    costs.start_answer()
    for ms in (16.0, 43.0):  # after a prompt, a graph is made anew
        costs.record_pass(1, ms)
    assert costs.plain_ms == pytest.approx(10) and costs.change_ms == pytest.approx(3)


def test_nothing_measured_starts_from_the_first_pass() -> None:
    assert PassCosts(SHOWN).verify_curve() == SHOWN.curve
    costs = PassCosts()
    assert not costs.is_measured
    costs.record_pass(1, 30.0)
    assert costs.is_measured
    assert costs.plain_ms == pytest.approx(30.0)
    assert costs.verify_ms[2] > 30.0
    assert 0 < costs.draft_ms < 30.0


@pytest.mark.parametrize(
    ("curve", "wide"),
    [
        (
            {"1": 1, "2": 2.04, "4": 2.52, "5": 3.12, "8": 3.31},
            {12: 4.49, 17: 5.59},
        ),  # Q8_0
        (
            {"1": 1, "2": 1.7, "4": 2.42, "5": 2.97, "8": 3.84},
            {12: 5.16, 17: 7.32},
        ),  # Q4_1
        (
            {"1": 1, "2": 1.27, "4": 1.68, "5": 2.22, "8": 2.58},
            {12: 3.28, 17: 4.69},
        ),  # Q4_K_M
        (
            {"1": 1, "2": 1.66, "4": 1.96, "5": 2.0, "8": 2.44},
            {12: 2.85, 17: 3.45},
        ),  # BF16
    ],
)
def test_wider_passes_than_timed_cost_what_they_do_on_a_cpu(
    curve: dict[str, float], wide: dict[int, float]
) -> None:
    """Medians of SmolLM2 135M, two cores of an AMD EPYC."""
    costs = PassCosts(MeasuredCosts(7.0, curve))
    for width, cost in wide.items():
        assert costs.verify_ms[width] / 7.0 == pytest.approx(cost, rel=0.11)


def test_what_is_usual_holds_until_it_is_timed() -> None:
    costs = PassCosts(usual=UsualCosts(row=0.6, draft=0.2))
    costs.record_pass(1, 10.0)
    assert costs.verify_ms[3] == pytest.approx(10 + 2 * 6)
    assert costs.c == pytest.approx(0.2)
    costs.record_pass(3, 14.0)
    costs.record_draft(1.0, 1)
    assert costs.verify_ms[3] == pytest.approx(14.0)
    assert costs.draft_ms == pytest.approx(1.0)
