"""The verify screen: checks that speculation does not change the model's output."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from textual.content import Content

from localspec.bench import verify_report
from localspec.bench.lossless_check import VerifyEffort, check_lossless
from localspec.bench.verify_report import (
    VERIFY_MODES,
    ComparisonResult,
    LosslessVerdict,
    SampleResult,
    VerifyEvent,
    VerifyProgress,
    VerifyReport,
    WidthDifference,
)
from localspec.launch import ResolvedPair
from localspec.sanitize import sanitize
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner, InspectableEngine
from localspec.tui.key_bindings import bindings_for
from localspec.tui.screens.measurement import MeasurementScreen, wrap_text
from localspec.units import duration

EFFORTS = {
    "quick": VerifyEffort(5.0, 32),
    "standard": VerifyEffort(),
    "thorough": VerifyEffort(90.0),
}
_TIMED_STEPS = 5
"""Steps that take `seconds_per_part` each."""
_NAME_WIDTH, _BAR_WIDTH = 15, 14
_INTRO = (
    "Speculation should make the model faster, not different. Speculative answers are compared "
    "with plain ones, and sampled tokens with the model's own probabilities."
)
_VERDICT_TEXTS: dict[LosslessVerdict | None, tuple[str, str, str]] = {
    "lossless": (
        "No differences",
        "$success",
        "The model writes the same with speculation as without: all compared answers are "
        "identical, token by token.",
    ),
    "near-ties": (
        "Near-ties only",
        "$success",
        "Some answers differ, but only where two tokens were almost equally probable: a pass "
        "over several tokens rounds differently from a pass over one. This is not an error. Exact "
        "mode (--exact) computes such positions again, one token at a time.",
    ),
    "divergent": (
        "DIFFERS",
        "$error",
        "Speculation changed the model's output, and rounding does not explain it. Without "
        "speculation (/spec off, --spec off) output is safe. Please report this with the JSON: j "
        "copies it.",
    ),
    None: ("Not finished", "$warning", "No problem found so far."),
}


class VerifyScreen(MeasurementScreen[VerifyEvent]):
    """Shows each step's progress, then a verdict."""

    BINDINGS = bindings_for("measuring", "verify")
    HEADING = "Verify"
    KEY_CONTEXTS = ("verify", "measuring")

    def __init__(
        self,
        pair_name: str,
        choice: ResolvedPair,
        runner: EngineRunner,
        options: AppOptions,
        effort: VerifyEffort | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`effort` replaces the choice between `EFFORTS`."""
        super().__init__(pair_name, choice, runner, options)
        self._fixed_effort, self._clock = effort, clock
        self._effort_name = "standard"
        self._checklist: VerifyChecklist | None = None
        self.report = VerifyReport()

    @property
    def effort(self) -> VerifyEffort:
        return self._fixed_effort or EFFORTS[self._effort_name]

    # --- checking -------------------------------------------------------------------------

    def reset_results(self) -> None:
        self.report = VerifyReport()
        self._checklist = VerifyChecklist(self.effort.seconds_per_part, self._clock)

    def run_measurement(
        self, engine: InspectableEngine, stopped: Callable[[], bool]
    ) -> Iterator[VerifyEvent]:
        has_draft = engine.ready.draft is not None
        return check_lossless(
            engine, has_draft_model=has_draft, effort=self.effort, should_stop=stopped
        )

    def add_result(self, result: VerifyEvent) -> None:
        self.report.add(result)
        if self._checklist is not None:
            self._checklist.add_finding(result)

    def mark_complete(self) -> None:
        self.report.is_complete = True
        if self._checklist is not None:
            self._checklist.finish()

    # --- showing --------------------------------------------------------------------------

    def content_lines(self, width: int, height: int) -> Iterator[Content]:
        if self._checklist is None:
            yield from self._intro_lines(width, height)
            return
        if self.phase == "done":
            yield from _verdict_lines(self.report, width)
        results = dict(verify_report.format_rows(self.report))
        for step in self._checklist:
            yield from self._step_lines(step, results.get(step.name, ""), width)
        divergences = list(verify_report.format_divergences(self.report))
        if divergences:
            yield Content("")
            yield Content.styled("Differences", "$muted bold")
        for divergence in divergences:
            for n, line in enumerate(wrap_text(sanitize(divergence, multiline=False), width - 4)):
                yield Content(f"{'    ' if n else '  '}{line}")

    def progress_text(self) -> str:
        if self.phase == "stopping":
            return "stopping"
        if self.phase == "running" and self._checklist is not None:
            seconds = self._checklist.seconds_left
            return f"about {duration(seconds)} left" if seconds >= 1 else ""
        if self.phase == "done":
            return f"{self.report.drafted:,} draft tokens verified"
        return ""

    def _intro_lines(self, width: int, height: int) -> Iterator[Content]:
        if height > 12:
            for line in wrap_text(_INTRO, min(width, 90)):
                yield Content.styled(line, "$muted")
            yield Content("")
        for name in STEP_NAMES:
            yield Content.assemble(f"  {name:<{_NAME_WIDTH}}", (STEP_DESCRIPTIONS[name], "$muted"))
        yield Content("")
        if self._fixed_effort is None:
            choices = [
                (f" {name} ", "bold reverse" if name == self._effort_name else "$muted")
                for name in EFFORTS
            ]
            yield Content.assemble("  Duration  ", *choices)
        time = duration(_TIMED_STEPS * self.effort.seconds_per_part + 1)
        yield Content("")
        yield self.load_status(f"About {time}; longer on a slow computer.")

    def _step_lines(self, step: VerifyChecklistItem, result: str, width: int) -> Iterator[Content]:
        """A finished step shows its result in place of the bar."""
        glyphs = self.options.glyphs
        if step.state == "done":
            lines = wrap_text(sanitize(result, multiline=False), width - 3 - _NAME_WIDTH)
            failed = step.name in self._divergent_steps()
            sign, style = (glyphs.cross, "$error") if failed else (glyphs.check, "$success")
            for n, line in enumerate(lines):
                first_sign, name = (sign, step.name) if n == 0 else ("", "")
                yield Content.assemble((f"{first_sign:<3}", style), f"{name:<{_NAME_WIDTH}}", line)
            return
        running = step.state == "doing"
        ended = self.phase in ("done", "failed")
        bar = glyphs.thin_bar(step.share, _BAR_WIDTH)
        detail = "not finished" if running and ended else step.detail
        yield Content.assemble(
            (f"{glyphs.pointer if running and not ended else ' ':<3}", "$accent"),
            f"{step.name:<{_NAME_WIDTH}}",
            (bar, "$accent"),
            (f"{glyphs.memory_free * (_BAR_WIDTH - len(bar))}  ", "$muted"),
            (detail, "$muted"),
        )

    def _divergent_steps(self) -> set[str]:
        """Steps with a difference that rounding does not explain."""
        report = self.report
        comparisons = {"temperature 0": report.greedy, "same seed": report.seeded}
        divergent = {
            name
            for name, comparison in comparisons.items()
            if not all(
                divergence.is_near_tie(report.near_tie_limit)
                for divergence in comparison.divergences
            )
        }
        return divergent | {
            sample.verify
            for sample in report.samples.values()
            if sample.is_rejected(len(VERIFY_MODES))
        }

    def active_key_hints(self) -> Mapping[str, str]:
        choosing = self._fixed_effort is None and self._checklist is None
        has_results = self.phase in ("done", "failed") and self._checklist is not None
        return {
            "verify.less": "duration" if choosing else "",
            "verify.more": "duration" if choosing else "",
            "verify.document": "copy JSON" if has_results else "",
        }

    # --- keys -----------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        if self._checklist is None:
            names = list(EFFORTS)
            index = names.index(self._effort_name) + by
            self._effort_name = names[max(0, min(index, len(names) - 1))]
            self.draw()

    def findings_text(self) -> str:
        if self._checklist is None or self.ready is None:
            return ""
        return "\n".join(verify_report.format_report(self.report, self.ready)) + "\n"

    def action_document(self) -> None:
        has_report = self._checklist is not None and self.ready is not None
        self.copy_text(self._json_report() if has_report else "")

    def _json_report(self) -> str:
        assert self.ready is not None
        return json.dumps(verify_report.report_to_json(self.report, self.ready), indent=2)


def _verdict_lines(report: VerifyReport, width: int) -> Iterator[Content]:
    label, style, meaning = _VERDICT_TEXTS[report.verdict]
    yield Content.styled(f"  {label}  ", f"{style} bold reverse")
    yield Content("")
    if report.is_complete and not report.drafted:
        meaning = verify_report.NOTHING_DRAFTED
    for line in wrap_text(meaning, min(width, 90)):
        yield Content(line)
    yield Content("")


# --- progress -----------------------------------------------------------------------------

STEP_NAMES = ("rounding", "temperature 0", "same seed", "coupled", "rejection", "block")
"""In execution order; named as in `verify_report`."""
STEP_DESCRIPTIONS = {
    "rounding": "passes over 1 and over 8 tokens",
    "temperature 0": "speculative against plain, token by token",
    "same seed": "the same at temperature 0.8",
    "coupled": "sampled tokens against their probabilities",
    "rejection": "the same with rejection sampling",
    "block": "the same with block verification",
}
_STEP_BY_PART = {"widths": "rounding", "greedy": "temperature 0", "seeded": "same seed"}
_MIN_SHARE = 0.05
"""Progress below which the time left cannot be extrapolated."""

StepState = Literal["waiting", "doing", "done"]


@dataclass(frozen=True, slots=True)
class VerifyChecklistItem:
    """The progress of one step."""

    name: str
    state: StepState
    share: float
    detail: str = ""


class VerifyChecklist:
    """The progress of all steps, derived from verify events.

    `seconds` is the time for each step but the first.
    """

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._current_step = ""
        self._share = 0.0
        self._detail = ""
        self._step_started = clock()
        self._finished_steps: set[str] = set()

    def add_finding(self, finding: VerifyEvent) -> None:
        if isinstance(finding, VerifyProgress):
            name = finding.verify or _STEP_BY_PART.get(finding.part, "")
            if name != self._current_step:
                self._finished_steps.add(self._current_step)
                self._current_step, self._step_started = name, self._clock()
            self._share = finding.share
            self._detail = finding.message.rpartition(": ")[2]
        elif isinstance(finding, WidthDifference):
            self._finished_steps.add("rounding")
        elif isinstance(finding, SampleResult):
            self._finished_steps.add(finding.sample.verify)
        elif isinstance(finding, ComparisonResult):
            self._detail = ""

    def finish(self) -> None:
        self._finished_steps |= set(STEP_NAMES)

    def __iter__(self) -> Iterator[VerifyChecklistItem]:
        for name in STEP_NAMES:
            if name == self._current_step and name not in self._finished_steps:
                yield VerifyChecklistItem(name, "doing", self._share, self._detail)
            elif name in self._finished_steps:
                yield VerifyChecklistItem(name, "done", 1.0)
            else:
                yield VerifyChecklistItem(name, "waiting", 0.0)

    @property
    def seconds_left(self) -> float:
        """An estimate; a slow machine exceeds the time that is set."""
        seconds = 0.0
        for step in self:
            if step.state == "waiting":
                seconds += 1.0 if step.name == "rounding" else self._seconds
            elif step.state == "doing":
                elapsed = self._clock() - self._step_started
                expected = elapsed / step.share if step.share > _MIN_SHARE else self._seconds
                seconds += max(expected - elapsed, 0.0)
        return seconds
