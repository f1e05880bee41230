"""A bench as it is told: in its order, stopped, and whatever the engine dies of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localspec.bench.benchmark import (
    BenchEvent,
    BenchFinished,
    BenchRequest,
    BenchStarted,
    CostProbeProgress,
    RunFinished,
    estimate_bench,
    run_benchmark,
)
from localspec.bench.paired_runs import BenchSettings, RunProgress
from localspec.bench.workloads import Workload
from localspec.protocol.events import EngineExit, Event, SpeculationPlan
from localspec.protocol.wire import GenerateCommand, MeasuredCosts, ProbeCommand
from tests.bench.fake_engine import Clock, FakeEngine

CODE = Workload("code", "", ("a", "b", "c"))
ASKED = BenchRequest("pair", (CODE,), (0.0, 0.8), BenchSettings(20))
COSTS = MeasuredCosts(1000.0, {"1": 1.0}, c=0.1)


class Probed(FakeEngine):
    """Its costs are known once it was measured."""

    dies_at: int | None = None

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        yield SpeculationPlan("probing", "measuring")
        self.measured = COSTS

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        if len(self.asked) == self.dies_at:
            yield EngineExit("signal SIGKILL")
            return
        yield from super().generate(request)


def told(engine: Probed, asked: BenchRequest = ASKED) -> list[BenchEvent]:
    return list(run_benchmark(engine, asked, clock=engine.clock))


def test_costs_then_answers_then_the_report() -> None:
    found = told(Probed(Clock()))
    assert [type(one) for one in found[:3]] == [CostProbeProgress, BenchStarted, RunProgress]
    over = found[-1]
    assert isinstance(over, BenchFinished) and over.error is None
    assert sum(isinstance(one, BenchFinished) for one in found) == 1
    assert [row.name for row in over.report.rows] == ["code", "code"]
    assert not over.report.interrupted and over.report.c == COSTS.c
    answered = [one for one in found if isinstance(one, RunFinished)]
    assert [one.done for one in answered] == list(range(1, 13))
    assert {one.total for one in answered} == {12}
    assert answered[-1].seconds_left == 0
    left = [one.seconds_left for one in answered]
    assert left[0] > left[-2] > 0


def test_an_answer_is_told_while_it_is_written() -> None:
    found = told(Probed(Clock()))
    first = next(n for n, one in enumerate(found) if isinstance(one, RunFinished))
    going = [one for one in found[:first] if isinstance(one, RunProgress)]
    assert [one.tokens for one in going] == list(range(1, 21))  # the first is plain
    assert going[0].tokens_per_second is None
    assert going[-1].tokens_per_second == pytest.approx(1.0)


def test_what_is_asked_takes_as_long_as_its_passes() -> None:
    assert estimate_bench(ASKED, COSTS).seconds == 12 * 20  # a second each
    assert estimate_bench(ASKED, COSTS).rounds == 1
    quick = estimate_bench(ASKED, MeasuredCosts(1.0, {"1": 1.0}))
    assert (quick.rounds, quick.answers) == (3, 36)
    assert (
        estimate_bench(
            BenchRequest("pair", (CODE,), (0.0,), BenchSettings(20), rounds=7), COSTS
        ).answers
        == 42
    )


def test_stopped_it_ends_after_the_answer_and_keeps_what_there_is() -> None:
    engine = Probed(Clock())
    found = list(run_benchmark(engine, ASKED, lambda: len(engine.asked) == 5, engine.clock))
    over = found[-1]
    assert len(engine.asked) == 5 and isinstance(over, BenchFinished)
    assert over.report.interrupted and over.report.trials == 2
    assert isinstance(found[-2], RunFinished), "the fifth is whole"


def test_stopped_while_it_is_measured_nothing_is_asked() -> None:
    engine = Probed(Clock())
    *_, over = run_benchmark(engine, ASKED, lambda: True, engine.clock)
    assert isinstance(over, BenchFinished) and over.report.interrupted and not over.report.rows
    assert not engine.asked and engine.stopped


def test_a_death_is_told_with_what_was_measured_before() -> None:
    engine = Probed(Clock())
    engine.dies_at = 6
    over = told(engine)[-1]
    assert isinstance(over, BenchFinished) and over.error is not None
    assert over.report.trials == 3 and over.report.interrupted
