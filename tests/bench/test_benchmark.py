"""bench/benchmark.py: the order of events, stopping, and an engine that exits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.bench.benchmark import (
    BenchEstimate,
    BenchEvent,
    BenchFinished,
    CostProbeProgress,
    RunFinished,
    estimate_bench,
    run_benchmark,
)
from localspec.bench.paired_runs import BenchRequest, RunProgress
from localspec.bench.workloads import Workload
from localspec.protocol.events import EngineExit, Event, SpeculationPlan
from localspec.protocol.wire import GenerateCommand, MeasuredCosts, ProbeCommand
from tests.bench.fake_engine import Clock, FakeEngine

CODE = Workload("code", "", ("a", "b", "c"))
REQUEST = BenchRequest("pair", (CODE,), (0.0, 0.8), 20)
COSTS = MeasuredCosts(1000.0, {"1": 1.0}, c=0.1)


class ProbedEngine(FakeEngine):
    """Has costs after `probe`; exits in answer number `exits_at`."""

    exits_at: int | None = None

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        yield SpeculationPlan("probing", "measuring")
        self.measured = COSTS

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        if len(self.requests) == self.exits_at:
            yield EngineExit("signal SIGKILL")
            return
        yield from super().generate(request)


def events_of(engine: ProbedEngine, request: BenchRequest = REQUEST) -> list[BenchEvent]:
    return list(run_benchmark(engine, request, clock=engine.clock))


def test_costs_then_answers_then_the_report() -> None:
    events = events_of(ProbedEngine(Clock()))
    assert [type(event) for event in events[:3]] == [CostProbeProgress, BenchEstimate, RunProgress]
    last = events[-1]
    assert isinstance(last, BenchFinished) and last.error is None
    assert sum(isinstance(event, BenchFinished) for event in events) == 1
    assert [row.name for row in last.report.rows] == ["code", "code"]
    assert not last.report.interrupted and last.report.c == COSTS.c
    runs = [event for event in events if isinstance(event, RunFinished)]
    assert [run.done for run in runs] == list(range(1, 13))
    assert {run.total for run in runs} == {12}
    assert runs[-1].seconds_left == 0
    assert runs[0].seconds_left > runs[-2].seconds_left > 0


def test_progress_is_reported_within_an_answer() -> None:
    events = events_of(ProbedEngine(Clock()))
    first = next(n for n, event in enumerate(events) if isinstance(event, RunFinished))
    progress = [event for event in events[:first] if isinstance(event, RunProgress)]
    assert [event.tokens for event in progress] == list(range(1, 21))  # the first run is plain
    assert progress[0].tokens_per_second is None
    assert progress[-1].tokens_per_second == pytest.approx(1.0)


def test_the_estimate_counts_plain_passes() -> None:
    assert estimate_bench(REQUEST, COSTS).seconds == 12 * 20  # a second each
    assert estimate_bench(REQUEST, COSTS).rounds == 1
    quick = estimate_bench(REQUEST, MeasuredCosts(1.0, {"1": 1.0}))
    assert (quick.rounds, quick.answers) == (3, 36)
    request = BenchRequest("pair", (CODE,), (0.0,), 20, rounds=7)
    assert estimate_bench(request, COSTS).answers == 42


def test_stopping_finishes_the_answer_and_keeps_the_results() -> None:
    engine = ProbedEngine(Clock())
    events = list(run_benchmark(engine, REQUEST, lambda: len(engine.requests) == 5, engine.clock))
    last = events[-1]
    assert len(engine.requests) == 5 and isinstance(last, BenchFinished)
    assert last.report.interrupted and last.report.trials == 2
    assert isinstance(events[-2], RunFinished), "the fifth answer is complete"


def test_stopping_during_the_cost_measurement_runs_no_answer() -> None:
    engine = ProbedEngine(Clock())
    *_, last = run_benchmark(engine, REQUEST, lambda: True, engine.clock)
    assert isinstance(last, BenchFinished) and last.report.interrupted and not last.report.rows
    assert not engine.requests and engine.stopped


def test_an_engine_exit_is_reported_with_the_earlier_results() -> None:
    engine = ProbedEngine(Clock())
    engine.exits_at = 6
    last = events_of(engine)[-1]
    assert isinstance(last, BenchFinished) and last.error is not None
    assert last.report.trials == 3 and last.report.interrupted
