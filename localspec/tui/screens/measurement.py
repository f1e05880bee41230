"""The screen of `bench` and `verify`: loads a pair, measures it, shows the report."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.bench import workloads
from localspec.bench.benchmark import Benchmark
from localspec.bench.lossless_check import LosslessMeasurement
from localspec.bench.workloads import BenchRequest
from localspec.config.key_table import KeyContext
from localspec.errors import LocalspecError
from localspec.launch import SETTINGS_NOTICE, Engine, ResolvedPair
from localspec.protocol.events import Notice
from localspec.report.measurement import format_measurement, format_to_share
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import (
    EngineLoaded,
    EngineLoadEvent,
    EngineLoadFailed,
    EngineRunner,
)
from localspec.tui.key_bindings import bindings_for, format_footer
from localspec.tui.navigation import MeasurementCommand
from localspec.tui.notices import copy_text, screen_hint, show_notice
from localspec.tui.scheduling import FramePacer, explain_failure
from localspec.tui.text.report_content import to_content
from localspec.tui.text.wrapping import one_line, wrap_words
from localspec.tui.widgets.screen_frame import CenteredLayout, KeyLine, TitleLine

# Minimum time between two redraws: drawing takes time from the engine.
_FRAME_SECONDS = 0.25
_INTROS = {
    "Benchmark": "Several kinds of text are completed plain and with speculation, in turns and "
    "with the same seed, at temperature 0 and 0.8. The output is the same; the speed is measured.",
    "Verify": "Speculation should make the model faster, not different. The passes of speculative "
    "answers are repeated without drafting, at temperature 0 and with a seed, and sampled tokens "
    "are tested against the model's own probabilities.",
}
# The same as in `localspec bench`.
_TEMPERATURES = (0.0, 0.8)
_TOKENS = 64  # Of one answer.

MeasurementPhase = Literal["loading", "ready", "running", "stopping", "done", "failed"]


def make_benchmark(pair_name: str, pair: ResolvedPair) -> Benchmark:
    """As `localspec bench` without options."""
    return Benchmark(
        BenchRequest(
            name=pair_name,
            workloads=tuple(workloads.load()),
            temperatures=_TEMPERATURES,
            max_tokens=_TOKENS,
            spec=pair.spec,
            why=pair.spec_reason,
        )
    )


def make_measurement(
    command: MeasurementCommand, pair_name: str, pair: ResolvedPair
) -> Benchmark | LosslessMeasurement:
    if command == "bench":
        return make_benchmark(pair_name, pair)
    return LosslessMeasurement()


class MeasurementScreen(CenteredLayout, Screen[None]):
    """The pair loads at once; the measurement starts with a key only."""

    BINDINGS = bindings_for("measuring")
    KEY_CONTEXTS: tuple[KeyContext, ...] = ("measuring",)

    def __init__(
        self,
        measurement: Benchmark | LosslessMeasurement,
        pair_name: str,
        pair: ResolvedPair,
        runner: EngineRunner,
        options: AppOptions,
    ) -> None:
        super().__init__()
        self.measurement = measurement
        self._pair_name = pair_name
        self._pair = pair
        self._runner = runner
        self._options = options
        self.phase: MeasurementPhase = "loading"
        self.error: LocalspecError | None = None
        self._stop_event = threading.Event()
        self._progress_text = ""
        self._start_after_load = False
        self._pacer = FramePacer(_FRAME_SECONDS, _FRAME_SECONDS)
        self._is_draw_pending = False
        self._scrolled_by_user = False

    def compose(self) -> ComposeResult:
        pair = one_line(self._pair_name)
        yield TitleLine(f"{self.measurement.heading}  {pair}")
        with VerticalScroll(id="findings", can_focus=False):
            yield Static("", id="content", markup=False)
        yield KeyLine()

    def on_mount(self) -> None:
        self._load()

    def on_resize(self) -> None:
        self.draw()

    def _load(self) -> None:
        """An engine that is already loaded for this pair is reused."""
        self.phase = "loading"
        self.error = None
        request = self._options.build_load_request(self._pair)
        self._runner.load(request, self.post_message)
        self.draw()

    @on(EngineLoadEvent)
    def _show_load_notice(self, message: EngineLoadEvent) -> None:
        if isinstance(message.event, Notice):
            show_notice(self, message.event)

    @on(EngineLoaded)
    def _engine_ready(self, message: EngineLoaded) -> None:
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS_NOTICE and notice.level != "info":
                show_notice(self, notice)
        self.phase = "ready"
        if self._start_after_load:
            self._start_run()
        self.draw()

    @on(EngineLoadFailed)
    def _fail(self, failure: EngineLoadFailed) -> None:
        """Closes the engine, whose state is unknown: the next start loads it again."""
        self.phase = "failed"
        self.error = failure.error
        self._start_after_load = False
        self._runner.close()
        self.draw()

    def _start_run(self) -> None:
        engine = self._runner.engine
        self._start_after_load = engine is None
        if engine is None:  # closed by the chat that shares it
            self._load()
            return
        self.phase = "running"
        self.error = None
        self._scrolled_by_user = False
        self._progress_text = ""
        self._stop_event.clear()
        self._runner.run(lambda: self._work(engine))

    def _work(self, engine: Engine) -> None:
        error = None
        try:
            for progress in self.measurement.run(engine, self._stop_event.is_set):
                self.call_later(self._show_progress, progress.text)  # thread-safe
        except Exception as failure:  # The screen waits for an end.
            error = explain_failure(failure)
        self.call_later(self._run_ended, error)

    def _show_progress(self, text: str) -> None:
        self._progress_text = text
        if not self._is_draw_pending:
            self._is_draw_pending = True
            self._pacer.call_at_next_frame(self, self.draw)

    def _run_ended(self, error: LocalspecError | None) -> None:
        self.phase = "done"
        self._progress_text = self.measurement.summary
        if self._stop_event.is_set():
            self._progress_text += ", stopped"
        if error is not None:
            self._fail(EngineLoadFailed(error))
        self.draw()

    def draw(self) -> None:
        self._is_draw_pending = False
        lines = [*self._error_lines(), *self._report_lines()]
        self.query_one("#content", Static).update(Content("\n").join(lines))
        if not self._scrolled_by_user:
            self._scroll()
        status = "stopping" if self.phase == "stopping" else self._progress_text
        self.query_one(TitleLine).show_status(one_line(status))
        self._show_keys()
        # Only then is it known whether it scrolls.
        self.call_after_refresh(self._show_keys)

    def _error_lines(self) -> Iterator[Content]:
        if self.error is None:
            return
        bar = "▌ "
        width = min(self.size.width, 120) - len(bar) - 3  # padding and scrollbar
        for line in wrap_words(self.error.message, width):
            yield Content.assemble((bar, "$error"), (line, "bold $error"))
        hint = screen_hint(self.error.hint)
        if hint:
            for line in wrap_words(hint, width):
                yield Content.assemble((bar, "$error"), line)
        yield Content("")

    def _report_lines(self) -> list[Content]:
        """The report so far, or what will be measured."""
        if self.measurement.has_begun:
            return [to_content(line) for line in format_measurement(self.measurement)]
        if self.phase == "loading":
            status = "Loading the pair …"
            if self._start_after_load:
                status += " Starts when loaded."
        else:
            engine = self._runner.engine
            costs = engine.measured if engine is not None else None
            status = self.measurement.format_estimate(costs)
        intro = Content.styled(_INTROS[self.measurement.heading], "$muted")
        return [intro, Content(""), Content(status)]

    def _scroll(self) -> None:
        """To the end while it grows, and to the verdict at last."""
        has_verdict_at_end = not self.measurement.begins_with_verdict
        findings = self.query_one("#findings")
        if self.phase in ("running", "stopping") or (
            self.phase == "done" and has_verdict_at_end
        ):
            self.call_after_refresh(findings.scroll_end, animate=False)
        else:
            self.call_after_refresh(findings.scroll_home, animate=False)

    def _show_keys(self) -> None:
        if self.is_attached:  # else it was left meanwhile
            self.query_one(KeyLine).show_keys(self._key_hints())

    def _key_hints(self) -> str:
        start_hints = {"ready": "start", "done": "run again", "failed": "reload"}
        start_hints["loading"] = "cancel start" if self._start_after_load else "start"
        back_hints = {"running": "stop", "stopping": "leave now"}
        labels = {
            "measuring.start": start_hints.get(self.phase, ""),
            "measuring.back": back_hints.get(self.phase, "back"),
        }
        has_ended = self.phase in ("done", "failed")
        if not has_ended or not self.measurement.has_results:
            labels |= {"measuring.copy": "", "measuring.document": ""}
        else:
            labels |= {"measuring.copy": "copy", "measuring.document": "copy JSON"}
        can_scroll = self.query_one("#findings").max_scroll_y > 0
        scroll_hint = "scroll" if has_ended and can_scroll else ""
        labels |= {"measuring.up": scroll_hint, "measuring.down": scroll_hint}
        if self.phase == "failed":
            labels |= {"app.log": "log", "app.quit": ""}
        return format_footer(
            self._options.keymap, "measuring", "app", label_overrides=labels
        )

    def action_start(self) -> None:
        if self.phase in ("ready", "done"):
            self._start_run()
        elif self.phase == "failed":
            self._start_after_load = True
            self._load()
        elif self.phase == "loading":
            self._start_after_load = not self._start_after_load
        self.draw()

    def action_back(self) -> None:
        """Stops the run; again: leaves, and closes the engine if it is still busy."""
        self._stop_event.set()
        if self.phase == "running":
            self.phase = "stopping"
            self.draw()
            return
        if self.phase in ("loading", "stopping"):
            self._runner.close()
        if len(self.app.screen_stack) > 1:  # not where it is the first
            self.dismiss()

    @property
    def busy(self) -> bool:
        return self.phase == "running"

    def action_stop(self) -> None:
        """Called on ctrl+c."""
        self.action_back()

    def action_move(self, by: int) -> None:
        self._scrolled_by_user = True
        self.query_one("#findings").scroll_relative(y=by, animate=False)

    def action_copy(self, *, as_json: bool = False) -> None:
        if not self.measurement.has_results:
            self.notify("Nothing to copy yet.", markup=False)
        elif as_json:
            text = json.dumps(self.measurement.to_json(), indent=2)
            copy_text(self.app, lambda: text)
        else:
            lines = format_to_share(self.measurement)
            copy_text(self.app, lambda: "\n".join(lines) + "\n")

    def action_copy_json(self) -> None:
        self.action_copy(as_json=True)
