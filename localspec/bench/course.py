"""One bench from its first measurement to its report, told while it goes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from localspec import launch
from localspec.bench import here, report, trial
from localspec.bench.results import Report
from localspec.bench.trial import Going, Run, Way
from localspec.bench.workloads import Workload
from localspec.errors import LocalspecError
from localspec.protocol.events import Event
from localspec.protocol.wire import Measured, Probe

_USUAL_PASS = 0.05
"""Seconds, where nothing was measured."""


class Engine(launch.Engine, Protocol):
    """A loaded pair whose passes can be measured."""

    def probe(self, probe: Probe) -> Iterator[Event]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be measured, of a pair that goes by `name`."""

    name: str
    workloads: tuple[Workload, ...]
    temperatures: tuple[float, ...]
    way: Way
    rounds: int | None = None
    """None: what time allows."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much that is."""

    answers: int
    rounds: int
    seconds: float
    """All of them, by the cost of plain passes: prompts and a busy machine take longer."""


@dataclass(frozen=True, slots=True)
class Measuring:
    """Passes are measured; `why` may be empty."""

    why: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The costs are known, and so is how much is asked."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class Answered:
    """One more answer is whole."""

    run: Run
    done: int
    of: int
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Over:
    """The last: what there is; `error`, if any, is why it is not all."""

    report: Report
    error: LocalspecError | None = None


Told = Measuring | Begun | Going | Answered | Over


def extent(asked: Asked, measured: Measured | None) -> Extent:
    """How much is asked of a pair of which so much is known."""
    pass_s = measured.t1_ms / 1e3 if measured else _USUAL_PASS
    each = pass_s * asked.way.max_tokens
    once = len(trial.schedule(asked.workloads, asked.temperatures, 1))
    rounds = asked.rounds or trial.affordable(once, each)
    return Extent(once * rounds, rounds, once * rounds * each)


def course(
    engine: Engine,
    asked: Asked,
    stopped: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Told]:
    """Costs first, then every answer; the last thing told is `Over`, whatever happens.

    Ends early once `stopped`, after the answer that is being written then; `engine.stop()` ends
    that one, too.
    """
    runs: list[Run] = []
    rounds, error = asked.rounds or 0, None
    try:
        for event in engine.probe(Probe()):
            yield Measuring(getattr(event, "why", ""))
            if stopped():
                engine.stop()
        wanted = extent(asked, engine.measured)
        rounds = wanted.rounds
        yield Begun(wanted)
        for told in _answers(engine, asked, wanted, stopped, clock):
            if isinstance(told, Answered):
                runs.append(told.run)
            yield told
    except LocalspecError as failure:
        error = failure
    about = _about(engine, asked, rounds)
    yield Over(report.make(runs, about, interrupted=stopped() or error is not None), error)


def _answers(
    engine: Engine,
    asked: Asked,
    wanted: Extent,
    stopped: Callable[[], bool],
    clock: Callable[[], float],
) -> Iterator[Going | Answered]:
    jobs = trial.schedule(asked.workloads, asked.temperatures, wanted.rounds)
    began, done = clock(), 0
    if stopped():
        return
    for told in trial.follow(engine, jobs, asked.way, clock):
        if isinstance(told, Going):
            yield told
            continue
        done += 1
        left = (clock() - began) / done * (len(jobs) - done)
        yield Answered(told, done, len(jobs), left)
        if stopped():
            return


def _about(engine: Engine, asked: Asked, rounds: int) -> report.About:
    ready = engine.ready
    return report.About(
        pair=asked.name,
        model=ready.model,
        draft=ready.draft,
        way=asked.way,
        machine=here.describe(ready),
        measured=engine.measured,
        rounds=rounds,
    )
