"""The measurement of `bench`: the costs of passes, then every answer plain and
speculative.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from msgspec import Struct

from localspec.bench import report_text, results
from localspec.bench.measurement import (
    AnswerCancelled,
    MeasurementProgress,
    record_answer,
)
from localspec.bench.workloads import BenchRequest, BenchRun
from localspec.launch import Engine
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
    """As many rounds as fit the time budget, unless the request sets them."""
    pass_seconds = measured.t1_ms / 1e3 if measured else _DEFAULT_PASS_SECONDS
    per_round = len(request.schedule_runs(1))
    seconds = per_round * pass_seconds * request.max_tokens
    affordable = int(_TIME_BUDGET_SECONDS / seconds) if seconds else _MAX_ROUNDS
    rounds = request.rounds or min(max(affordable, 1), _MAX_ROUNDS)
    return BenchEstimate(per_round * rounds, rounds, rounds * seconds)


class Benchmark:
    heading = "Benchmark"
    begins_with_verdict = False

    def __init__(
        self,
        request: BenchRequest,
        clock: Callable[[], float] = time.perf_counter,
        *,
        format_report: Callable[[results.BenchReport], Iterable[str]] | None = None,
    ) -> None:
        """`format_report`: default: the table, live."""
        self.request, self._clock, self._format = request, clock, format_report
        self.runs: list[BenchRun] = []
        self._n_rounds = request.rounds or 0
        self._engine: Engine | None = None
        self._has_ended = self._is_complete = False

    def format_estimate(self, measured: MeasuredCosts | None) -> str:
        estimate = estimate_bench(self.request, measured)
        rounds = f" in {estimate.rounds} rounds" if estimate.rounds > 1 else ""
        answers = f"{estimate.answers} answers of {self.request.max_tokens} tokens"
        return f"{answers}{rounds}: about {duration(max(estimate.seconds, 1.0))}."

    def run(
        self, engine: Engine, should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[MeasurementProgress]:
        """Ends early, within an answer, once `should_stop` returns true.

        Raises LocalspecError.
        """
        self._engine, self.runs = engine, []
        self._has_ended = self._is_complete = False
        try:
            yield from self._measure(engine, should_stop)
            self._is_complete = True
        except AnswerCancelled:
            pass
        finally:
            self._has_ended = True

    def _measure(
        self, engine: Engine, should_stop: Callable[[], bool]
    ) -> Iterator[MeasurementProgress]:
        for event in engine.probe(ProbeCommand()):
            yield MeasurementProgress(getattr(event, "why", "") or "measuring passes")
            if should_stop():
                engine.stop()
        estimate = estimate_bench(self.request, engine.measured)
        self._n_rounds = estimate.rounds
        left = f"about {duration(max(estimate.seconds, 1.0))} left"
        yield MeasurementProgress(f"{estimate.answers} answers, {left}", is_step=True)
        began = self._clock()
        for task, arm in self.request.schedule_runs(estimate.rounds):
            if should_stop():
                raise AnswerCancelled
            command = self.request.build_command(task, arm)
            answer = record_answer(engine, command, should_stop, self._clock)
            self.runs.append(BenchRun(task, arm, answer))
            done, n = len(self.runs), estimate.answers
            seconds_left = (self._clock() - began) / done * (n - done)
            left = f"about {duration(seconds_left)} left"
            yield MeasurementProgress(
                f"{done} of {n} answers, {left}   {task.workload}"
            )

    @property
    def has_begun(self) -> bool:
        return self._engine is not None

    @property
    def has_results(self) -> bool:
        return self.has_begun and bool(self.report.rows)

    @property
    def report(self) -> results.BenchReport:
        """Of the answers so far."""
        engine = self._engine
        assert engine is not None, "not begun"
        return results.build_report(
            tuple(self.runs),
            self.request,
            engine.ready,
            engine.measured,
            rounds=self._n_rounds,
            interrupted=self._has_ended and not self._is_complete,
        )

    @property
    def summary(self) -> str:
        return count(len(self.runs), "answer")

    def format_report(self) -> list[str]:
        if self._format is not None:
            return list(self._format(self.report))
        return list(report_text.format_table(self.report, is_final=self._has_ended))

    def format_shared_report(self) -> list[str]:
        return list(report_text.format_markdown(self.report))

    def to_json(self) -> dict[str, Any]:
        return results.report_to_json(self.report)
