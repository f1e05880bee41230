"""What is learnt of a pair: acceptance, throughput, when a draft is tried again."""

import numpy as np
import pytest

from localspec.protocol.wire import SamplingParams
from localspec.spec.control.pair_stats import (
    AcceptanceStats,
    PairStats,
    confidence_bucket,
    stats_key,
)


def test_chances_are_learnt_and_a_place_never_reached_is_like_the_one_before() -> None:
    rng = np.random.default_rng(1)
    bucket = confidence_bucket(0.7)
    for chance in (0.05, 0.5, 0.95):
        acceptance = AcceptanceStats()
        for _ in range(300):
            acceptance.model.record(bucket, bool(rng.random() < chance))
        assert acceptance.model.probability(bucket) == pytest.approx(chance, abs=0.12)
    for _ in range(80):
        acceptance.record_model_token(0, 1.0)
    assert acceptance.mean_probability(8) == pytest.approx(
        acceptance.mean_probability(0)
    )
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
    assert again.model.probability(3) == pytest.approx(
        acceptance.model.probability(3), abs=0.01
    )


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
    cheap = PairStats()
    dear = PairStats()
    for _ in range(8):
        cheap.record_draft_gain(0, 0.5, 10.0)
        dear.record_draft_gain(0, 12.0, 10.0)
    assert cheap.probe_interval < 10 < dear.probe_interval


def test_temperatures_are_counted_apart() -> None:
    keys = {
        stats_key(SamplingParams(temperature=t), "coupled")
        for t in (0.0, 0.3, 0.8, 1.5)
    }
    assert len(keys) == 4
    greedy = SamplingParams(temperature=0)
    assert stats_key(greedy, "coupled") == stats_key(greedy, "rejection")
