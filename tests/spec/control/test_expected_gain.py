"""What more draft tokens should win, less what they cost."""

import numpy as np
import pytest

from localspec.protocol.wire import MeasuredCosts
from localspec.spec.control.expected_gain import ExpectedGain
from localspec.spec.control.pair_stats import PairStats, match_bucket
from localspec.spec.control.pass_costs import PassCosts
from localspec.spec.control.regret_budget import RegretBudget
from localspec.spec.protocols import Draft

SHOWN = MeasuredCosts(10.0, {"1": 1.0, "2": 1.2, "4": 1.4, "8": 2.0}, 0.1)


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


def test_a_first_copy_of_the_prompt_needs_a_shorter_match() -> None:
    """As in an edit of a given text.

    What is learned of one source says nothing of the other.
    """
    costs = PassCosts(MeasuredCosts(10.0, {"1": 1.0, "4": 1.7, "8": 2.7}))
    stats = PairStats()
    worth = ExpectedGain(costs, stats)
    copied = Draft([1, 2, 3, 4], None, "lookup", match_length=2)
    assert worth.lookup_gain(copied, 16, RegretBudget(), in_prompt=True)[0] > 0
    assert worth.lookup_gain(copied, 16, RegretBudget())[0] == 0
    for _ in range(60):
        stats.acceptance.lookup.record(match_bucket(2, in_prompt=True), accepted=False)
    assert worth.lookup_gain(copied, 16, RegretBudget(), in_prompt=True)[0] == 0
    assert stats.acceptance.lookup.probability(match_bucket(2)) == pytest.approx(0.4)
    restored = PairStats.from_saved(stats.saved()).acceptance.lookup
    assert restored.probability(match_bucket(2, in_prompt=True)) < 0.1
