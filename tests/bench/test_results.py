"""The results of a benchmark: figures of a workload, excluded trials, means, JSON."""

import json
import re

import pytest
from msgspec.structs import replace

from localspec.bench import results, workloads
from localspec.bench.workloads import BenchRequest, BenchRun, Workload
from localspec.protocol.round_totals import DraftTotals
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
) -> results.BenchReport:
    return results.build_report(
        these, REQUEST, READY, measured, rounds=1, interrupted=interrupted
    )


def report(engine: FakeEngine, *workloads: Workload) -> results.BenchReport:
    return summary(runs(engine, *workloads))


def test_speeds_and_acceptance() -> None:
    (row,) = report(FakeEngine(Clock())).rows
    assert row.plain_tps == pytest.approx(1.0) and row.spec_tps == pytest.approx(2.0)
    assert row.speedup is not None
    spread = (row.speedup.median, row.speedup.min, row.speedup.max)
    assert spread == pytest.approx((2, 2, 2))
    assert row.mean_accepted_length == pytest.approx(3.0)
    # the last round could draft two only
    assert row.acceptance_rate == pytest.approx(26 / 38)
    assert row.survival == (1.0, 1.0, 0.0)
    assert row.identical == 3
    assert row.counted
    assert row.latency_ms is not None and row.latency_ms.p50 == pytest.approx(500)


def test_the_best_draft_length_follows_from_acceptance_and_costs() -> None:
    """Two draft tokens are always accepted, the third never.

    So a round that drafts two gives three tokens.
    """
    (row,) = report(FakeEngine(Clock())).rows
    assert row.best is not None and row.best.gamma == 2
    assert row.best.speedup == pytest.approx(3 / (2 * 0.1 + 1.0 + 0.001))
    assert row.share_of_best == pytest.approx(2.0 / row.best.speedup)


def test_draft_tokens_of_lookup_cost_no_draft_pass() -> None:
    (row,) = report(FakeEngine(Clock(), source="lookup")).rows
    assert row.best is not None and row.best.speedup == pytest.approx(3 / 1.001)


def test_without_drafts_or_costs_the_values_are_none() -> None:
    (row,) = report(FakeEngine(Clock(), drafts=0)).rows
    assert row.acceptance_rate is None
    assert row.mean_accepted_length is None
    assert row.best is None
    assert row.survival == ()
    (row,) = summary(runs(FakeEngine(Clock())), measured=None).rows
    assert row.best is None


def test_a_repetitive_greedy_answer_is_shown_but_not_in_the_mean() -> None:
    circle = (1, 2, 3) * 30
    found = report(FakeEngine(Clock(), output=circle))
    (row,) = found.rows
    assert not row.counted
    assert {trial.left_out for trial in row.trials} == {results.REPETITIVE}
    assert row.speedup is not None and row.speedup.median == pytest.approx(2.0)
    assert found.speedup is None and found.left_out == {results.REPETITIVE: 3}


def test_a_sampled_answer_may_repeat_itself() -> None:
    engine = FakeEngine(Clock(), output=(1, 2, 3) * 30)
    (row,) = summary(runs(engine, temperatures=(0.8,))).rows
    assert row.counted


def test_an_answer_of_few_tokens_does_not_count() -> None:
    for few in ((1, 2, 3), (1,)):
        found = report(FakeEngine(Clock(), output=few))
        assert found.left_out == {results.TOO_SHORT: 3}


def test_a_copy_edit_counts_only_if_it_copies() -> None:
    words = " ".join(f"w{i}" for i in range(100, 140))
    good = Workload("copy-edit", "", (words, words + " 1"), copies_prompt=True)
    bad = Workload("copy-edit", "", ("something else", "entirely"), copies_prompt=True)
    assert report(FakeEngine(Clock()), good).left_out == {}
    assert report(FakeEngine(Clock()), bad).left_out == {results.NOT_A_COPY: 2}
    some = Workload("copy-edit", "", (words, "else"), copies_prompt=True)
    (row,) = report(FakeEngine(Clock()), some).rows
    assert row.counted
    left_out = [trial.left_out for trial in row.trials]
    assert left_out == [None, results.NOT_A_COPY]


def test_means_are_geometric_and_by_temperature() -> None:
    clock = Clock()
    fast = runs(FakeEngine(clock), CODE, temperatures=(0.0, 0.8))
    slow = runs(FakeEngine(clock, round_s=6.0), replace(CODE, name="chat"))
    found = summary([*fast, *slow])
    assert [row.name for row in found.rows] == ["code", "chat", "code"]
    workloads_by_mean = [(mean.temperature, mean.workloads) for mean in found.means]
    assert workloads_by_mean == [(0.0, 2), (0.8, 1)]
    # √(2 × ½), 2
    assert [mean.speedup for mean in found.means] == pytest.approx([1.0, 2.0])
    assert found.speedup == pytest.approx((2 * 0.5 * 2) ** (1 / 3))


def test_a_different_text_is_not_identical() -> None:
    these = runs(FakeEngine(Clock()))
    other = runs(FakeEngine(Clock(), output=tuple(range(300, 400))))
    mixed = [run for run in these if run.arm == "plain"]
    mixed += [run for run in other if run.arm == "speculative"]
    (row,) = summary(mixed).rows
    assert row.identical == 0


ROW = {
    "name", "temperature", "plain_tps", "spec_tps", "speedup", "theory", "acceptance_rate",
    "mean_accepted_length", "first_token_ms", "latency_ms", "distinct_4grams", "identical",
}  # fmt: skip
"""Promised keys; there may be more."""


def test_the_document_has_the_promised_keys() -> None:
    for engine in [FakeEngine(Clock()), FakeEngine(Clock(), output=(1,), drafts=0)]:
        found = results.report_to_json(report(engine))
        body = json.loads(json.dumps(found, allow_nan=False))
        assert body["schema"] == 1 and body["pair"] == "pair"
        assert {"cpu", "engine", "system"} <= set(body["machine"])
        assert {"c", "verify_curve", "host_ms"} <= set(body["cost"])
        assert body["cost"]["verify_curve"] == {"1": 1.0, "2": 1.0, "4": 1.0}
        (row,) = body["workloads"]
        assert set(row) >= ROW and {"best", "reached"} <= set(row["theory"])
        assert row["speedup"] is None or set(row["speedup"]) == {"median", "min", "max"}
        assert row["latency_ms"] is None or set(row["latency_ms"]) == {"p50", "p99"}
        assert len(row["trials"]) == 3


def test_a_rare_position_uses_the_rate_of_the_one_before() -> None:
    counts = [DraftTotals(1, 100, 80), DraftTotals(1, 80, 40), DraftTotals(1, 2, 0)]
    assert results.cumulative_acceptance(counts)[:3] == pytest.approx([0.8, 0.4, 0.2])


def test_distinct_runs_of_tokens() -> None:
    assert results.distinct_4grams([1, 2, 3]) is None
    assert results.distinct_4grams([1, 1, 2, 1, 1, 2, 1]) == pytest.approx(3 / 4)


def test_white_space_does_not_count_for_the_copied_share() -> None:
    prompt = "def mean(values):\n    return sum(values)"
    copy = "def  mean (values) :\n  return sum(values)"
    assert results.copied_share(prompt, copy) == 1.0
    assert results.copied_share(prompt, "none of these words are in it") == 0.0
    assert results.copied_share(prompt, "too short") is None


def test_the_requested_edit_counts_as_a_copy() -> None:
    (copy_edit,) = (workload for workload in workloads.load() if workload.copies_prompt)
    for prompt in copy_edit.prompts:
        match = re.fullmatch(
            r"# Before:\n(.*?)\n\n# After: (\w+) becomes (\w+)\n", prompt, re.S
        )
        assert match is not None
        text, old, new = match.groups()
        edited = re.sub(rf"\b{old}\b", new, text)
        assert edited != text and (results.copied_share(prompt, edited) or 0) > 0.8
