"""The numbers of the bench screen: folded from what is told, or taken from the report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median

from localspec.bench.course import Answered, Asked, Begun, Told
from localspec.bench.results import Report
from localspec.bench.trial import Arm, Going, Run


@dataclass(frozen=True, slots=True)
class Line:
    """One workload at one temperature, as it is shown."""

    name: str
    temperature: float
    plain: float | None = None
    """Tokens a second."""
    guessing: float | None = None
    gain: float | None = None
    kept: float | None = None
    """Share of the guesses."""
    current: bool = False
    counted: bool = True


@dataclass(slots=True)
class _Sums:
    speeds: dict[Arm, list[float]] = field(default_factory=lambda: {"plain": [], "speculative": []})
    going: Going | None = None
    drafted: int = 0
    accepted: int = 0

    def add(self, run: Run) -> None:
        if run.tokens_per_second is not None:
            self.speeds[run.arm].append(run.tokens_per_second)
        self.drafted += sum(event.drafted for event in run.rounds)
        self.accepted += sum(event.accepted for event in run.rounds)

    def speed(self, arm: Arm) -> float | None:
        """The median of what is whole; before that, of what is being written."""
        if self.speeds[arm]:
            return median(self.speeds[arm])
        return self.going.tokens_per_second if self.going and self.going.arm == arm else None

    def line(self, temperature: float, name: str, *, current: bool) -> Line:
        plain, guessing = self.speed("plain"), self.speed("speculative")
        whole = all(self.speeds.values())
        return Line(
            name,
            temperature,
            plain,
            guessing,
            guessing / plain if whole and plain and guessing else None,
            self.accepted / self.drafted if self.drafted else None,
            current,
        )


class Standing:
    """How far a bench is, and what it has found by now."""

    def __init__(self, asked: Asked) -> None:
        names = [workload.name for workload in asked.workloads]
        self._sums = {(t, name): _Sums() for t in sorted(asked.temperatures) for name in names}
        self._tokens = asked.way.max_tokens
        self._at: tuple[float, str] | None = None
        self.done = self.of = 0
        """Answers."""
        self.seconds_left: float | None = None

    def take(self, told: Told) -> None:
        if isinstance(told, Begun):
            self.of, self.seconds_left = told.extent.answers, told.extent.seconds
        elif isinstance(told, Going):
            self._at = (told.task.temperature, told.task.workload)
            self._sums[self._at].going = told
        elif isinstance(told, Answered):
            task = told.run.task
            sums = self._sums[task.temperature, task.workload]
            sums.add(told.run)
            sums.going = None
            self.done, self.of, self.seconds_left = told.done, told.of, told.seconds_left

    @property
    def share(self) -> float:
        """Of the answers, with what there is of the one that is being written."""
        going = self._sums[self._at].going if self._at else None
        begun = min(going.tokens / self._tokens, 1.0) if going else 0.0
        return min((self.done + begun) / self.of, 1.0) if self.of else 0.0

    def lines(self) -> Iterator[Line]:
        for (temperature, name), sums in self._sums.items():
            yield sums.line(temperature, name, current=(temperature, name) == self._at)


def reported(report: Report) -> Iterator[Line]:
    """The lines of what was measured to the end."""
    for row in report.rows:
        yield Line(
            row.name,
            row.temperature,
            row.plain_tps,
            row.spec_tps,
            row.speedup.median if row.speedup else None,
            row.acceptance_rate,
            counted=row.counted,
        )
