"""The measurement of `bench`.

It times the model's passes, then has every answer written plain and speculative.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.bench import results
from localspec.bench.measurement import (
    AnswerCancelled,
    MeasurementProgress,
    record_answer,
)
from localspec.bench.workloads import BenchRequest, BenchRun
from localspec.launch import Engine
from localspec.machine.cpu_and_ram import OtherCpuLoad
from localspec.protocol.events import SpeculationPlan
from localspec.protocol.wire import MeasuredCosts, ProbeCommand
from localspec.units import count, duration

_DEFAULT_PASS_SECONDS = 0.05  # Assumed cost of a pass before any measurement.
_TIME_BUDGET_SECONDS = 40.0
"""For all rounds, counting plain passes only; reading the prompts can double it."""
_MAX_ROUNDS = 3


class BenchEstimate(Struct, frozen=True):
    answers: int
    rounds: int
    seconds: float  # A lower bound: plain passes only, without reading the prompts.


def estimate_bench(
    request: BenchRequest, measured: MeasuredCosts | None
) -> BenchEstimate:
    """As many rounds as fit the time budget, but 1 to 3, unless the request sets them.

    A round of 16 answers of 64 tokens, with passes of 20 ms, takes 20 s; so two rounds
    fit 40 s.
    """
    pass_seconds = _DEFAULT_PASS_SECONDS
    if measured is not None:
        pass_seconds = measured.t1_ms / 1e3
    answers_per_round = len(request.schedule_runs(n_rounds=1))
    round_seconds = answers_per_round * pass_seconds * request.max_tokens
    rounds = request.rounds
    if rounds is None:
        rounds = _MAX_ROUNDS
        if rounds * round_seconds > _TIME_BUDGET_SECONDS:
            rounds = max(1, int(_TIME_BUDGET_SECONDS / round_seconds))
    return BenchEstimate(
        answers=answers_per_round * rounds,
        rounds=rounds,
        seconds=rounds * round_seconds,
    )


def _format_seconds(seconds: float) -> str:
    return duration(max(seconds, 1.0))


class Benchmark:
    heading = "Benchmark"
    begins_with_verdict = False

    def __init__(
        self,
        request: BenchRequest,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.request = request
        self.runs: list[BenchRun] = []
        self.has_ended = False
        self._clock = clock
        self._n_rounds = request.rounds or 0
        self._engine: Engine | None = None
        self._is_complete = False
        self._other_load: float | None = None

    def format_estimate(self, measured: MeasuredCosts | None) -> str:
        estimate = estimate_bench(self.request, measured)
        answers = f"{estimate.answers} answers of {self.request.max_tokens} tokens"
        if estimate.rounds > 1:
            answers += f" in {estimate.rounds} rounds"
        return f"{answers}: about {_format_seconds(estimate.seconds)}."

    def run(
        self, engine: Engine, should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[MeasurementProgress]:
        """Ends early, within an answer, once `should_stop` returns true.

        Raises LocalspecError.
        """
        self._engine = engine
        self.runs = []
        self.has_ended = False
        self._is_complete = False
        cpu_load = OtherCpuLoad()
        cpu_load.start()
        try:
            yield from self._measure(engine, should_stop)
            self._is_complete = True
        except AnswerCancelled:
            pass
        finally:
            self._other_load = cpu_load.read()
            self.has_ended = True

    def _measure(
        self, engine: Engine, should_stop: Callable[[], bool]
    ) -> Iterator[MeasurementProgress]:
        for event in engine.probe(ProbeCommand()):
            text = "measuring passes"
            if isinstance(event, SpeculationPlan) and event.why:
                text = event.why
            yield MeasurementProgress(text)
            if should_stop():
                engine.stop()
        estimate = estimate_bench(self.request, engine.measured)
        n_answers = estimate.answers
        self._n_rounds = estimate.rounds
        left = f"about {_format_seconds(estimate.seconds)} left"
        yield MeasurementProgress(f"{n_answers} answers, {left}", is_step=True)
        began = self._clock()
        for task, arm in self.request.schedule_runs(estimate.rounds):
            if should_stop():
                raise AnswerCancelled
            command = self.request.build_command(task, arm)
            answer = record_answer(engine, command, should_stop, self._clock)
            self.runs.append(BenchRun(task, arm, answer))
            n_done = len(self.runs)
            seconds_per_answer = (self._clock() - began) / n_done
            seconds_left = seconds_per_answer * (n_answers - n_done)
            left = f"about {duration(seconds_left)} left"
            progress = f"{n_done} of {n_answers} answers, {left}   {task.workload}"
            yield MeasurementProgress(progress)

    @property
    def has_begun(self) -> bool:
        return self._engine is not None

    @property
    def has_results(self) -> bool:
        return self.has_begun and bool(self.report.rows)

    @property
    def report(self) -> results.BenchReport:
        """The report of the answers so far."""
        engine = self._engine
        assert engine is not None, "not begun"
        report = results.build_report(
            tuple(self.runs),
            self.request,
            engine.ready,
            engine.measured,
            rounds=self._n_rounds,
            interrupted=self.has_ended and not self._is_complete,
        )
        return replace(report, other_load=self._other_load)

    @property
    def summary(self) -> str:
        return count(len(self.runs), "answer")

    def to_json(self) -> dict[str, Any]:
        return results.report_to_json(self.report)
