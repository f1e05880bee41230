"""The numbers of the bench screen: folded from what is told, or taken from the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from statistics import median

from textual.content import Content

from localspec.bench.benchmark import BenchEvent, BenchRequest, BenchStarted, RunFinished
from localspec.bench.paired_runs import Arm, BenchRun, RunProgress
from localspec.bench.results import BenchReport
from localspec.tui.glyphs import Glyphs
from localspec.units import percent, token_rate


@dataclass(frozen=True, slots=True)
class BenchTableRow:
    """One workload at one temperature, as it is shown."""

    name: str
    temperature: float
    plain: float | None = None
    """Tokens a second."""
    speculative: float | None = None
    speedup: float | None = None
    acceptance_rate: float | None = None
    """Share of the guesses."""
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
        """The median of what is whole; before that, of what is being written."""
        if self.speeds[arm]:
            return median(self.speeds[arm])
        return (
            self.in_progress.tokens_per_second
            if self.in_progress and self.in_progress.arm == arm
            else None
        )

    def to_row(self, temperature: float, name: str, *, is_current: bool) -> BenchTableRow:
        plain, guessing = self.median_speed("plain"), self.median_speed("speculative")
        whole = all(self.speeds.values())
        return BenchTableRow(
            name,
            temperature,
            plain,
            guessing,
            guessing / plain if whole and plain and guessing else None,
            self.accepted / self.drafted if self.drafted else None,
            is_current,
        )


class LiveBenchResults:
    """How far a bench is, and what it has found by now."""

    def __init__(self, request: BenchRequest) -> None:
        names = [workload.name for workload in request.workloads]
        self._samples = {
            (t, name): _WorkloadSamples() for t in sorted(request.temperatures) for name in names
        }
        self._max_tokens = request.settings.max_tokens
        self._current: tuple[float, str] | None = None
        self.done = self.total = 0
        """Answers."""
        self.seconds_left: float | None = None

    def add_event(self, event: BenchEvent) -> None:
        if isinstance(event, BenchStarted):
            self.total, self.seconds_left = event.estimate.answers, event.estimate.seconds
        elif isinstance(event, RunProgress):
            self._current = (event.task.temperature, event.task.workload)
            self._samples[self._current].in_progress = event
        elif isinstance(event, RunFinished):
            task = event.run.task
            sums = self._samples[task.temperature, task.workload]
            sums.add_run(event.run)
            sums.in_progress = None
            self.done, self.total, self.seconds_left = event.done, event.total, event.seconds_left

    @property
    def share(self) -> float:
        """Of the answers, with what there is of the one that is being written."""
        going = self._samples[self._current].in_progress if self._current else None
        begun = min(going.tokens / self._max_tokens, 1.0) if going else 0.0
        return min((self.done + begun) / self.total, 1.0) if self.total else 0.0

    def rows(self) -> Iterator[BenchTableRow]:
        for (temperature, name), sums in self._samples.items():
            yield sums.to_row(temperature, name, is_current=(temperature, name) == self._current)


def rows_from_report(report: BenchReport) -> Iterator[BenchTableRow]:
    """The lines of what was measured to the end."""
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


# --- Speeds as bars: plain against guessing, on one line or on two.

_NAME_WIDTH, _SPEED_WIDTH, _SPEEDUP_WIDTH, _ACCEPTANCE_WIDTH = 12, 11, 6, 6
_MIN_BAR_WIDTH = 10
_FASTER_FROM, _SLOWER_BELOW = 1.03, 0.97


def speed_table(
    lines: Sequence[BenchTableRow], width: int, height: int, glyphs: Glyphs
) -> Iterator[Content]:
    """Every workload under its temperature; two lines for each where there is room for them."""
    groups = [(t, list(rows)) for t, rows in groupby(lines, lambda line: line.temperature)]
    roomy = 2 * len(lines) + 2 * len(groups) <= height and width >= 74
    most = max((v for line in lines for v in (line.plain, line.speculative) if v), default=1.0)
    airy = roomy and 3 * len(lines) + 2 * len(groups) <= height
    for number, (temperature, rows) in enumerate(groups):
        if number:
            yield Content("")
        yield _heading_line(temperature, width, roomy=roomy)
        for row in rows:
            if roomy:
                yield from _two_line_row(row, most, width, glyphs)
                yield from [Content("")] * (airy and row is not rows[-1])
            else:
                yield _one_line_row(row, most, width, glyphs)


def _heading_line(temperature: float, width: int, *, roomy: bool) -> Content:
    line = f"  temperature {temperature:g}"
    if not roomy:
        shows_plain, room = _column_layout(width)
        at = 2 + _NAME_WIDTH + _SPEED_WIDTH
        titles = [("plain", at)] if shows_plain else []
        at += (_SPEED_WIDTH + 2) * shows_plain
        gain = at + 2 + room + 2 + _SPEEDUP_WIDTH
        titles += [("guesses", at), ("speed-up", gain), ("kept", gain + _ACCEPTANCE_WIDTH)]
        for title, end in titles:
            line += title.rjust(end - len(line))
    return Content.styled(line, "$muted")


def _column_layout(width: int) -> tuple[bool, int]:
    """Whether the plain speed has a column, and the cells of the bar."""
    rest = width - 2 - _NAME_WIDTH - (_SPEED_WIDTH + 2) - (2 + _SPEEDUP_WIDTH + _ACCEPTANCE_WIDTH)
    wide = rest - (_SPEED_WIDTH + 2) - 2
    return (True, wide) if wide >= _MIN_BAR_WIDTH else (False, max(rest - 2, 0))


def _one_line_row(line: BenchTableRow, max_speed: float, width: int, glyphs: Glyphs) -> Content:
    """One bar, of the speed with guesses; a tick in it stands where plain decoding is."""
    shows_plain, room = _column_layout(width)
    plain = f"{_speed_cell(line.plain)}  " if shows_plain else ""
    return Content.assemble(
        _name_cell(line, glyphs),
        (plain, "$muted"),
        f"{_speed_cell(line.speculative)}  ",
        *_bar_with_tick(line, max_speed, room, glyphs),
        "  ",
        _speedup_cell(line),
        (f"{_acceptance_cell(line):>{_ACCEPTANCE_WIDTH}}", "$muted"),
    )


def _bar_with_tick(
    line: BenchTableRow, max_speed: float, width: int, glyphs: Glyphs
) -> Iterator[tuple[str, str]]:
    bar = glyphs.thin_bar((line.speculative or 0.0) / max_speed, width).ljust(width)
    if not line.plain or not width:
        yield bar, "$accent"
        return
    at = min(round(line.plain / max_speed * width), width - 1)
    yield bar[:at], "$accent"
    yield glyphs.tick, "$foreground"
    yield bar[at + 1 :], "$accent"


def _two_line_row(
    line: BenchTableRow, max_speed: float, width: int, glyphs: Glyphs
) -> Iterator[Content]:
    right = 2 + _SPEEDUP_WIDTH + 2 + len("100 % of guesses kept")
    room = width - 2 - _NAME_WIDTH - 9 - 2 - _SPEED_WIDTH - right
    kept = (
        f"{_acceptance_cell(line):>5} of guesses kept" if line.acceptance_rate is not None else ""
    )
    yield Content.assemble(
        _name_cell(line, glyphs),
        ("plain    ", "$muted"),
        (glyphs.thin_bar((line.plain or 0.0) / max_speed, room).ljust(room), "$muted"),
        f"  {_speed_cell(line.plain)}",
    )
    yield Content.assemble(
        " " * (2 + _NAME_WIDTH),
        ("guesses  ", "$muted"),
        (glyphs.thin_bar((line.speculative or 0.0) / max_speed, room).ljust(room), "$accent"),
        f"  {_speed_cell(line.speculative)}  ",
        _speedup_cell(line),
        (f"  {kept}", "$muted"),
    )


def _name_cell(line: BenchTableRow, glyphs: Glyphs) -> Content:
    pointer = glyphs.pointer if line.is_current else " "
    name = line.name + ("" if line.is_counted else " *")
    return Content.assemble((f"{pointer} ", "$accent"), f"{name:<{_NAME_WIDTH}}")


def _speed_cell(rate: float | None) -> str:
    return f"{'' if rate is None else token_rate(rate):>{_SPEED_WIDTH}}"


def _acceptance_cell(line: BenchTableRow) -> str:
    return "" if line.acceptance_rate is None else percent(line.acceptance_rate)


def _speedup_cell(line: BenchTableRow) -> Content:
    if line.speedup is None:
        return Content(" " * _SPEEDUP_WIDTH)
    style = (
        "$success"
        if line.speedup >= _FASTER_FROM
        else "$warning"
        if line.speedup < _SLOWER_BELOW
        else ""
    )
    said = f"{line.speedup:.2f}×" if line.speedup < 100 else f"{line.speedup:.0f}×"
    return Content.styled(f"{said:>{_SPEEDUP_WIDTH}}", f"{style} bold".strip())
