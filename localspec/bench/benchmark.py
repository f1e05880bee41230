"""The measurement of `bench`: the costs of passes, then every answer plain and speculative."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from localspec.bench import aggregation, paired_runs, report_text
from localspec.bench.measurement import AnswerCancelled, MeasurementProgress, record_answer
from localspec.bench.paired_runs import BenchRequest, BenchRun
from localspec.bench.results import BenchReport, report_to_json
from localspec.launch import Engine
from localspec.lazy_dataclass import dataclass
from localspec.protocol.wire import MeasuredCosts, ProbeCommand
from localspec.units import count, duration

_DEFAULT_PASS_SECONDS = 0.05  # Assumed cost of a pass before any measurement.


@dataclass(frozen=True, slots=True)
class BenchEstimate:
    answers: int
    rounds: int
    seconds: float  # A lower bound: plain passes only, without reading the prompts.


def estimate_bench(request: BenchRequest, measured: MeasuredCosts | None) -> BenchEstimate:
    pass_seconds = measured.t1_ms / 1e3 if measured else _DEFAULT_PASS_SECONDS
    answer_seconds = pass_seconds * request.max_tokens
    per_round = len(paired_runs.schedule_runs(request.workloads, request.temperatures, 1))
    rounds = request.rounds or paired_runs.count_affordable_rounds(per_round, answer_seconds)
    return BenchEstimate(per_round * rounds, rounds, per_round * rounds * answer_seconds)


class Benchmark:
    heading = "Benchmark"
    begins_with_verdict = False

    def __init__(
        self,
        request: BenchRequest,
        clock: Callable[[], float] = time.perf_counter,
        *,
        as_markdown: bool = False,
    ) -> None:
        self.request, self._clock, self._as_markdown = request, clock, as_markdown
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
        """Ends early, within an answer, once `should_stop` returns true. Raises LocalspecError."""
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
        request, runs = self.request, self.runs
        for event in engine.probe(ProbeCommand()):
            yield MeasurementProgress(getattr(event, "why", "") or "measuring passes")
            if should_stop():
                engine.stop()
        estimate = estimate_bench(request, engine.measured)
        self._n_rounds = estimate.rounds
        yield MeasurementProgress(
            f"{estimate.answers} answers, {_format_time_left(estimate.seconds)}", is_step=True
        )
        jobs = paired_runs.schedule_runs(request.workloads, request.temperatures, estimate.rounds)
        began = self._clock()
        for task, arm in jobs:
            if should_stop():
                raise AnswerCancelled
            command = request.build_command(task, arm)
            answer = record_answer(engine, command, should_stop, self._clock)
            runs.append(BenchRun(task, arm, answer))
            seconds_left = (self._clock() - began) / len(runs) * (len(jobs) - len(runs))
            progress = f"{len(runs)} of {len(jobs)} answers, {_format_time_left(seconds_left)}"
            yield MeasurementProgress(f"{progress}   {task.workload}")

    @property
    def has_begun(self) -> bool:
        return self._engine is not None

    @property
    def has_results(self) -> bool:
        return self.has_begun and bool(self.report.rows)

    @property
    def report(self) -> BenchReport:
        """Of the answers so far."""
        engine = self._engine
        assert engine is not None, "not begun"
        return aggregation.build_report(
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
        if self._as_markdown:
            return self.format_shared_report()
        return list(report_text.format_table(self.report, is_final=self._has_ended))

    def format_shared_report(self) -> list[str]:
        return list(report_text.format_markdown(self.report))

    def to_json(self) -> dict[str, Any]:
        return report_to_json(self.report)


def _format_time_left(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"
