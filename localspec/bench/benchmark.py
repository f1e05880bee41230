"""One bench from its first measurement to its report, told while it goes."""

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
"""Seconds, where nothing was measured."""


class BenchEngine(launch.Engine, Protocol):
    """A loaded pair whose passes can be measured."""

    def probe(self, probe: ProbeCommand) -> Iterator[Event]: ...


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What is to be measured, of a pair that goes by `name`."""

    name: str
    workloads: tuple[Workload, ...]
    temperatures: tuple[float, ...]
    settings: BenchSettings
    rounds: int | None = None
    """None: what time allows."""


@dataclass(frozen=True, slots=True)
class BenchEstimate:
    """How much that is."""

    answers: int
    rounds: int
    seconds: float
    """All of them, by the cost of plain passes: prompts and a busy machine take longer."""


@dataclass(frozen=True, slots=True)
class CostProbeProgress:
    """Passes are measured; `why` may be empty."""

    why: str


@dataclass(frozen=True, slots=True)
class BenchStarted:
    """The costs are known, and so is how much is asked."""

    estimate: BenchEstimate


@dataclass(frozen=True, slots=True)
class RunFinished:
    """One more answer is whole."""

    run: BenchRun
    done: int
    total: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class BenchFinished:
    """The last: what there is; `error`, if any, is why it is not all."""

    report: BenchReport
    error: LocalspecError | None = None


BenchEvent = CostProbeProgress | BenchStarted | RunProgress | RunFinished | BenchFinished


def estimate_bench(request: BenchRequest, measured: MeasuredCosts | None) -> BenchEstimate:
    """How much is asked of a pair of which so much is known."""
    pass_s = measured.t1_ms / 1e3 if measured else _DEFAULT_PASS_SECONDS
    each = pass_s * request.settings.max_tokens
    once = len(paired_runs.schedule_runs(request.workloads, request.temperatures, 1))
    rounds = request.rounds or paired_runs.count_affordable_rounds(once, each)
    return BenchEstimate(once * rounds, rounds, once * rounds * each)


def run_benchmark(
    engine: BenchEngine,
    request: BenchRequest,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[BenchEvent]:
    """Costs first, then every answer; the last thing told is `Over`, whatever happens.

    Ends early once `stopped`, after the answer that is being written then; `engine.stop()` ends
    that one, too.
    """
    runs: list[BenchRun] = []
    rounds, error = request.rounds or 0, None
    try:
        for event in engine.probe(ProbeCommand()):
            yield CostProbeProgress(getattr(event, "why", ""))
            if should_stop():
                engine.stop()
        wanted = estimate_bench(request, engine.measured)
        rounds = wanted.rounds
        yield BenchStarted(wanted)
        for told in _stream_runs_with_progress(engine, request, wanted, should_stop, clock):
            if isinstance(told, RunFinished):
                runs.append(told.run)
            yield told
    except LocalspecError as failure:
        error = failure
    about = _build_context(engine, request, rounds)
    yield BenchFinished(
        aggregation.build_report(runs, about, interrupted=should_stop() or error is not None), error
    )


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
    for told in paired_runs.stream_runs(engine, jobs, request.settings, clock):
        if isinstance(told, RunProgress):
            yield told
            continue
        done += 1
        left = (clock() - began) / done * (len(jobs) - done)
        yield RunFinished(told, done, len(jobs), left)
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
