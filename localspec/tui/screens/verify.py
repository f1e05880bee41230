"""The verification on screen: its duration, its steps while they run, and its verdict."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

from textual.content import Content

from localspec.bench import verify_report
from localspec.bench.answer_comparison import PromptComparison
from localspec.bench.lossless_check import VerifyEffort, check_lossless
from localspec.bench.sampling_check import TokenSample
from localspec.bench.verify_report import (
    LosslessVerdict,
    VerifyEvent,
    VerifyProgress,
    VerifyReport,
    WidthDifference,
)
from localspec.errors import LocalspecError
from localspec.launch import Engine, ResolvedPair
from localspec.protocol.events import EngineReady
from localspec.tui.glyphs import Glyphs
from localspec.tui.key_bindings import KeyContext
from localspec.tui.text.wrapping import wrap_words
from localspec.units import duration

if TYPE_CHECKING:
    from localspec.tui.screens.measurement import MeasurementScreen

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
_VERDICT_STYLES: dict[LosslessVerdict | None, str] = {
    "lossless": "$success",
    "near-ties": "$success",
    "divergent": "$error",
    None: "$warning",
}


class VerifyMeasurement:
    heading = "Verify"
    key_context: KeyContext = "verify"
    stopping_text = "stopping"
    refusal = ""

    def __init__(
        self,
        pair_name: str,
        choice: ResolvedPair,
        effort: VerifyEffort | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`effort` replaces the choice between `EFFORTS`."""
        self.pair_name, self.choice = pair_name, choice
        self._fixed_effort, self._clock = effort, clock
        self._effort_name = "standard"
        self.checklist: VerifyChecklist | None = None
        self.report = VerifyReport()
        self._ready: EngineReady | None = None
        self._has_failed = False

    @property
    def effort(self) -> VerifyEffort:
        return self._fixed_effort or EFFORTS[self._effort_name]

    # --- checking -------------------------------------------------------------------------

    @property
    def has_begun(self) -> bool:
        return self.checklist is not None

    def begin(self) -> None:
        self.report = VerifyReport()
        self.checklist = VerifyChecklist(self.effort.seconds_per_part, self._clock)

    def run(self, engine: Engine, should_stop: Callable[[], bool]) -> Iterator[VerifyEvent]:
        """Runs on a thread."""
        self._ready = engine.ready
        has_draft = engine.ready.draft is not None
        return check_lossless(
            engine, has_draft_model=has_draft, effort=self.effort, should_stop=should_stop
        )

    def add_event(self, event: VerifyEvent) -> None:
        self.report.add(event)
        if self.checklist is not None:
            self.checklist.add_event(event)

    def end(self, error: LocalspecError | None, *, is_stopped: bool) -> None:
        self.report.is_complete = error is None and not is_stopped
        self._has_failed = error is not None
        if self.checklist is not None:
            self.checklist.end(is_complete=self.report.is_complete)

    # --- showing --------------------------------------------------------------------------

    def option_lines(self, width: int, height: int, glyphs: Glyphs) -> Iterator[Content]:
        if height > 12:
            for line in wrap_words(_INTRO, min(width, 90)):
                yield Content.styled(line, "$muted")
            yield Content("")
        for name, description in STEPS.items():
            yield Content.assemble(f"  {name:<{_NAME_WIDTH}}", (description, "$muted"))
        yield Content("")
        if self._fixed_effort is None:
            choices = [
                (f" {name} ", "bold reverse" if name == self._effort_name else "$muted")
                for name in EFFORTS
            ]
            yield Content.assemble("  Duration  ", *choices)
        yield Content("")

    def extent_text(self, _: Engine | None) -> str:
        time = duration(_TIMED_STEPS * self.effort.seconds_per_part + 1)
        return f"About {time}; longer on a slow computer."

    def result_lines(self, width: int, height: int, glyphs: Glyphs) -> Iterator[Content]:
        assert self.checklist is not None
        if self.checklist.has_ended and not self._has_failed:
            yield from _verdict_lines(self.report, width)
        results = dict(verify_report.format_rows(self.report))
        for name in STEPS:
            if self.checklist.state_of(name) == "done":
                yield from self._finished_step_lines(name, results.get(name, ""), width, glyphs)
            else:
                yield self._step_line(self.checklist, name, glyphs)
        divergences = list(verify_report.format_divergences(self.report))
        if divergences:
            yield Content("")
            yield Content.styled("Differences", "$muted bold")
        for divergence in divergences:
            for n, line in enumerate(wrap_words(divergence, width - 4)):
                yield Content(f"{'    ' if n else '  '}{line}")

    def _finished_step_lines(
        self, name: str, result: str, width: int, glyphs: Glyphs
    ) -> Iterator[Content]:
        failed = name in self._divergent_steps()
        sign, style = (glyphs.cross, "$error") if failed else (glyphs.check, "$success")
        for n, line in enumerate(wrap_words(result, width - 3 - _NAME_WIDTH)):
            start = (sign, name) if n == 0 else ("", "")
            yield Content.assemble((f"{start[0]:<3}", style), f"{start[1]:<{_NAME_WIDTH}}", line)

    def _step_line(self, checklist: VerifyChecklist, name: str, glyphs: Glyphs) -> Content:
        is_current = checklist.state_of(name) == "doing"
        is_running = is_current and not checklist.has_ended
        bar = glyphs.thin_bar(checklist.share if is_current else 0.0, _BAR_WIDTH)
        detail = checklist.detail if is_running else "not finished" if is_current else ""
        return Content.assemble(
            (f"{glyphs.pointer if is_running else ' ':<3}", "$accent"),
            f"{name:<{_NAME_WIDTH}}",
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
            if not all(map(report.is_near_tie, comparison.divergences))
        }
        samples = report.samples.values()
        return divergent | {s.verify for s in samples if s.is_rejected}

    def progress_text(self, width: int, glyphs: Glyphs) -> str:
        if self.checklist is None or self.checklist.has_ended:
            return f"{self.report.drafted:,} draft tokens verified"
        seconds = self.checklist.seconds_left
        return f"about {duration(seconds)} left" if seconds >= 1 else ""

    # --- keys -----------------------------------------------------------------------------

    def key_hints(self) -> dict[str, str]:
        duration_hint = "" if self.has_begun or self._fixed_effort else "duration"
        has_ended = self.checklist is not None and self.checklist.has_ended
        return {
            "verify.less": duration_hint,
            "verify.more": duration_hint,
            "verify.document": "copy JSON" if has_ended else "",
        }

    def move_pointer(self, by: int) -> None:
        """There is nothing to select."""

    def press(self, binding_id: str, screen: MeasurementScreen) -> None:
        if binding_id == "verify.document":
            screen.copy_text(self._format_json())
        elif not self.has_begun:
            names = list(EFFORTS)
            index = names.index(self._effort_name) + (1 if binding_id == "verify.more" else -1)
            self._effort_name = names[max(0, min(index, len(names) - 1))]
            screen.draw()

    @property
    def report_text(self) -> str:
        """The text that is copied; empty without results."""
        if self.checklist is None or self._ready is None:
            return ""
        return "\n".join(verify_report.format_report(self.report, self._ready)) + "\n"

    def _format_json(self) -> str:
        if self.checklist is None or self._ready is None:
            return ""
        return json.dumps(verify_report.report_to_json(self.report, self._ready), indent=2)


def _verdict_lines(report: VerifyReport, width: int) -> Iterator[Content]:
    label, meaning = verify_report.format_verdict(report)
    yield Content.styled(f"  {label}  ", f"{_VERDICT_STYLES[report.verdict]} bold reverse")
    yield Content("")
    for line in wrap_words(meaning, min(width, 90)):
        yield Content(line)
    yield Content("")


# --- progress -----------------------------------------------------------------------------

STEPS = {
    "rounding": "passes over 1 and over 8 tokens",
    "temperature 0": "speculative against plain, token by token",
    "same seed": "the same at temperature 0.8",
    "coupled": "sampled tokens against their probabilities",
    "rejection": "the same with rejection sampling",
    "block": "the same with block verification",
}
"""In execution order; named as in `verify_report`."""
_STEP_BY_PART = {"widths": "rounding", "greedy": "temperature 0", "seeded": "same seed"}
_MIN_SHARE = 0.05
"""Progress below which the time left cannot be extrapolated."""


class VerifyChecklist:
    """The progress of all steps. `seconds` is the time for each step but the first."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._current_step = ""
        self.share = 0.0
        """Of the current step."""
        self.detail = ""
        self.has_ended = False
        self._step_started = clock()
        self._finished_steps: set[str] = set()

    def add_event(self, event: VerifyEvent) -> None:
        if isinstance(event, VerifyProgress):
            name = event.verify or _STEP_BY_PART.get(event.part, "")
            if name != self._current_step:
                self._finished_steps.add(self._current_step)
                self._current_step, self._step_started = name, self._clock()
            self.share = event.share
            self.detail = event.message.rpartition(": ")[2]
        elif isinstance(event, WidthDifference):
            self._finished_steps.add("rounding")
        elif isinstance(event, TokenSample):
            self._finished_steps.add(event.verify)
        elif isinstance(event, PromptComparison):
            self.detail = ""

    def end(self, *, is_complete: bool) -> None:
        self.has_ended = True
        if is_complete:
            self._finished_steps |= set(STEPS)

    def state_of(self, step: str) -> Literal["waiting", "doing", "done"]:
        if step in self._finished_steps:
            return "done"
        return "doing" if step == self._current_step else "waiting"

    @property
    def seconds_left(self) -> float:
        """An estimate; a slow machine exceeds the time that is set."""
        seconds = 0.0
        for step in STEPS:
            if self.state_of(step) == "waiting":
                seconds += 1.0 if step == "rounding" else self._seconds
            elif self.state_of(step) == "doing":
                elapsed = self._clock() - self._step_started
                expected = elapsed / self.share if self.share > _MIN_SHARE else self._seconds
                seconds += max(expected - elapsed, 0.0)
        return seconds
