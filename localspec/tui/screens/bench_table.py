"""The bench screen's speed table, filled from live events or from a finished report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import groupby
from statistics import median

from textual.content import Content

from localspec.bench.benchmark import BenchEstimate, BenchEvent, RunFinished
from localspec.bench.paired_runs import Arm, BenchRequest, BenchRun, RunProgress
from localspec.bench.results import BenchReport
from localspec.lazy_dataclass import dataclass
from localspec.tui.glyphs import Glyphs
from localspec.units import percent, token_rate


@dataclass(frozen=True, slots=True)
class BenchTableRow:
    """One workload at one temperature."""

    name: str
    temperature: float
    plain: float | None = None
    """Tokens per second."""
    speculative: float | None = None
    speedup: float | None = None
    acceptance_rate: float | None = None
    is_current: bool = False
    is_counted: bool = True


@dataclass(slots=True)
class _WorkloadSamples:
    speeds: dict[Arm, list[float]] = field(default_factory=lambda: {"plain": [], "speculative": []})
    in_progress: RunProgress | None = None
    drafted: int = 0
    accepted: int = 0

    def add_run(self, run: BenchRun) -> None:
        if run.tokens_per_second is not None:
            self.speeds[run.arm].append(run.tokens_per_second)
        self.drafted += sum(event.drafted for event in run.rounds)
        self.accepted += sum(event.accepted for event in run.rounds)

    def median_speed(self, arm: Arm) -> float | None:
        """The median of finished runs; before the first ends, the speed of the current one."""
        if self.speeds[arm]:
            return median(self.speeds[arm])
        return (
            self.in_progress.tokens_per_second
            if self.in_progress and self.in_progress.arm == arm
            else None
        )

    def to_row(self, temperature: float, name: str, *, is_current: bool) -> BenchTableRow:
        plain, speculative = self.median_speed("plain"), self.median_speed("speculative")
        has_both = all(self.speeds.values())
        return BenchTableRow(
            name,
            temperature,
            plain,
            speculative,
            speculative / plain if has_both and plain and speculative else None,
            self.accepted / self.drafted if self.drafted else None,
            is_current,
        )


class LiveBenchResults:
    """Progress and results so far of a running bench."""

    def __init__(self, request: BenchRequest) -> None:
        names = [workload.name for workload in request.workloads]
        self._samples = {
            (t, name): _WorkloadSamples() for t in sorted(request.temperatures) for name in names
        }
        self._max_tokens = request.max_tokens
        self._current: tuple[float, str] | None = None
        self.done = self.total = 0
        """Number of answers."""
        self.seconds_left: float | None = None

    def add_event(self, event: BenchEvent) -> None:
        if isinstance(event, BenchEstimate):
            self.total, self.seconds_left = event.answers, event.seconds
        elif isinstance(event, RunProgress):
            self._current = (event.task.temperature, event.task.workload)
            self._samples[self._current].in_progress = event
        elif isinstance(event, RunFinished):
            task = event.run.task
            samples = self._samples[task.temperature, task.workload]
            samples.add_run(event.run)
            samples.in_progress = None
            self.done, self.total, self.seconds_left = event.done, event.total, event.seconds_left

    @property
    def share(self) -> float:
        """Of all answers, including the finished part of the current one."""
        running = self._samples[self._current].in_progress if self._current else None
        running_share = min(running.tokens / self._max_tokens, 1.0) if running else 0.0
        return min((self.done + running_share) / self.total, 1.0) if self.total else 0.0

    def rows(self) -> Iterator[BenchTableRow]:
        for (temperature, name), samples in self._samples.items():
            yield samples.to_row(temperature, name, is_current=(temperature, name) == self._current)


def rows_from_report(report: BenchReport) -> Iterator[BenchTableRow]:
    for row in report.rows:
        yield BenchTableRow(
            row.name,
            row.temperature,
            row.plain_tps,
            row.spec_tps,
            row.speedup.median if row.speedup else None,
            row.acceptance_rate,
            is_counted=row.counted,
        )


# --- drawing ------------------------------------------------------------------------------

_NAME_WIDTH, _SPEED_WIDTH, _SPEEDUP_WIDTH, _ACCEPTANCE_WIDTH = 12, 11, 6, 10
_ARM_WIDTH = 13
_MIN_BAR_WIDTH = 10
_FASTER_FROM, _SLOWER_BELOW = 1.03, 0.97


def speed_table(
    rows: Sequence[BenchTableRow], width: int, height: int, glyphs: Glyphs
) -> Iterator[Content]:
    """All workloads, grouped by temperature; two lines each if there is room."""
    groups = [(t, list(group)) for t, group in groupby(rows, lambda row: row.temperature)]
    two_lines = 2 * len(rows) + 2 * len(groups) <= height and width >= 74
    max_speed = max((v for row in rows for v in (row.plain, row.speculative) if v), default=1.0)
    spaced = two_lines and 3 * len(rows) + 2 * len(groups) <= height
    for number, (temperature, group) in enumerate(groups):
        if number:
            yield Content("")
        yield _heading_line(temperature, width, two_lines=two_lines)
        for row in group:
            if two_lines:
                yield from _two_line_row(row, max_speed, width, glyphs)
                yield from [Content("")] * (spaced and row is not group[-1])
            else:
                yield _one_line_row(row, max_speed, width, glyphs)


def _heading_line(temperature: float, width: int, *, two_lines: bool) -> Content:
    line = f"  temperature {temperature:g}"
    if not two_lines:
        shows_plain, bar_width = _column_layout(width)
        speed_end = 2 + _NAME_WIDTH + _SPEED_WIDTH
        if shows_plain:
            titles = [("plain", speed_end), ("speculative", speed_end + _SPEED_WIDTH + 2)]
        else:
            titles = [("spec.", speed_end)]  # the temperature needs the room
        speedup_end = titles[-1][1] + 2 + bar_width + 2 + _SPEEDUP_WIDTH
        titles += [("speed-up", speedup_end), ("accepted", speedup_end + _ACCEPTANCE_WIDTH)]
        for title, end in titles:
            line += title.rjust(end - len(line))
    return Content.styled(line, "$muted")


def _column_layout(width: int) -> tuple[bool, int]:
    """Whether the plain speed has a column, and the width of the bar."""
    remaining = (
        width - 2 - _NAME_WIDTH - (_SPEED_WIDTH + 2) - (2 + _SPEEDUP_WIDTH + _ACCEPTANCE_WIDTH)
    )
    beside_plain = remaining - (_SPEED_WIDTH + 2) - 2
    return (
        (True, beside_plain) if beside_plain >= _MIN_BAR_WIDTH else (False, max(remaining - 2, 0))
    )


def _one_line_row(row: BenchTableRow, max_speed: float, width: int, glyphs: Glyphs) -> Content:
    """One bar for the speed with speculation; a tick in it marks the plain speed."""
    shows_plain, bar_width = _column_layout(width)
    plain = f"{_speed_cell(row.plain)}  " if shows_plain else ""
    return Content.assemble(
        _name_cell(row, glyphs),
        (plain, "$muted"),
        f"{_speed_cell(row.speculative)}  ",
        *_bar_with_tick(row, max_speed, bar_width, glyphs),
        "  ",
        _speedup_cell(row),
        (f"{_acceptance_cell(row):>{_ACCEPTANCE_WIDTH}}", "$muted"),
    )


def _bar_with_tick(
    row: BenchTableRow, max_speed: float, width: int, glyphs: Glyphs
) -> Iterator[tuple[str, str]]:
    bar = glyphs.thin_bar((row.speculative or 0.0) / max_speed, width).ljust(width)
    if not row.plain or not width:
        yield bar, "$accent"
        return
    tick = min(round(row.plain / max_speed * width), width - 1)
    yield bar[:tick], "$accent"
    yield glyphs.tick, "$foreground"
    yield bar[tick + 1 :], "$accent"


def _two_line_row(
    row: BenchTableRow, max_speed: float, width: int, glyphs: Glyphs
) -> Iterator[Content]:
    right = 2 + _SPEEDUP_WIDTH + 2 + len("100 % accepted")
    bar_width = width - 2 - _NAME_WIDTH - _ARM_WIDTH - 2 - _SPEED_WIDTH - right
    acceptance = f"{_acceptance_cell(row):>5} accepted" if row.acceptance_rate is not None else ""
    yield Content.assemble(
        _name_cell(row, glyphs),
        (f"{'plain':<{_ARM_WIDTH}}", "$muted"),
        (glyphs.thin_bar((row.plain or 0.0) / max_speed, bar_width).ljust(bar_width), "$muted"),
        f"  {_speed_cell(row.plain)}",
    )
    yield Content.assemble(
        " " * (2 + _NAME_WIDTH),
        (f"{'speculative':<{_ARM_WIDTH}}", "$muted"),
        (
            glyphs.thin_bar((row.speculative or 0.0) / max_speed, bar_width).ljust(bar_width),
            "$accent",
        ),
        f"  {_speed_cell(row.speculative)}  ",
        _speedup_cell(row),
        (f"  {acceptance}", "$muted"),
    )


def _name_cell(row: BenchTableRow, glyphs: Glyphs) -> Content:
    pointer = glyphs.pointer if row.is_current else " "
    name = row.name + ("" if row.is_counted else " *")
    return Content.assemble((f"{pointer} ", "$accent"), f"{name:<{_NAME_WIDTH}}")


def _speed_cell(rate: float | None) -> str:
    return f"{'' if rate is None else token_rate(rate):>{_SPEED_WIDTH}}"


def _acceptance_cell(row: BenchTableRow) -> str:
    return "" if row.acceptance_rate is None else percent(row.acceptance_rate)


def _speedup_cell(row: BenchTableRow) -> Content:
    if row.speedup is None:
        return Content(" " * _SPEEDUP_WIDTH)
    style = (
        "$success"
        if row.speedup >= _FASTER_FROM
        else "$warning"
        if row.speedup < _SLOWER_BELOW
        else ""
    )
    text = f"{row.speedup:.2f}×" if row.speedup < 100 else f"{row.speedup:.0f}×"
    return Content.styled(f"{text:>{_SPEEDUP_WIDTH}}", f"{style} bold".strip())
