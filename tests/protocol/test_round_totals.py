"""Totals are sums over rounds, and rates None where there is nothing to divide by."""

from msgspec.structs import replace

from localspec.protocol.events import Overlap, Round, RoundTimes, Token
from localspec.protocol.round_totals import RoundTotals


def a_round(
    drafted: int, accepted: int, emitted: int, source: str | None = "model"
) -> Round:
    return Round(
        n=0,
        source=source if drafted else None,
        reason="",
        drafted=drafted,
        accepted=accepted,
        tokens=tuple(Token(i, "x", "accepted") for i in range(emitted)),
        ms=RoundTimes(draft=2, verify=3, host=0.5),
    )


ROUNDS = (
    a_round(drafted=0, accepted=0, emitted=1),
    a_round(drafted=4, accepted=4, emitted=5),
    a_round(drafted=4, accepted=1, emitted=2, source="lookup"),
    a_round(drafted=2, accepted=0, emitted=1),
)


def test_an_answer_in_numbers() -> None:
    totals = RoundTotals.of(ROUNDS)

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
    assert totals.tokens == 9
    assert totals.host_ms == 2
    assert totals.tokens_per_pass == 2.25


def test_tokens_are_counted_by_their_position_in_the_draft() -> None:
    """Of the second draft only two tokens are verified, of the third only one."""
    totals = RoundTotals.of(ROUNDS)

    places = [(place.drafted, place.accepted) for place in totals.by_position]

    assert places == [(3, 2), (2, 1), (1, 1), (1, 1)]


def test_a_change_of_the_report_changes_no_sum() -> None:
    totals = RoundTotals.of(ROUNDS)
    before = totals.to_json()

    changed = totals.to_json()
    changed["histogram"].append(9)
    changed["by_source"]["model"]["drafted"] = 9

    assert totals.to_json() == before


def test_without_rounds_there_are_no_rates() -> None:
    empty = RoundTotals().to_json()

    assert empty["acceptance_rate"] is None
    assert empty["host_ms_per_round"] is None


def test_plain_rounds_have_no_rates() -> None:
    plain = RoundTotals.of([a_round(0, 0, 1)] * 2).to_json()

    assert plain["acceptance_rate"] is None
    assert plain["mean_accepted_length"] is None
    assert plain["rounds"] == 0
    assert plain["paused_rounds"] == 2
    assert plain["host_ms_per_round"] == 0.5
    assert set(plain) == set(RoundTotals().to_json())


def test_overlapped_rounds_and_their_hits_are_counted_apart() -> None:
    """A round that was not overlapped is neither; one that was may draft nothing."""
    overlaps: tuple[Overlap, ...] = ("", "hit", "miss", "hit", "miss", "miss")
    n_drafted = (4, 4, 4, 0, 4, 4)
    totals = RoundTotals()
    for n, overlap in zip(n_drafted, overlaps, strict=True):
        totals.add(replace(a_round(n, 0, 1), overlap=overlap))

    assert totals.to_json()["overlap"] == {"rounds": 5, "hits": 2}
