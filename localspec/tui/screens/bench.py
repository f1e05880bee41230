"""The benchmark on screen: its options, its table while it runs, and its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from localspec.bench import report_text, workloads
from localspec.bench.benchmark import (
    BenchEstimate,
    BenchEvent,
    BenchFinished,
    CostProbeProgress,
    estimate_bench,
    run_benchmark,
)
from localspec.bench.paired_runs import BenchRequest
from localspec.bench.results import BenchReport
from localspec.chat import export
from localspec.errors import LocalspecError, StorageError
from localspec.launch import Engine, ResolvedPair
from localspec.sanitize import sanitize
from localspec.tui.glyphs import Glyphs
from localspec.tui.key_bindings import KeyContext
from localspec.tui.problem_text import problem_text
from localspec.tui.screens.bench_table import LiveBenchResults, rows_from_report, speed_table
from localspec.tui.text.wrapping import wrap_words
from localspec.units import duration, milliseconds

if TYPE_CHECKING:
    from localspec.tui.screens.measurement import MeasurementScreen

_TOKENS = 64
"""Tokens of one answer; the same as in `localspec bench`."""
_TEMPERATURE = 0.8
_INTRO = (
    "Each text is completed plain and with speculation, in turns and with the same seed. The "
    "output is the same; the speed is measured."
)


class BenchMeasurement:
    heading = "Benchmark"
    key_context: KeyContext = "bench"
    stopping_text = "stopping after this answer"

    def __init__(
        self, pair_name: str, choice: ResolvedPair, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.pair_name, self.choice, self._clock = pair_name, choice, clock
        self._workloads = workloads.load()
        self._excluded: set[int] = set()
        """Deselected workloads, by index; one past the last is the second temperature."""
        self._pointed_index = 0
        self.live_results: LiveBenchResults | None = None
        self._preparation = ""
        self._outcome: BenchFinished | None = None
        self._start_time = 0.0
        self._end_text = ""

    @property
    def request(self) -> BenchRequest:
        """The request for the current selection."""
        chosen = tuple(w for n, w in enumerate(self._workloads) if n not in self._excluded)
        temperatures = (0.0,) if len(self._workloads) in self._excluded else (0.0, _TEMPERATURE)
        spec, why = self.choice.spec, self.choice.spec_reason
        return BenchRequest(self.pair_name, chosen, temperatures, _TOKENS, spec, why)

    # --- measuring ------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        return self.live_results is not None

    @property
    def refusal(self) -> str:
        """Why the measurement cannot start; empty if it can."""
        selected = self.request.workloads
        return "" if selected else "No workload is selected. Press space to select one."

    def begin(self) -> None:
        self.live_results, self._outcome = LiveBenchResults(self.request), None
        self._preparation = "measuring passes"
        self._start_time = self._clock()

    def run(self, engine: Engine, should_stop: Callable[[], bool]) -> Iterator[BenchEvent]:
        """Runs on a thread."""
        for event in run_benchmark(engine, self.request, should_stop, self._clock):
            yield event
            if isinstance(event, BenchFinished) and event.error is not None:
                raise event.error

    def add_event(self, event: BenchEvent) -> None:
        if isinstance(event, BenchFinished):
            self._outcome = event
        elif isinstance(event, CostProbeProgress):
            self._preparation = event.why or self._preparation
        elif self.live_results is not None:
            if isinstance(event, BenchEstimate):
                self._preparation = ""
            self.live_results.add_event(event)

    def end(self, error: LocalspecError | None, *, is_stopped: bool) -> None:
        self._end_text = "stopped" if is_stopped else duration(self._clock() - self._start_time)

    @property
    def report(self) -> BenchReport | None:
        """None until a run has ended with at least one result."""
        return self._outcome.report if self._outcome and self._outcome.report.rows else None

    @property
    def report_text(self) -> str:
        return "\n".join(report_text.format_markdown(self.report)) + "\n" if self.report else ""

    # --- showing --------------------------------------------------------------------------

    def result_lines(self, width: int, height: int, glyphs: Glyphs) -> Iterator[Content]:
        if self._outcome is not None:
            yield from _report_lines(self._outcome.report, width, height, glyphs)
        elif self.live_results is not None:
            bar = glyphs.bar(self.live_results.share, width)
            rest = glyphs.memory_free * (width - len(bar))
            yield Content.assemble((bar, "$accent"), (rest, "$muted"))
            yield Content("")
            yield from speed_table(list(self.live_results.rows()), width, height - 2, glyphs)

    def progress_text(self, width: int, glyphs: Glyphs) -> str:
        results = self.live_results
        if results is None or (self._preparation and self._outcome is None):
            return sanitize(self._preparation, multiline=False)
        answers = f"{results.done} of {results.total}{' answers' * (width >= 80)}"
        left = f"about {duration(results.seconds_left or 0.0)} left"
        return f"{answers} {glyphs.dot} {left if self._outcome is None else self._end_text}"

    def option_lines(self, width: int, height: int, glyphs: Glyphs) -> Iterator[Content]:
        is_high = height > 14
        if is_high:
            for text in (_files_text(self.choice), *wrap_words(_INTRO, min(width, 90))):
                yield Content.styled(sanitize(text, multiline=False), "$muted")
            yield Content("")
        names = [(w.name, w.title) for w in self._workloads]
        names.append((f"at {_TEMPERATURE:g}", "this temperature as well as 0"))
        for n, (name, description) in enumerate(names):
            if n == len(self._workloads) and is_high:
                yield Content("")
            pointer = glyphs.pointer if n == self._pointed_index else " "
            sign, style = (glyphs.dot, "$muted") if n in self._excluded else (glyphs.check, "")
            yield Content.assemble(
                (f"{pointer} ", "$accent"),
                (f"{sign:<3}", style or "$success"),
                (f"{name:<12}", style),
                (description, "$muted"),
            )
        yield Content("")

    def extent_text(self, engine: Engine | None) -> str:
        """The number of answers, and an estimate of the time."""
        if self.refusal:
            return self.refusal
        estimate = estimate_bench(self.request, engine.measured if engine is not None else None)
        rounds = f" in {estimate.rounds} rounds" if estimate.rounds > 1 else ""
        time = duration(max(estimate.seconds, 1.0))
        return f"{estimate.answers} answers of {_TOKENS} tokens{rounds}: about {time}."

    def key_hints(self) -> dict[str, str]:
        return {
            "bench.toggle": "" if self.has_begun else "on or off",
            "bench.save": "save" if self.report else "",
        }

    # --- keys -----------------------------------------------------------------------------

    def move_pointer(self, by: int) -> None:
        self._pointed_index = (self._pointed_index + by) % (len(self._workloads) + 1)

    def press(self, binding_id: str, screen: MeasurementScreen) -> None:
        if binding_id == "bench.save":
            self._save(screen)
        elif not self.has_begun:
            self._excluded ^= {self._pointed_index}
            screen.draw()

    def _save(self, screen: MeasurementScreen) -> None:
        """Saves the report in the working directory under an unused name."""
        if not self.report_text:
            screen.notify("Nothing to save yet.", markup=False)
            return
        try:
            path = _unused_path(self.pair_name)
            export.save_file(path, self.report_text, overwrite=False)
        except StorageError as error:
            screen.notify(problem_text(error), severity="warning", markup=False)
        else:
            saved = sanitize(str(path.absolute()), multiline=False)
            screen.notify(f"Saved to {saved}", markup=False)


def _unused_path(pair: str) -> Path:
    name = "".join(letter if letter.isalnum() or letter in "-.+" else "-" for letter in pair)[:60]
    names = (f"localspec-bench-{name}{n}.md" for n in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in map(Path, names) if not path.exists())


def _files_text(choice: ResolvedPair) -> str:
    draft = choice.draft
    if draft is None:
        return f"{choice.target.name}, prompt lookup, no draft model"
    if draft == choice.target:
        return f"{choice.target.name} with its own MTP layer"
    return f"{choice.target.name} with {draft.name}"


def _report_lines(
    report: BenchReport, width: int, height: int, glyphs: Glyphs
) -> Iterator[Content]:
    """Verdict, speed table, cost table, and the sentences that the verdict does not contain."""
    verdict = list(report_text.format_verdict(report))
    gains = report.speedup is not None and report.speedup >= 1
    lines = wrap_words(verdict[0], width)
    yield from (Content.styled(line, "bold $success" if gains else "bold") for line in lines)
    rest = [line for sentence in verdict[1:] for line in wrap_words(sentence, width)]
    yield from _muted_lines(rest)
    if report.rows:
        yield Content("")
        height -= 12 + len(lines) + len(rest)
        yield from speed_table(list(rows_from_report(report)), width, height, glyphs)
        yield Content("")
    yield from cost_lines(report, width)
    yield Content("")
    for sentence in report_text.format_remarks(report):
        yield from _muted_lines(wrap_words(sentence, width))


def _muted_lines(lines: Iterable[str]) -> Iterator[Content]:
    return (Content.styled(line, "$muted") for line in lines)


# --- cost table: explained in plain words, with the field's terms at the right -----------------


def cost_lines(report: BenchReport, width: int) -> Iterator[Content]:
    """Empty if no pass times were measured."""
    if report.t1_ms is None:
        return
    yield Content.styled("Costs on this computer", "$muted bold")
    for name, value, meaning, term in _cost_rows(report):
        start = f"  {name:<18}{value:>13}   "
        line = f"{start}{meaning:<34}"
        shown = term if len(line) + 24 <= width else term.partition(",")[0]
        is_room = len(line) + len(shown) <= width
        yield Content.assemble(line if is_room else start, (shown, "$muted"))


def _cost_rows(report: BenchReport) -> Iterator[tuple[str, str, str, str]]:
    """Name, value, meaning, and the field's term."""
    yield "one pass", milliseconds(report.t1_ms), "the target model, for one token", "t1"
    if report.c is not None:
        meaning = "the draft model, for one token"
        yield "draft token", f"{report.c:.2f} passes", meaning, "c, draft cost ratio"
    for width in ("2", "4", "8", "16"):
        if width in report.verify_curve:
            yield (
                f"verify {int(width) - 1} drafted",
                f"{report.verify_curve[width]:.2f} passes",
                f"the target, for {width} tokens at once",
                f"v({width}), verify curve",
            )
    if report.host_ms is not None:
        yield "other work", milliseconds(report.host_ms), "around a verification pass", "host"
