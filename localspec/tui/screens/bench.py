"""The bench screen: measures what speculation gains for a pair on this computer, per workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from textual.content import Content

from localspec.bench import report_text, workloads
from localspec.bench.benchmark import (
    BenchEvent,
    BenchFinished,
    BenchRequest,
    BenchStarted,
    CostProbeProgress,
    estimate_bench,
    run_benchmark,
)
from localspec.bench.paired_runs import BenchSettings
from localspec.bench.results import BenchReport
from localspec.chat import export
from localspec.errors import StorageError
from localspec.launch import ResolvedPair
from localspec.sanitize import sanitize
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner, InspectableEngine
from localspec.tui.key_bindings import bindings_for
from localspec.tui.screens.bench_table import LiveBenchResults, rows_from_report, speed_table
from localspec.tui.screens.measurement import MeasurementScreen, wrap_text
from localspec.units import duration, milliseconds

_TOKENS = 64
"""Tokens of one answer; the same as in `localspec bench`."""
_TEMPERATURE = 0.8
_INTRO = (
    "Each text is completed plain and with speculation, in turns and with the same seed. The "
    "output is the same; the speed is measured."
)


class BenchScreen(MeasurementScreen[BenchEvent]):
    BINDINGS = bindings_for("measuring", "bench")
    HEADING = "Benchmark"
    KEY_CONTEXTS = ("bench", "measuring")

    def __init__(
        self,
        pair_name: str,
        choice: ResolvedPair,
        runner: EngineRunner,
        options: AppOptions,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        super().__init__(pair_name, choice, runner, options)
        self._clock = clock
        self._workloads = workloads.load()
        self._excluded: set[int] = set()
        """Deselected workloads, by index; one past the last is the second temperature."""
        self._pointed_index = 0
        self._live_results: LiveBenchResults | None = None
        self._preparation = ""
        self._outcome: BenchFinished | None = None
        self._start_time = self._elapsed = 0.0

    @property
    def bench_request(self) -> BenchRequest:
        """The request for the current selection."""
        chosen = tuple(w for n, w in enumerate(self._workloads) if n not in self._excluded)
        temperatures = (0.0,) if len(self._workloads) in self._excluded else (0.0, _TEMPERATURE)
        settings = BenchSettings(_TOKENS, self.choice.spec, self.choice.spec_reason)
        return BenchRequest(self.pair_name, chosen, temperatures, settings)

    # --- measuring ------------------------------------------------------------------------

    def start_refusal(self) -> str:
        selected = self.bench_request.workloads
        return "" if selected else "No workload is selected. Press space to select one."

    def reset_results(self) -> None:
        self._live_results, self._outcome = LiveBenchResults(self.bench_request), None
        self._preparation = "measuring passes"
        self._start_time = self._clock()

    def run_measurement(
        self, engine: InspectableEngine, stopped: Callable[[], bool]
    ) -> Iterator[BenchEvent]:
        return run_benchmark(engine, self.bench_request, stopped, self._clock)

    def add_result(self, result: BenchEvent) -> None:
        if isinstance(result, BenchFinished):
            self._outcome, self.error = result, result.error
            self._elapsed = self._clock() - self._start_time
        elif isinstance(result, CostProbeProgress):
            self._preparation = result.why or self._preparation
        elif self._live_results is not None:
            if isinstance(result, BenchStarted):
                self._preparation = ""
            self._live_results.add_event(result)

    @property
    def report(self) -> BenchReport | None:
        """None until a run has ended with at least one result."""
        return self._outcome.report if self._outcome and self._outcome.report.rows else None

    # --- showing --------------------------------------------------------------------------

    def content_lines(self, width: int, height: int) -> Iterator[Content]:
        glyphs = self.options.glyphs
        if self._outcome is not None:
            yield from _verdict_lines(self._outcome.report, width)
            if self._outcome.report.rows:
                yield Content("")
                n_verdict_lines = len(list(_verdict_lines(self._outcome.report, width)))
                rows = list(rows_from_report(self._outcome.report))
                yield from speed_table(rows, width, height - n_verdict_lines - 12, glyphs)
                yield Content("")
            yield from cost_lines(self._outcome.report, width)
            yield from _remark_lines(self._outcome.report, width)
        elif self._live_results is not None and self.phase in ("running", "stopping"):
            bar = glyphs.bar(self._live_results.share, width)
            yield Content.assemble(
                (bar, "$accent"), (glyphs.memory_free * (width - len(bar)), "$muted")
            )
            yield Content("")
            yield from speed_table(list(self._live_results.rows()), width, height - 2, glyphs)
        else:
            yield from self._intro_lines(width, height)

    def progress_text(self) -> str:
        results, dot = self._live_results, self.options.glyphs.dot
        if self.phase == "stopping":
            return "stopping after this answer"
        if self.phase == "running" and results is not None:
            if self._preparation:
                return sanitize(self._preparation, multiline=False)
            seconds_left = duration(results.seconds_left or 0.0)
            return f"{_answers_text(results, self.size.width)} {dot} about {seconds_left} left"
        if self.phase == "done" and results is not None:
            stopped = self.background_run is not None and self.background_run.is_stopped
            outcome = "stopped" if stopped else duration(self._elapsed)
            return f"{_answers_text(results, self.size.width)} {dot} {outcome}"
        return ""

    def _intro_lines(self, width: int, height: int) -> Iterator[Content]:
        for line in (
            sanitize(_files_text(self.choice), multiline=False),
            *wrap_text(_INTRO, min(width, 90)),
        ):
            if height > 14:
                yield Content.styled(line, "$muted")
        if height > 14:
            yield Content("")
        names = [(w.name, w.title) for w in self._workloads]
        names.append((f"at {_TEMPERATURE:g}", "this temperature as well as 0"))
        for n, (name, description) in enumerate(names):
            if n == len(self._workloads) and height > 14:
                yield Content("")
            yield self._choice_line(n, name, description)
        yield Content("")
        yield self.load_status(self._extent_text())

    def _choice_line(self, n: int, name: str, description: str) -> Content:
        glyphs = self.options.glyphs
        pointer = glyphs.pointer if n == self._pointed_index else " "
        sign, style = (glyphs.dot, "$muted") if n in self._excluded else (glyphs.check, "")
        return Content.assemble(
            (f"{pointer} ", "$accent"),
            (f"{sign:<3}", style or "$success"),
            (f"{name:<12}", style),
            (description, "$muted"),
        )

    def _extent_text(self) -> str:
        """The number of answers, and an estimate of the time."""
        if not self.bench_request.workloads:
            return self.start_refusal()
        engine = self.runner.engine
        estimate = estimate_bench(
            self.bench_request, engine.measured if engine is not None else None
        )
        rounds = f" in {estimate.rounds} rounds" if estimate.rounds > 1 else ""
        time = duration(max(estimate.seconds, 1.0))
        return f"{estimate.answers} answers of {_TOKENS} tokens{rounds}: about {time}."

    def active_key_hints(self) -> Mapping[str, str]:
        choosing = self.phase in ("loading", "ready")
        return {
            "bench.toggle": "on or off" if choosing else "",
            "bench.save": "save" if self.report and self.phase in ("done", "failed") else "",
        }

    # --- keys -----------------------------------------------------------------------------

    def move_pointer(self, by: int) -> None:
        self._pointed_index = (self._pointed_index + by) % (len(self._workloads) + 1)

    def action_choose(self) -> None:
        if self.phase in ("loading", "ready"):
            self._excluded ^= {self._pointed_index}
            self.draw()

    def findings_text(self) -> str:
        report = self.report
        return "\n".join(report_text.format_markdown(report)) + "\n" if report is not None else ""

    def action_save(self) -> None:
        """Saves the report in the working directory under an unused name."""
        text = self.findings_text()
        if not text:
            self.notify("Nothing to save yet.", markup=False)
            return
        try:
            path = _unused_path(self.pair_name)
            export.save_file(path, text, overwrite=False)
        except StorageError as error:
            warning = sanitize(f"{error.message} {error.hint}", multiline=False)
            self.notify(warning, severity="warning", markup=False)
        else:
            self.notify(f"Saved to {sanitize(str(path.absolute()), multiline=False)}", markup=False)


def _answers_text(live_results: LiveBenchResults, width: int) -> str:
    return f"{live_results.done} of {live_results.total}{' answers' * (width >= 80)}"


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


def _verdict_lines(report: BenchReport, width: int) -> Iterator[Content]:
    first, *rest = report_text.format_verdict(report)
    gains = report.speedup is not None and report.speedup >= 1
    for line in wrap_text(first, width):
        yield Content.styled(line, "bold $success" if gains else "bold")
    for sentence in rest:
        for line in wrap_text(sentence, width):
            yield Content.styled(line, "$muted")


def _remark_lines(report: BenchReport, width: int) -> Iterator[Content]:
    """Summary sentences that the verdict does not contain."""
    verdict = set(report_text.format_verdict(report))
    yield Content("")
    for sentence in report_text.format_summary(replace(report, means=())):
        if sentence not in verdict:
            for line in wrap_text(sentence, width):
                yield Content.styled(line, "$muted")


# --- cost table: explained in plain words, with the field's terms at the right -----------------

_COST_NAME_WIDTH, _COST_VALUE_WIDTH, _COST_TERM_WIDTH = 18, 13, 24


def cost_lines(report: BenchReport, width: int) -> Iterator[Content]:
    """Empty if no pass times were measured."""
    if report.t1_ms is None:
        return
    yield Content.styled("Costs on this computer", "$muted bold")
    for name, value, meaning, term in _cost_rows(report):
        yield _cost_line(name, value, meaning, term, width)


def _cost_rows(report: BenchReport) -> Iterator[tuple[str, str, str, str]]:
    yield "one pass", milliseconds(report.t1_ms), "the target model, for one token", "t1"
    if report.c is not None:
        meaning = "the draft model, for one token"
        yield "draft token", _passes_text(report.c), meaning, "c, draft cost ratio"
    widths = [w for w in ("2", "4", "8", "16") if w in report.verify_curve]
    for width in widths:
        meaning = f"the target, for {width} tokens at once"
        yield (
            _verify_label(int(width) - 1),
            _passes_text(report.verify_curve[width]),
            meaning,
            f"v({width}), verify curve",
        )
    if report.host_ms is not None:
        meaning = "around a verification pass"
        yield "other work", milliseconds(report.host_ms), meaning, "host"


def _verify_label(n_drafted: int) -> str:
    return f"verify {n_drafted} drafted"


def _passes_text(n: float) -> str:
    return f"{n:.2f} passes"


def _cost_line(name: str, value: str, meaning: str, term: str, width: int) -> Content:
    line = f"  {name:<{_COST_NAME_WIDTH}}{value:>{_COST_VALUE_WIDTH}}   {meaning:<34}"
    term = term if len(line) + _COST_TERM_WIDTH <= width else term.partition(",")[0]
    remaining = width - len(line)
    if remaining < len(term):
        line, term = f"  {name:<{_COST_NAME_WIDTH}}{value:>{_COST_VALUE_WIDTH}}   {term}", ""
    return Content.assemble(line, (term, "$muted"))
