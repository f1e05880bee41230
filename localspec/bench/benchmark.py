"""Runs a benchmark and streams its progress, from the cost measurement to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from localspec.bench import aggregation, paired_runs
from localspec.bench.paired_runs import BenchRequest, BenchRun, RunProgress
from localspec.bench.results import BenchReport
from localspec.errors import LocalspecError
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.protocol.wire import MeasuredCosts, ProbeCommand

_DEFAULT_PASS_SECONDS = 0.05
"""Assumed cost of a pass before any measurement."""


@dataclass(frozen=True, slots=True)
class CostProbeProgress:
    """The costs of passes are being measured; `why` may be empty."""

    why: str


@dataclass(frozen=True, slots=True)
class BenchEstimate:
    """What will be run; as an event, the costs are measured and the answers begin."""

    answers: int
    rounds: int
    seconds: float
    """A lower bound: plain passes only, without reading the prompts."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    run: BenchRun
    done: int
    total: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class BenchFinished:
    """The last event; `error` is the reason if the report is incomplete."""

    report: BenchReport
    error: LocalspecError | None = None


BenchEvent = CostProbeProgress | BenchEstimate | RunProgress | RunFinished | BenchFinished


def estimate_bench(request: BenchRequest, measured: MeasuredCosts | None) -> BenchEstimate:
    pass_seconds = measured.t1_ms / 1e3 if measured else _DEFAULT_PASS_SECONDS
    answer_seconds = pass_seconds * request.max_tokens
    per_round = len(paired_runs.schedule_runs(request.workloads, request.temperatures, 1))
    rounds = request.rounds or paired_runs.count_affordable_rounds(per_round, answer_seconds)
    return BenchEstimate(per_round * rounds, rounds, per_round * rounds * answer_seconds)


def run_benchmark(
    engine: Engine,
    request: BenchRequest,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[BenchEvent]:
    """Measures the costs, then runs every answer; always ends with BenchFinished.

    After `should_stop` returns true, the current answer is finished first; `engine.stop()` ends
    that one too.
    """
    runs: list[BenchRun] = []
    rounds, error = request.rounds or 0, None
    try:
        for event in engine.probe(ProbeCommand()):
            yield CostProbeProgress(getattr(event, "why", ""))
            if should_stop():
                engine.stop()
        estimate = estimate_bench(request, engine.measured)
        rounds = estimate.rounds
        yield estimate
        jobs = paired_runs.schedule_runs(request.workloads, request.temperatures, rounds)
        began = clock()
        for task, arm in jobs:
            if should_stop():
                break
            run = yield from paired_runs.stream_run(engine, task, arm, request, clock)
            if run is None:
                break
            runs.append(run)
            seconds_left = (clock() - began) / len(runs) * (len(jobs) - len(runs))
            yield RunFinished(run, len(runs), len(jobs), seconds_left)
    except LocalspecError as failure:
        error = failure
    interrupted = should_stop() or error is not None
    report = aggregation.build_report(
        runs, request, engine.ready, engine.measured, rounds=rounds, interrupted=interrupted
    )
    yield BenchFinished(report, error)
