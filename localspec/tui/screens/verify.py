"""The check for losslessness: whether guessing changes anything of what the model says here."""

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

EFFORTS = {"quick": VerifyEffort(5.0, 32), "usual": VerifyEffort(), "thorough": VerifyEffort(90.0)}
_TIMED_STEPS = 5
"""That take the time of an effort each."""
_NAME_WIDTH, _BAR_WIDTH = 15, 14
_INTRO = (
    "Guessing is to make the model faster, not different. Its answers with guesses are held "
    "against plain ones, and what it samples against its own chances."
)
_VERDICT_TEXTS: dict[LosslessVerdict | None, tuple[str, str, str]] = {
    "lossless": (
        "Nothing differs",
        "$success",
        "With guesses the model said what it says without: every answer that was compared came "
        "out the same, token by token.",
    ),
    "near-ties": (
        "Near-ties only",
        "$success",
        "Some answers differ, and only where two tokens were as good as equal: a pass over "
        "several tokens rounds otherwise than a pass over one. Nothing is wrong. With --exact "
        "such places are computed again, alone.",
    ),
    "divergent": (
        "DIFFERS",
        "$error",
        "Guessing changed what the model says, and rounding does not explain it. Speculation "
        "off (/spec off, --spec off) is safe. Please report this, with the JSON: j copies it.",
    ),
    None: ("Not finished", "$warning", "Nothing wrong was found so far."),
}


class VerifyScreen(MeasurementScreen[VerifyEvent]):
    """Part by part, then one word."""

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
        """`effort`: in place of those that can be chosen."""
        super().__init__(pair_name, choice, runner, options)
        self._fixed_effort, self._clock = effort, clock
        self._effort_name = "usual"
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
        draft = engine.ready.draft is not None
        return check_lossless(
            engine, has_draft_model=draft, effort=self.effort, should_stop=stopped
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
        said = dict(verify_report.format_rows(self.report))
        for part in self._checklist:
            yield from self._step_lines(part, said.get(part.name, ""), width)
        divergences = list(verify_report.format_divergences(self.report))
        if divergences:
            yield Content("")
            yield Content.styled("Where they differ", "$muted bold")
        for each in divergences:
            for n, line in enumerate(wrap_text(sanitize(each, multiline=False), width - 4)):
                yield Content(f"{'    ' if n else '  '}{line}")

    def progress_text(self) -> str:
        if self.phase == "stopping":
            return "stopping"
        if self.phase == "running" and self._checklist is not None:
            left = self._checklist.seconds_left
            return f"about {duration(left)} left" if left >= 1 else ""
        if self.phase == "done":
            return f"{self.report.drafted:,} guesses looked at"
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
            marked = [
                (f" {name} ", "bold reverse" if name == self._effort_name else "$muted")
                for name in EFFORTS
            ]
            yield Content.assemble("  How long a look  ", *marked)
        least = duration(_TIMED_STEPS * self.effort.seconds_per_part + 1)
        yield Content("")
        yield self.load_status(f"About {least}; a slow computer takes longer.")

    def _step_lines(self, step: VerifyChecklistItem, found: str, width: int) -> Iterator[Content]:
        """One that is done says what was found in place of its bar."""
        glyphs = self.options.glyphs
        if step.state == "done":
            lines = wrap_text(sanitize(found, multiline=False), width - 3 - _NAME_WIDTH)
            bad = step.name in self._divergent_steps()
            sign, style = (glyphs.cross, "$error") if bad else (glyphs.check, "$success")
            for n, line in enumerate(lines):
                mark, name = (sign, step.name) if n == 0 else ("", "")
                yield Content.assemble((f"{mark:<3}", style), f"{name:<{_NAME_WIDTH}}", line)
            return
        doing = step.state == "doing"
        over = self.phase in ("done", "failed")
        bar = glyphs.thin_bar(step.share, _BAR_WIDTH)
        said = "not finished" if doing and over else step.detail
        yield Content.assemble(
            (f"{glyphs.pointer if doing and not over else ' ':<3}", "$accent"),
            f"{step.name:<{_NAME_WIDTH}}",
            (bar, "$accent"),
            (f"{glyphs.memory_free * (_BAR_WIDTH - len(bar))}  ", "$muted"),
            (said, "$muted"),
        )

    def _divergent_steps(self) -> set[str]:
        """Parts in which something differs that rounding does not explain."""
        report = self.report
        equal = {"temperature 0": report.greedy, "same seed": report.seeded}
        wrong = {
            name
            for name, sums in equal.items()
            if not all(each.is_near_tie(report.near_tie_limit) for each in sums.divergences)
        }
        return wrong | {
            s.verify for s in report.samples.values() if s.is_rejected(len(VERIFY_MODES))
        }

    def active_key_hints(self) -> Mapping[str, str]:
        choosing = self._fixed_effort is None and self._checklist is None
        shown = self.phase in ("done", "failed") and self._checklist is not None
        return {
            "verify.less": "how long" if choosing else "",
            "verify.more": "how long" if choosing else "",
            "verify.document": "copy JSON" if shown else "",
        }

    # --- keys -----------------------------------------------------------------------------

    def action_turn(self, by: int) -> None:
        if self._checklist is None:
            names = list(EFFORTS)
            at = names.index(self._effort_name) + by
            self._effort_name = names[max(0, min(at, len(names) - 1))]
            self.draw()

    def findings_text(self) -> str:
        if self._checklist is None or self.ready is None:
            return ""
        return "\n".join(verify_report.format_report(self.report, self.ready)) + "\n"

    def action_document(self) -> None:
        found = self._checklist is not None and self.ready is not None
        self.copy_text(self._json_report() if found else "")

    def _json_report(self) -> str:
        assert self.ready is not None
        return json.dumps(verify_report.report_to_json(self.report, self.ready), indent=2)


def _verdict_lines(report: VerifyReport, width: int) -> Iterator[Content]:
    """One word, and what it means."""
    word, style, meaning = _VERDICT_TEXTS[report.verdict]
    yield Content.styled(f"  {word}  ", f"{style} bold reverse")
    yield Content("")
    if report.is_complete and not report.drafted:
        meaning = verify_report.NOTHING_DRAFTED
    for line in wrap_text(meaning, min(width, 90)):
        yield Content(line)
    yield Content("")


# --- How far a check is: its parts, folded from what is found.

STEP_NAMES = ("rounding", "temperature 0", "same seed", "coupled", "rejection", "block")
"""In their order; as findings.py calls them."""
STEP_DESCRIPTIONS = {
    "rounding": "passes over 1 and over 8 tokens",
    "temperature 0": "guessed against plain, token by token",
    "same seed": "the same at temperature 0.8",
    "coupled": "sampled tokens against their chances",
    "rejection": "the same, another way of checking",
    "block": "and a third",
}
_STEP_BY_PART = {"widths": "rounding", "greedy": "temperature 0", "seeded": "same seed"}
_MIN_SHARE = 0.05
"""A share that is too small to foretell anything by."""

StepState = Literal["waiting", "doing", "done"]


@dataclass(frozen=True, slots=True)
class VerifyChecklistItem:
    """One line of the screen."""

    name: str
    state: StepState
    share: float
    detail: str = ""


class VerifyChecklist:
    """All of them; `seconds`: what each but the first may take."""

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
                self._finished_steps.add(self._current_step)  # it goes on to the next
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
        """Everything was looked at."""
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
        """About; a slow machine takes longer than the time that is set."""
        left = 0.0
        for part in self:
            if part.state == "waiting":
                left += 1.0 if part.name == "rounding" else self._seconds
            elif part.state == "doing":
                took = self._clock() - self._step_started
                whole = took / part.share if part.share > _MIN_SHARE else self._seconds
                left += max(whole - took, 0.0)
        return left
