"""Numbers are sums over rounds, and None where there is nothing to divide by."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.protocol.events import Overlap, Round, RoundTimes, Token
from localspec.protocol.round_totals import RoundTotals


def a_round(drafted: int, accepted: int, emitted: int, source: str | None = "model") -> Round:
    tokens = tuple(Token(i, "x", "accepted") for i in range(emitted))
    return Round(
        0, source if drafted else None, "", drafted, accepted, tokens, RoundTimes(2, 3, 0.5)
    )


def total(*rounds: Round) -> RoundTotals:
    totals = RoundTotals()
    for event in rounds:
        totals.add(event)
    return totals


def test_nothing_yet() -> None:
    totals = RoundTotals()
    assert totals.acceptance_rate is totals.mean_accepted_length is None
    assert totals.tokens_per_pass is None
    assert totals.to_json() == {
        "rounds": 0,
        "drafted": 0,
        "accepted": 0,
        "acceptance_rate": None,
        "mean_accepted_length": None,
        "histogram": [],
        "by_source": {},
        "host_ms_per_round": None,
        "paused_rounds": 0,
    }


def test_overlapped_rounds_and_their_hits_are_counted_apart() -> None:
    """A round that was not overlapped is neither a hit nor a miss; one may draft nothing."""
    overlaps: tuple[Overlap, ...] = ("", "hit", "miss", "hit", "miss", "miss")
    drafts = (4, 4, 4, 0, 4, 4)
    totals = total(
        *(replace(a_round(n, 0, 1), overlap=how) for n, how in zip(drafts, overlaps, strict=True))
    )
    assert totals.to_json()["overlap"] == {"rounds": 5, "hits": 2}
    assert total(a_round(4, 4, 5)).to_json().get("overlap") is None


def test_an_answer_in_numbers() -> None:
    totals = total(a_round(0, 0, 1), a_round(4, 4, 5), a_round(4, 1, 2, "lookup"), a_round(2, 0, 1))
    assert totals.tokens == 9
    assert totals.to_json() == {
        "rounds": 3,
        "drafted": 10,
        "accepted": 5,
        "acceptance_rate": 0.5,
        "mean_accepted_length": 2.6667,
        "histogram": [1, 1, 0, 0, 1],
        "by_source": {
            "model": {"drafted": 6, "accepted": 4},
            "lookup": {"drafted": 4, "accepted": 1},
        },
        "host_ms_per_round": 0.5,
        "paused_rounds": 1,
    }
    assert totals.host_ms == 2


def test_plain_rounds_are_no_speculation() -> None:
    totals = total(a_round(0, 0, 1), a_round(0, 0, 1))
    assert (totals.tokens, totals.plain_rounds, totals.rounds) == (2, 2, 0)
    assert totals.mean_accepted_length is totals.acceptance_rate is None
    assert totals.to_json()["host_ms_per_round"] == 0.5


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.sampled_from(["a", "b"]))))
def test_the_parts_sum_up(rounds: list[tuple[int, int, str]]) -> None:
    totals = total(*(a_round(n, min(k, n), min(k, n) + 1, source) for n, k, source in rounds))
    assert totals.rounds + totals.plain_rounds == len(rounds)
    assert sum(totals.histogram) == totals.rounds
    assert sum(k * n for k, n in enumerate(totals.histogram)) == totals.accepted
    assert sum(source.drafted for source in totals.by_source.values()) == totals.drafted
    assert sum(source.accepted for source in totals.by_source.values()) == totals.accepted
    assert totals.tokens == totals.accepted + len(rounds)
    if totals.rounds:
        assert totals.mean_accepted_length == pytest.approx(1 + totals.accepted / totals.rounds)


def test_what_is_told_cannot_change_the_sums() -> None:
    totals = total(a_round(2, 1, 2))
    told = totals.to_json()
    told["histogram"].append(9)
    told["by_source"]["model"]["drafted"] = 9
    assert totals.histogram == [0, 1]
    assert totals.by_source["model"].drafted == 2
