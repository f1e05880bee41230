"""bench/aggregation.py: medians, excluded trials, means, and the JSON document."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from localspec.bench import aggregation
from localspec.bench.aggregation import NOT_A_COPY, REPETITIVE, TOO_SHORT
from localspec.bench.paired_runs import BenchRequest, BenchRun
from localspec.bench.results import BenchReport, report_to_json
from localspec.bench.workloads import Workload
from localspec.protocol.wire import MeasuredCosts
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
    return aggregation.build_report(
        these, REQUEST, READY, measured, rounds=1, interrupted=interrupted
    )


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
    assert row.identical
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
    assert not row.identical


def test_a_run_without_its_other_arm_is_ignored() -> None:
    three = runs(FakeEngine(Clock()))[:4]  # plain 0, speculative 1, plain 2, speculative 0
    found = summary(three, interrupted=True)
    assert [trial.prompt for trial in found.rows[0].trials] == [0]
    assert summary([], interrupted=True).rows == ()


# --- the JSON document ------------------------------------------------------------------------

ROW = {
    "name",
    "temperature",
    "plain_tps",
    "spec_tps",
    "speedup",
    "theory",
    "acceptance_rate",
    "mean_accepted_length",
    "first_token_ms",
    "latency_ms",
    "distinct_4grams",
    "identical",
}
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
