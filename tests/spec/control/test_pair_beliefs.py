"""What is believed of a pair: priors, counts, and what is saved."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.machine.measurements import check_costs
from localspec.protocol.wire import MeasuredCosts, SamplingParams
from localspec.spec.control.pair_beliefs import (
    MATCH_EDGES,
    SIBLING_PRIOR,
    STRANGER_PRIOR,
    PairBeliefs,
    confidence_bucket,
    match_bucket,
    temperature_class,
)


def test_before_anything_was_counted_the_prior_holds() -> None:
    for prior in (SIBLING_PRIOR, STRANGER_PRIOR):
        assert PairBeliefs(prior).acceptance().by_confidence == pytest.approx(prior)


def test_the_example_of_the_docstring() -> None:
    """10 drafted at a prior of .62, 3 accepted: a level of .61, and (3 + 5 * .38) / 15."""
    beliefs = PairBeliefs()
    bucket = confidence_bucket(0.7)
    for i in range(10):
        beliefs.record_draft_token(bucket, is_accepted=i < 3)

    level = (3 + 2) / (10 * 0.62 + 2)
    by_confidence = beliefs.acceptance().by_confidence

    assert level == pytest.approx(0.61, abs=0.001)
    assert by_confidence[bucket] == pytest.approx((3 + 5 * 0.62 * level) / 15)
    assert by_confidence[0] == pytest.approx(SIBLING_PRIOR[0] * level)


@pytest.mark.parametrize("chance", [0.05, 0.5, 0.95])
def test_a_bucket_comes_to_what_is_true(chance: float) -> None:
    rng = np.random.default_rng(1)
    beliefs = PairBeliefs()
    bucket = confidence_bucket(0.7)
    for _ in range(300):
        beliefs.record_draft_token(bucket, is_accepted=bool(rng.random() < chance))
    assert beliefs.acceptance().by_confidence[bucket] == pytest.approx(chance, abs=0.15)


def test_a_draft_that_got_better_is_believed_within_two_windows() -> None:
    beliefs = PairBeliefs()
    for accepted in (False, True):
        for _ in range(66):
            beliefs.record_draft_token(2, is_accepted=accepted)
    assert beliefs.acceptance().by_confidence[2] > 0.75


def test_a_draft_worse_than_its_kind_is_known_after_ten_tokens_in_all() -> None:
    beliefs = PairBeliefs()
    for i in range(10):
        beliefs.record_draft_token(i % 5, is_accepted=False)
    assert beliefs.acceptance().mean < 0.25


def test_tokens_that_were_refused_count_for_the_mean() -> None:
    beliefs = PairBeliefs()
    before = beliefs.acceptance().mean
    for _ in range(50):
        beliefs.record_confidence(confidence_bucket(0.1))
    assert beliefs.acceptance().mean < before - 0.15


def test_buckets_end_at_their_edges() -> None:
    assert [confidence_bucket(c) for c in (0.0, 0.4, 0.5, 0.8, 0.9, 0.96, 1.0)] == [
        0,
        0,
        1,
        2,
        3,
        4,
        4,
    ]
    assert [match_bucket(n) for n in (2, 3, 4, 5, 6, 7, 12, 13, 900)] == [
        0,
        1,
        2,
        3,
        3,
        4,
        4,
        5,
        5,
    ]


def test_each_right_token_makes_a_match_longer() -> None:
    """A match of 2, whose first two copied tokens are right, and the third wrong."""
    beliefs = PairBeliefs()
    before = [beliefs.copy_probability(n) for n in (2, 3, 4, 5)]

    beliefs.record_copy(2, n_right=2, n_copied=8)

    after = [beliefs.copy_probability(n) for n in (2, 3, 4, 5)]
    assert after[0] > before[0]
    assert after[1] > before[1]
    assert after[2] < before[2]
    assert after[3] == before[3]


def test_a_copy_that_was_right_as_far_as_it_is_known_has_no_wrong_token() -> None:
    beliefs = PairBeliefs()
    before = beliefs.copy_probability(3)
    beliefs.record_copy(2, n_right=1, n_copied=1)
    assert beliefs.copy_probability(3) == before


def test_an_answer_that_repeats_itself_says_little_of_the_next_one() -> None:
    """The example of `_rates_with_answer`: .9 before, 24 of 30 in this answer."""
    beliefs = PairBeliefs()
    for i in range(30):
        beliefs.record_copy(8, n_right=int(i < 24), n_copied=1)
    in_this_answer = beliefs.copy_probability(8)
    beliefs.start_answer()
    assert in_this_answer == pytest.approx((24 + 8 * 0.9) / 38)
    assert beliefs.copy_probability(8) == pytest.approx(0.9 - 0.1 / 6)

    for _ in range(1000):
        beliefs.record_copy(40, n_right=1, n_copied=1)
    assert beliefs.copy_probability(40) > 0.99
    beliefs.start_answer()
    assert beliefs.copy_probability(40) < 0.97


def test_copies_that_disappointed_are_tried_again_in_the_next_answer() -> None:
    beliefs = PairBeliefs()
    for _ in range(5):
        beliefs.record_copy_gain(-6.0, planned=1.0)
    assert beliefs.copy_error < -3
    beliefs.start_answer()
    assert beliefs.copy_error == 0


def test_the_rest_of_an_answer_shrinks_to_half_of_what_is_usual_and_then_grows() -> (
    None
):
    beliefs = PairBeliefs(mean_length=100.0)
    rests = []
    for n in (0, 40, 50, 60):
        beliefs.record_round(n, has_draft=False, is_copy=False)
        rests.append(beliefs.expected_rest(10**6))
    assert rests == [100.0, 60.0, 50.0, 75.0]
    assert beliefs.expected_rest(7) == 7


def test_the_length_of_answers_is_learnt() -> None:
    beliefs = PairBeliefs()
    for _ in range(12):
        beliefs.start_answer()
        beliefs.record_round(40, has_draft=False, is_copy=False)
    beliefs.start_answer()
    assert beliefs.mean_length == pytest.approx(40, abs=25)
    assert beliefs.n_answers == 12


def test_errors_of_the_plan_correct_it_a_probe_says_less_of_the_past() -> None:
    beliefs = PairBeliefs()
    for _ in range(60):
        beliefs.record_gain(-0.5, planned=0.5, is_probe=False)
    assert beliefs.gain_error == pytest.approx(-0.41, abs=0.05)
    for _ in range(4):
        beliefs.record_gain(0.5, planned=0.5, is_probe=True)
    assert beliefs.gain_error > -0.06


def test_a_score_is_spread_as_the_prior_tells_easy_tokens_from_hard_ones() -> None:
    good = PairBeliefs()
    good.record_score([5] * 200)
    bad = PairBeliefs()
    bad.record_score([0] * 200)
    assert good.is_known and bad.is_known
    assert good.acceptance().mean > 0.85
    assert bad.acceptance().mean < 0.1
    fair = PairBeliefs()
    fair.record_score([1] * 200)
    by_confidence = fair.acceptance().by_confidence
    assert list(by_confidence) == sorted(by_confidence)
    assert fair.acceptance().mean == pytest.approx(0.5, abs=0.1)


ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.booleans(),
        st.integers(0, 40),
        st.integers(0, 12),
        st.floats(-50, 50),
        st.booleans(),
    ),
    max_size=60,
)


@given(ROUNDS)
def test_beliefs_stay_probabilities_and_outlive_their_process(
    rounds: list[tuple[int, bool, int, int, float, bool]],
) -> None:
    beliefs = PairBeliefs()
    for bucket, flag, match, n_right, gain, is_probe in rounds:
        beliefs.record_draft_token(bucket, is_accepted=flag)
        beliefs.record_confidence(bucket)
        beliefs.record_copy(match, n_right, n_right + 1)
        beliefs.record_gain(gain, planned=0.2, is_probe=is_probe)
        beliefs.record_round(n_right + 1, has_draft=flag, is_copy=is_probe)
        beliefs.record_reading(abs(gain), n_right + 1)

    saved = json.loads(json.dumps(beliefs.saved()))
    check_costs(MeasuredCosts(10.0, {"1": 1.0}, survival={"greedy": saved}))
    again = PairBeliefs.from_saved(saved, SIBLING_PRIOR)

    acceptance = beliefs.acceptance()
    for p in (*acceptance.by_confidence, acceptance.mean, beliefs.own_share):
        assert 0 <= p <= 1
    assert again.acceptance().by_confidence == pytest.approx(
        acceptance.by_confidence, abs=0.01
    )
    # What was counted in the answer that is written is left to the answer.
    beliefs.start_answer()
    for match in (*MATCH_EDGES, 99):
        assert 0 <= beliefs.copy_probability(match) <= 1
        assert again.copy_probability(match) == pytest.approx(
            beliefs.copy_probability(match), abs=0.01
        )
    assert again.gain_error == pytest.approx(beliefs.gain_error, abs=0.01)
    assert again.tokens_since_draft == beliefs.tokens_since_draft
    assert again.is_known == beliefs.is_known


def test_what_another_version_saved_begins_anew() -> None:
    old = {
        "model": {"b3": [2.0, 5.0]},
        "place": {"0": [1.0, 2.0]},
        "gains": {"gain": 1.0, "rounds": 9},
    }
    assert PairBeliefs.from_saved(old, SIBLING_PRIOR) == PairBeliefs()
    other_table = {"drafts": [[1.0, 2.0]] * 11, "copy_rates": [], "confidences": [1.0]}
    assert PairBeliefs.from_saved(other_table, SIBLING_PRIOR) == PairBeliefs()


def test_temperatures_are_counted_apart() -> None:
    names = {
        temperature_class(SamplingParams(temperature=t)) for t in (0, 0.3, 0.8, 1.5)
    }
    assert len(names) == 4
