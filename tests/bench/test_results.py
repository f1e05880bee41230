"""Bench results: medians, excluded trials, means, acceptance by position, repetition, JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.bench import results, workloads
from localspec.bench.results import (
    NOT_A_COPY,
    REPETITIVE,
    TOO_SHORT,
    BenchReport,
    copied_share,
    cumulative_acceptance,
    distinct_4grams,
    report_to_json,
)
from localspec.bench.workloads import BenchRequest, BenchRun, Workload
from localspec.protocol.events import Round, RoundTimes, Token
from localspec.protocol.round_totals import DraftTotals, RoundTotals
from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts
from tests.bench.fake_engine import READY, Clock, FakeEngine, collect_runs

CODE = Workload("code", "", ("a", "b", "c"))
MEASURED = MeasuredCosts(1000.0, {"1": 1.0, "2": 1.0, "4": 1.0}, c=0.1)
REQUEST = BenchRequest("pair", (CODE,), (0.0,), 40, rounds=1)


def runs(
    engine: FakeEngine, *workloads: Workload, temperatures: tuple[float, ...] = (0.0,)
) -> list[BenchRun]:
    chosen = replace(REQUEST, workloads=workloads or (CODE,), temperatures=temperatures)
    return collect_runs(engine, chosen)


def summary(
    these: list[BenchRun],
    measured: MeasuredCosts | None = MEASURED,
    *,
    interrupted: bool = False,
) -> BenchReport:
    return results.build_report(these, REQUEST, READY, measured, rounds=1, interrupted=interrupted)


def report(engine: FakeEngine, *workloads: Workload) -> BenchReport:
    return summary(runs(engine, *workloads))


def test_speeds_and_acceptance() -> None:
    (row,) = report(FakeEngine(Clock())).rows
    assert row.plain_tps == pytest.approx(1.0)
    assert row.spec_tps == pytest.approx(2.0)
    assert row.speedup is not None
    assert (row.speedup.median, row.speedup.min, row.speedup.max) == pytest.approx((2, 2, 2))
    assert row.mean_accepted_length == pytest.approx(3.0)
    assert row.acceptance_rate == pytest.approx(26 / 38)  # the last round could draft two only
    assert row.survival[:2] == (1.0, 1.0)
    assert row.survival[2] == 0.0
    assert row.identical == 3
    assert row.counted
    assert row.latency_ms is not None
    assert row.latency_ms.p50 == pytest.approx(500)


def test_the_best_fixed_draft_length() -> None:
    """Two draft tokens are always accepted, the third never: three tokens per drafting round."""
    (row,) = report(FakeEngine(Clock())).rows
    assert row.best is not None
    assert row.best.gamma == 2
    assert row.best.speedup == pytest.approx(3 / (2 * 0.1 + 1.0 + 0.001))
    assert row.share_of_best == pytest.approx(2.0 / row.best.speedup)


def test_prompt_lookup_costs_no_draft_pass() -> None:
    (row,) = report(FakeEngine(Clock(), source="lookup")).rows
    assert row.best is not None
    assert row.best.speedup == pytest.approx(3 / 1.001)


def test_without_drafts_or_costs_the_values_are_none() -> None:
    (row,) = report(FakeEngine(Clock(), drafts=0)).rows
    assert (row.acceptance_rate, row.mean_accepted_length, row.best) == (None, None, None)
    assert row.survival == ()
    (row,) = summary(runs(FakeEngine(Clock())), measured=None).rows
    assert row.best is None


# --- excluded trials --------------------------------------------------------------------------


def test_a_repetitive_greedy_answer_is_shown_but_not_in_the_mean() -> None:
    circle = (1, 2, 3) * 30
    found = report(FakeEngine(Clock(), output=circle))
    (row,) = found.rows
    assert not row.counted
    assert {trial.left_out for trial in row.trials} == {REPETITIVE}
    assert row.speedup is not None
    assert row.speedup.median == pytest.approx(2.0)
    assert found.speedup is None
    assert found.left_out == {REPETITIVE: 3}


def test_a_repetitive_sampled_answer_counts() -> None:
    engine = FakeEngine(Clock(), output=(1, 2, 3) * 30)
    (row,) = summary(runs(engine, temperatures=(0.8,))).rows
    assert row.counted


def test_a_short_answer_does_not_count() -> None:
    assert report(FakeEngine(Clock(), output=(1, 2, 3))).left_out == {TOO_SHORT: 3}
    assert report(FakeEngine(Clock(), output=(1,))).left_out == {TOO_SHORT: 3}


def test_a_copy_edit_counts_only_if_it_copies() -> None:
    words = " ".join(f"w{i}" for i in range(100, 140))
    good = Workload("copy-edit", "", (words, words + " 1"), copies_prompt=True)
    bad = Workload("copy-edit", "", ("something else", "entirely"), copies_prompt=True)
    assert report(FakeEngine(Clock()), good).left_out == {}
    assert report(FakeEngine(Clock()), bad).left_out == {NOT_A_COPY: 2}
    some = Workload("copy-edit", "", (words, "else"), copies_prompt=True)
    (row,) = report(FakeEngine(Clock()), some).rows
    assert row.counted
    assert [trial.left_out for trial in row.trials] == [None, NOT_A_COPY]


def test_means_are_geometric_and_by_temperature() -> None:
    clock = Clock()
    fast = runs(FakeEngine(clock), CODE, temperatures=(0.0, 0.8))
    slow = runs(FakeEngine(clock, round_s=6.0), replace(CODE, name="chat"))
    found = summary([*fast, *slow])
    assert [row.name for row in found.rows] == ["code", "chat", "code"]
    assert [(mean.temperature, mean.workloads) for mean in found.means] == [(0.0, 2), (0.8, 1)]
    assert [mean.speedup for mean in found.means] == pytest.approx([1.0, 2.0])  # √(2 × ½), 2
    assert found.speedup == pytest.approx((2 * 0.5 * 2) ** (1 / 3))


def test_a_different_text_is_not_identical() -> None:
    these = runs(FakeEngine(Clock()))
    other = runs(FakeEngine(Clock(), output=tuple(range(300, 400))))
    mixed = [run for run in these if run.arm == "plain"]
    mixed += [run for run in other if run.arm == "speculative"]
    (row,) = summary(mixed).rows
    assert row.identical == 0


def test_a_run_without_its_other_arm_is_ignored() -> None:
    three = runs(FakeEngine(Clock()))[:4]  # plain 0, speculative 1, plain 2, speculative 0
    found = summary(three, interrupted=True)
    assert [trial.prompt for trial in found.rows[0].trials] == [0]
    assert summary([], interrupted=True).rows == ()


# --- the JSON document ------------------------------------------------------------------------

ROW = {
    "name", "temperature", "plain_tps", "spec_tps", "speedup", "theory", "acceptance_rate",
    "mean_accepted_length", "first_token_ms", "latency_ms", "distinct_4grams", "identical",
}  # fmt: skip
"""Promised keys; there may be more."""


@pytest.mark.parametrize(
    "engine", [FakeEngine(Clock()), FakeEngine(Clock(), output=(1,), drafts=0)]
)
def test_the_document_has_the_promised_keys(engine: FakeEngine) -> None:
    body = json.loads(json.dumps(report_to_json(report(engine)), allow_nan=False))
    assert body["schema"] == 1
    assert body["pair"] == "pair"
    assert {"cpu", "engine", "system"} <= set(body["machine"])
    assert {"c", "verify_curve", "host_ms"} <= set(body["cost"])
    assert body["cost"]["verify_curve"] == {"1": 1.0, "2": 1.0, "4": 1.0}
    (row,) = body["workloads"]
    assert set(row) >= ROW
    assert {"best", "reached"} <= set(row["theory"])
    assert row["speedup"] is None or set(row["speedup"]) == {"median", "min", "max"}
    assert row["latency_ms"] is None or set(row["latency_ms"]) == {"p50", "p99"}
    assert len(row["trials"]) == 3


# --- acceptance by position -------------------------------------------------------------------


def drafted(n: int, accepted: int, emitted: int | None = None) -> Round:
    count = accepted + 1 if emitted is None else emitted
    tokens = tuple(Token(i, "", "plain") for i in range(count))
    return Round(0, "model" if n else None, "", n, accepted, tokens, RoundTimes(0, 0, 0))


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


# --- repetition, within a text and of its prompt ---------------------------------------------


@pytest.mark.parametrize(
    ("ids", "share"),
    [([1, 2, 3], None), ([1, 2, 3, 4], 1.0), ([1] * 8, 1 / 5), ([1, 2, 3, 4, 1, 2, 3, 4], 4 / 5)],
)
def test_distinct_runs_of_tokens(ids: list[int], share: float | None) -> None:
    assert distinct_4grams(ids) == (None if share is None else pytest.approx(share))


def test_white_space_does_not_count_for_the_copied_share() -> None:
    prompt = "def mean(values):\n    return sum(values)"
    assert copied_share(prompt, "def  mean (values) :\n  return sum(values)") == 1.0
    assert copied_share(prompt, "none of these words are in it") == 0.0
    assert copied_share(prompt, "too short") is None


def test_the_requested_edit_counts_as_a_copy() -> None:
    (copy_edit,) = (workload for workload in workloads.load() if workload.copies_prompt)
    for prompt in copy_edit.prompts:
        match = re.fullmatch(r"# Before:\n(.*?)\n\n# After: (\w+) becomes (\w+)\n", prompt, re.S)
        assert match is not None
        text, old, new = match.groups()
        edited = re.sub(rf"\b{old}\b", new, text)
        assert edited != text
        assert (copied_share(prompt, edited) or 0) > 0.8
