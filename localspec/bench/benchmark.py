"""Runs a benchmark and streams its progress, from the cost measurement to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from localspec import launch
from localspec.bench import aggregation, paired_runs, results
from localspec.bench.paired_runs import BenchRun, BenchSettings, RunProgress
from localspec.bench.results import BenchReport
from localspec.bench.workloads import Workload
from localspec.errors import LocalspecError
from localspec.protocol.events import Event
from localspec.protocol.wire import MeasuredCosts, ProbeCommand

_DEFAULT_PASS_SECONDS = 0.05
"""Assumed cost of a pass before any measurement."""


class BenchEngine(launch.Engine, Protocol):
    def probe(self, probe: ProbeCommand) -> Iterator[Event]: ...


@dataclass(frozen=True, slots=True)
class BenchRequest:
    name: str
    workloads: tuple[Workload, ...]
    temperatures: tuple[float, ...]
    settings: BenchSettings
    rounds: int | None = None
    """None: as many as the time budget allows."""


@dataclass(frozen=True, slots=True)
class BenchEstimate:
    answers: int
    rounds: int
    seconds: float
    """A lower bound: plain passes only, without reading the prompts."""


@dataclass(frozen=True, slots=True)
class CostProbeProgress:
    """The costs of passes are being measured; `why` may be empty."""

    why: str


@dataclass(frozen=True, slots=True)
class BenchStarted:
    estimate: BenchEstimate


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


BenchEvent = CostProbeProgress | BenchStarted | RunProgress | RunFinished | BenchFinished


def estimate_bench(request: BenchRequest, measured: MeasuredCosts | None) -> BenchEstimate:
    pass_seconds = measured.t1_ms / 1e3 if measured else _DEFAULT_PASS_SECONDS
    answer_seconds = pass_seconds * request.settings.max_tokens
    per_round = len(paired_runs.schedule_runs(request.workloads, request.temperatures, 1))
    rounds = request.rounds or paired_runs.count_affordable_rounds(per_round, answer_seconds)
    return BenchEstimate(per_round * rounds, rounds, per_round * rounds * answer_seconds)


def run_benchmark(
    engine: BenchEngine,
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
        yield BenchStarted(estimate)
        for progress in _stream_runs_with_progress(engine, request, estimate, should_stop, clock):
            if isinstance(progress, RunFinished):
                runs.append(progress.run)
            yield progress
    except LocalspecError as failure:
        error = failure
    context = _build_context(engine, request, rounds)
    interrupted = should_stop() or error is not None
    yield BenchFinished(aggregation.build_report(runs, context, interrupted=interrupted), error)


def _stream_runs_with_progress(
    engine: BenchEngine,
    request: BenchRequest,
    estimate: BenchEstimate,
    should_stop: Callable[[], bool],
    clock: Callable[[], float],
) -> Iterator[RunProgress | RunFinished]:
    jobs = paired_runs.schedule_runs(request.workloads, request.temperatures, estimate.rounds)
    began, done = clock(), 0
    if should_stop():
        return
    for event in paired_runs.stream_runs(engine, jobs, request.settings, clock):
        if isinstance(event, RunProgress):
            yield event
            continue
        done += 1
        seconds_left = (clock() - began) / done * (len(jobs) - done)
        yield RunFinished(event, done, len(jobs), seconds_left)
        if should_stop():
            return


def _build_context(
    engine: BenchEngine, request: BenchRequest, rounds: int
) -> aggregation.BenchContext:
    ready = engine.ready
    return aggregation.BenchContext(
        pair=request.name,
        model=ready.model,
        draft=ready.draft,
        settings=request.settings,
        machine=results.describe_machine(ready),
        measured=engine.measured,
        rounds=rounds,
    )
