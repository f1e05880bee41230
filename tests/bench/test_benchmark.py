"""The bench: the order of events, stopping, and an engine that exits."""

from collections.abc import Iterator

import pytest

from localspec.bench.benchmark import Benchmark, estimate_bench
from localspec.bench.workloads import BenchRequest, Workload
from localspec.errors import LocalspecError
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.protocol.events import EngineExit, Event, SpeculationPlan
from localspec.protocol.wire import GenerateCommand, MeasuredCosts, ProbeCommand
from localspec.report.lines import plain_text
from localspec.report.measurement import format_measurement, format_to_share
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


def progress_of(benchmark: Benchmark, engine: ProbedEngine) -> list[str]:
    return [progress.text for progress in benchmark.run(engine)]


def test_costs_then_answers_then_the_report() -> None:
    engine = ProbedEngine(Clock())
    benchmark = Benchmark(REQUEST, engine.clock)
    assert not benchmark.has_begun and not benchmark.has_results
    planned = benchmark.format_estimate(COSTS)
    assert planned == "12 answers of 20 tokens: about 4 min 0 s."
    costs, estimate, *answers = progress_of(benchmark, engine)
    assert (costs, estimate) == ("measuring", "12 answers, about 4 min 0 s left")
    numbers = [text.partition(",")[0] for text in answers]
    assert numbers == [f"{n} of 12 answers" for n in range(1, 13)]
    assert answers[-1] == "12 of 12 answers, about 0 s left   code"
    report = benchmark.report
    assert [row.name for row in report.rows] == ["code", "code"]
    assert not report.interrupted and report.measured == COSTS


def test_the_estimate_counts_plain_passes() -> None:
    assert estimate_bench(REQUEST, COSTS).seconds == 12 * 20  # a second each
    assert estimate_bench(REQUEST, COSTS).rounds == 1
    quick = estimate_bench(REQUEST, MeasuredCosts(1.0, {"1": 1.0}))
    assert (quick.rounds, quick.answers) == (3, 36)
    request = BenchRequest("pair", (CODE,), (0.0,), 20, rounds=7)
    assert estimate_bench(request, COSTS).answers == 42


def test_stopping_drops_the_answer_and_keeps_the_results() -> None:
    engine = ProbedEngine(Clock())
    benchmark = Benchmark(REQUEST, engine.clock)
    for _ in benchmark.run(engine, lambda: len(engine.requests) == 6):
        pass
    assert len(engine.requests) == 6 and len(benchmark.runs) == 5
    assert benchmark.report.interrupted and len(benchmark.report.trials) == 2
    *_, last = format_measurement(benchmark)
    assert plain_text(last) == "Interrupted: partial results."


def test_an_engine_exit_is_reported_with_the_earlier_results() -> None:
    engine = ProbedEngine(Clock())
    engine.exits_at = 6
    benchmark = Benchmark(REQUEST, engine.clock)
    with pytest.raises(LocalspecError, match="The engine stopped"):
        progress_of(benchmark, engine)
    assert len(benchmark.report.trials) == 3 and benchmark.report.interrupted


def test_a_benchmark_beside_other_programs_says_that_it_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(OtherCpuLoad, "read", lambda _: 0.6)
    engine = ProbedEngine(Clock())
    benchmark = Benchmark(REQUEST, engine.clock)

    progress_of(benchmark, engine)

    shown = [plain_text(line) for line in format_measurement(benchmark)]
    assert any(
        line.startswith("Other programs used 60 % of the CPUs") for line in shown
    )
    assert any(
        "Other programs used 60 %" in line for line in format_to_share(benchmark)
    )
    assert benchmark.to_json()["other_load"] == 0.6
