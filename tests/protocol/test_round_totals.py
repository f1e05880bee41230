"""Totals are sums over rounds, and rates None where there is nothing to divide by."""

from msgspec.structs import replace

from localspec.protocol.events import Overlap, Round, RoundTimes, Token
from localspec.protocol.round_totals import RoundTotals


def a_round(
    drafted: int, accepted: int, emitted: int, source: str | None = "model"
) -> Round:
    tokens = tuple(Token(i, "x", "accepted") for i in range(emitted))
    times = RoundTimes(2, 3, 0.5)
    return Round(0, source if drafted else None, "", drafted, accepted, tokens, times)


def test_an_answer_in_numbers() -> None:
    rounds = (
        a_round(0, 0, 1),
        a_round(4, 4, 5),
        a_round(4, 1, 2, "lookup"),
        a_round(2, 0, 1),
    )
    totals = RoundTotals.of(rounds)
    expected = {
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
    assert totals.to_json() == expected
    assert (totals.tokens, totals.host_ms, totals.tokens_per_pass) == (9, 2, 2.25)
    places = [(place.drafted, place.accepted) for place in totals.by_position]
    assert places == [(3, 2), (2, 1), (1, 1), (1, 1)]
    totals.to_json()["histogram"].append(9)
    totals.to_json()["by_source"]["model"]["drafted"] = 9
    assert totals.to_json() == expected, "a report changes no sum"


def test_no_rounds_and_plain_rounds_have_no_rates() -> None:
    empty, plain = (
        RoundTotals().to_json(),
        RoundTotals.of([a_round(0, 0, 1)] * 2).to_json(),
    )
    assert empty["acceptance_rate"] is empty["host_ms_per_round"] is None
    assert plain["acceptance_rate"] is plain["mean_accepted_length"] is None
    assert (plain["rounds"], plain["paused_rounds"], plain["host_ms_per_round"]) == (
        0,
        2,
        0.5,
    )
    assert set(empty) == set(plain)


def test_overlapped_rounds_and_their_hits_are_counted_apart() -> None:
    """A round that was not overlapped is neither a hit nor a miss; one may draft
    nothing.
    """
    overlaps: tuple[Overlap, ...] = ("", "hit", "miss", "hit", "miss", "miss")
    rounds = [a_round(n, 0, 1) for n in (4, 4, 4, 0, 4, 4)]
    totals = RoundTotals.of(
        map(lambda each, how: replace(each, overlap=how), rounds, overlaps)
    )
    assert totals.to_json()["overlap"] == {"rounds": 5, "hits": 2}
