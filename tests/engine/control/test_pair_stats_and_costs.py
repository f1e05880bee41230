"""Costs, chances and the pace: what the controller reckons with."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.engine.control.expected_gain import ExpectedGain
from localspec.engine.control.pair_stats import (
    AcceptanceRate,
    AcceptanceStats,
    PairStats,
    confidence_bucket,
    match_bucket,
)
from localspec.engine.control.pass_costs import PassCosts
from localspec.engine.control.regret_budget import RegretBudget
from localspec.engine.protocols import Draft
from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts

SHOWN = MeasuredCosts(10.0, {"1": 1.0, "2": 1.2, "4": 1.4, "8": 2.0}, 0.1)


# --- costs ------------------------------------------------------------------------------------


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


def test_what_takes_longer_now_is_learnt_and_the_rest_drifts_along() -> None:
    costs = PassCosts(SHOWN)
    for _ in range(60):
        costs.record_pass(4, 28.0)
    assert costs.verify_ms[4] == pytest.approx(28.0, rel=0.01)
    assert 10 < costs.plain_ms < 20
    for _ in range(60):
        costs.record_pass(1, 10.0)
    assert costs.plain_ms == pytest.approx(10, rel=0.01)


def test_a_plain_pass_is_never_thought_dearer_than_one_that_checks_a_guess() -> None:
    costs = PassCosts(MeasuredCosts(40.0, {"1": 1.0, "4": 0.5}))
    assert costs.plain_ms == pytest.approx(40)
    for _ in range(20):
        costs.record_pass(4, 20.0)
    assert costs.plain_ms == pytest.approx(22, rel=0.01)


def test_a_plain_pass_is_due_where_none_was_seen_and_ever_more_rarely() -> None:
    costs = PassCosts(SHOWN)
    waits = []
    for _ in range(6):
        waits.append(0)
        while not costs.needs_plain_pass:
            costs.record_pass(4, 14.0)
            waits[-1] += 1
        costs.record_pass(1, 10.0)
    assert waits == [8, 16, 32, 64, 128, 128]
    for _ in range(100):
        costs.record_pass(1, 10.0)
        costs.record_pass(4, 14.0)
        assert not costs.needs_plain_pass


def test_one_wild_time_moves_little() -> None:
    costs = PassCosts(SHOWN)
    costs.record_pass(1, 10_000.0)
    assert costs.plain_ms == pytest.approx(12)
    costs.record_draft(1e6, 2)
    assert costs.draft_ms == pytest.approx(1.2)


def test_a_first_pass_that_catches_up_does_not_make_the_next_ones_dear() -> None:
    costs = PassCosts(SHOWN)
    for _ in range(40):
        costs.record_draft(1.6, 1)
    assert costs.draft_ms == pytest.approx(1.0)
    assert costs.draft_passes_ms(3) == pytest.approx(3.6, rel=0.02)


def test_nothing_measured_starts_from_the_first_pass() -> None:
    costs = PassCosts()
    assert not costs.is_measured
    costs.record_pass(1, 30.0)
    assert costs.is_measured
    assert costs.plain_ms == pytest.approx(30.0)
    assert costs.verify_ms[2] > 30.0
    assert 0 < costs.draft_ms < 30.0


def test_what_is_told_is_what_was_given() -> None:
    assert PassCosts(SHOWN).verify_curve() == SHOWN.curve


# --- chances ----------------------------------------------------------------------------------


def test_a_rate_starts_from_what_is_believed_and_forgets_slowly() -> None:
    rate = AcceptanceRate()
    assert rate.estimate(0.6) == pytest.approx(0.6)
    for _ in range(500):
        rate.add(0.0)
    assert rate.estimate(0.6) < 0.05
    for _ in range(300):
        rate.add(1.0)
    assert rate.estimate(0.6) > 0.9


@pytest.mark.parametrize("chance", [0.05, 0.5, 0.95])
def test_chances_are_learnt_by_confidence(chance: float) -> None:
    rng = np.random.default_rng(1)
    acceptance = AcceptanceStats()
    bucket = confidence_bucket(0.7)
    for _ in range(300):
        acceptance.model.record(bucket, bool(rng.random() < chance))
    assert acceptance.model.probability(bucket) == pytest.approx(chance, abs=0.12)


def test_a_place_never_reached_is_like_the_one_before() -> None:
    acceptance = AcceptanceStats()
    for _ in range(80):
        acceptance.record_model_token(0, 1.0)
    assert acceptance.mean_probability(8) == pytest.approx(acceptance.mean_probability(0))
    assert acceptance.mean_probability(0) > 0.9


def test_counts_outlive_their_process() -> None:
    acceptance = AcceptanceStats()
    for i in range(40):
        acceptance.model.record(i % 11, i % 3 == 0)
        acceptance.lookup.record(i % 6, i % 2 == 0)
        acceptance.record_model_token(i % 6, 0.3)
    again = AcceptanceStats(acceptance.counts())
    assert again.counts() == acceptance.counts()
    for place in range(8):
        assert again.mean_probability(place) == pytest.approx(
            acceptance.mean_probability(place), abs=0.01
        )
    assert again.model.probability(3) == pytest.approx(acceptance.model.probability(3), abs=0.01)


def test_buckets_cover_everything() -> None:
    assert [confidence_bucket(c) for c in (0.0, 0.1, 0.55, 0.979, 0.99, 1.0)] == [
        0,
        1,
        5,
        9,
        10,
        10,
    ]
    assert match_bucket(0) == match_bucket(2) == 0
    assert match_bucket(10_000) == match_bucket(17) == 5
    assert [match_bucket(n) for n in range(20)] == sorted(match_bucket(n) for n in range(20))


# --- the pace ---------------------------------------------------------------------------------


def test_the_rate_is_never_below_plain_decoding() -> None:
    pace = PairStats()
    assert pace.tokens_per_ms(10.0) == pytest.approx(0.1)
    for _ in range(100):
        pace.record_round(1, 30.0)
    assert pace.tokens_per_ms(10.0) == pytest.approx(0.1)
    for _ in range(200):
        pace.record_round(4, 20.0)
    assert pace.tokens_per_ms(10.0) == pytest.approx(0.2, rel=0.05)


def test_tries_are_spaced_by_what_they_cost() -> None:
    cheap, dear = PairStats(), PairStats()
    for _ in range(8):
        cheap.record_draft_gain(0, 0.5, 10.0)
        dear.record_draft_gain(0, 12.0, 10.0)
    assert cheap.probe_interval < 10 < dear.probe_interval


# --- worth ------------------------------------------------------------------------------------


def test_guesses_are_worth_what_they_win_less_what_they_cost() -> None:
    known = PairStats()
    worth = ExpectedGain(PassCosts(SHOWN), known)
    chance = known.acceptance.mean_probability(0)
    one = chance - 0.1 * (1.0 + 2.0)
    assert worth.model_gain(0, 1.0, 1) == pytest.approx(one)
    assert worth.model_gain(0, 1.0, 4) >= one
    assert worth.model_gain(0, 0.0, 4) == -np.inf


def test_a_copy_is_kept_as_far_as_it_pays() -> None:
    known = PairStats()
    worth = ExpectedGain(PassCosts(SHOWN), known)
    for i in range(60):
        for match in (9, 16):
            known.acceptance.lookup.record(match_bucket(match), i % 10 < 7)
    copied = Draft(list(range(16)), None, "lookup", match_length=9)
    rich = RegretBudget()
    rich.record_round(20, 1.0)
    length, gain = worth.lookup_gain(copied, 16, rich)
    assert 3 <= length <= 5
    assert gain > 1
    assert worth.lookup_gain(copied, 2, rich)[0] == 2
    assert worth.lookup_gain(Draft(), 16, rich) == (0, 0.0)


def test_a_first_copy_needs_a_long_match() -> None:
    """Nothing was earned yet: a short match may be wrong, a long one hardly is."""
    worth = ExpectedGain(
        PassCosts(MeasuredCosts(10.0, {"1": 1.0, "4": 1.7, "8": 2.7})), PairStats()
    )
    for match, is_used in ((2, False), (8, True), (20, True)):
        copied = Draft(list(range(16)), None, "lookup", match_length=match)
        assert (worth.lookup_gain(copied, 16, RegretBudget())[0] > 0) == is_used
