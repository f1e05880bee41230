"""The screen of `bench` and `verify`: loads a pair, measures it on a thread, shows the results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.errors import LocalspecError
from localspec.launch import SETTINGS_NOTICE
from localspec.protocol.events import Notice
from localspec.sanitize import sanitize
from localspec.tui import clipboard
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredLayout
from localspec.tui.engine_runner import (
    EngineLoaded,
    EngineLoadEvent,
    EngineLoadFailed,
    EngineRunner,
)
from localspec.tui.glyphs import Glyphs
from localspec.tui.key_bindings import (
    BINDINGS_BY_ID,
    KeyContext,
    bindings_for,
    format_footer,
    format_key,
    keys_for,
)
from localspec.tui.problem_text import show_notice
from localspec.tui.screens.bench import BenchMeasurement
from localspec.tui.screens.verify import VerifyMeasurement
from localspec.tui.text.wrapping import wrap_words
from localspec.tui.timer import FramePacer
from localspec.tui.widgets.screen_frame import KeyLine, TitleLine

_FRAME_SECONDS = 0.25
"""Minimum time between two redraws: drawing takes time from the engine."""

MeasurementPhase = Literal["loading", "ready", "running", "stopping", "done", "failed"]


class MeasurementRun:
    """Starts on the engine's thread, a daemon, so that quitting does not wait for it."""

    def __init__(
        self,
        run: Callable[[Callable[[], bool]], Iterator[Any]],
        notify: Callable[[], object],
        runner: EngineRunner,
    ) -> None:
        """The argument of `run` returns True to stop; `notify` is called once until a fetch."""
        self._run, self._notify = run, notify
        self._events: list[Any] = []
        self._has_ended = self._is_notified = False
        self._lock = threading.Lock()
        self._stop_event = threading.Event()
        self.stop, self.is_stopped = self._stop_event.set, self._stop_event.is_set
        self.error: LocalspecError | None = None
        """Once the run has ended."""
        runner.run(self._work)

    def fetch(self) -> tuple[list[Any], bool]:
        """All events since the last call, and whether the run has ended."""
        with self._lock:
            events, self._events, self._is_notified = self._events, [], False
            return events, self._has_ended

    def _work(self) -> None:
        try:
            for event in self._run(self.is_stopped):
                self._put(event)
        except LocalspecError as error:
            self.error = error
        self._put(has_ended=True)

    def _put(self, *events: Any, has_ended: bool = False) -> None:
        with self._lock:
            self._events += events
            self._has_ended = has_ended
            is_first, self._is_notified = not self._is_notified, True
        if is_first:
            self._notify()


class MeasurementScreen(CenteredLayout, Screen[None]):
    """The pair loads while the options are shown; the measurement starts with a key only."""

    BINDINGS = bindings_for("measuring", "bench", "verify")

    def __init__(
        self,
        measurement: BenchMeasurement | VerifyMeasurement,
        runner: EngineRunner,
        options: AppOptions,
    ) -> None:
        super().__init__()
        self.measurement = measurement
        self.KEY_CONTEXTS: tuple[KeyContext, ...] = (measurement.key_context, "measuring")
        self._runner, self._options = runner, options
        self.phase: MeasurementPhase = "loading"
        self.error: LocalspecError | None = None
        self._run: MeasurementRun | None = None
        self._activity = ""
        self._start_after_load = False
        self._pacer = FramePacer(_FRAME_SECONDS, _FRAME_SECONDS)
        self._n_lines = 0
        self._scrolled_by_user = False

    def compose(self) -> ComposeResult:
        pair = sanitize(self.measurement.pair_name, multiline=False)
        yield TitleLine(f"{self.measurement.heading}  {pair}")
        with VerticalScroll(id="findings", can_focus=False):
            yield Static("", id="content", markup=False)
        yield KeyLine()

    def on_mount(self) -> None:
        self._load()

    def on_resize(self) -> None:
        self.draw()

    # --- loading --------------------------------------------------------------------------

    def _load(self) -> None:
        """An engine that is already loaded for this pair is reused."""
        self.phase, self.error = "loading", None
        self._activity = "Loading the pair …"
        request = self._options.build_load_request(self.measurement.choice)
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
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self._fail(message.error)

    def _fail(self, error: LocalspecError) -> None:
        """Closes the engine, whose state is unknown: the next start loads it again."""
        self.phase, self.error, self._start_after_load = "failed", error, False
        self._runner.close()
        self.draw()

    # --- running --------------------------------------------------------------------------

    def _start_run(self) -> None:
        engine = self._runner.engine
        self._start_after_load = engine is None
        if engine is None:  # closed by the chat that shares it
            self._load()
            return
        self.phase, self.error, self._scrolled_by_user = "running", None, False
        self.measurement.begin()
        self._run = MeasurementRun(
            lambda should_stop: self.measurement.run(engine, should_stop),
            lambda: self.call_later(self._pacer.call_at_next_frame, self, self._fetch_events),
            self._runner,
        )
        self.query_one("#findings").scroll_home(animate=False)

    def _fetch_events(self) -> None:
        if self._run is None:
            return
        events, has_ended = self._run.fetch()
        for event in events:
            self.measurement.add_event(event)
        if has_ended:
            self.query_one("#findings").scroll_home(animate=False)  # the verdict is at the top
            error, self.phase = self._run.error, "done"
            self.measurement.end(error, is_stopped=self._run.is_stopped())
            if error is not None:
                self._fail(error)
        self.draw()

    # --- drawing --------------------------------------------------------------------------

    def draw(self) -> None:
        width, height = min(self.size.width - 5, 116), self.size.height - 5  # with a scrollbar
        glyphs = self._options.glyphs
        lines = list(error_lines(self.error, width, glyphs)) if self.error is not None else []
        height -= len(lines)
        if self.measurement.has_begun:
            lines += self.measurement.result_lines(width, height, glyphs)
        else:
            lines += self.measurement.option_lines(width, height, glyphs)
            lines.append(self._load_status())
        # A new layout is the expensive part: only if the number of lines has changed.
        content = self.query_one("#content", Static)
        content.update(Content("\n").join(lines), layout=len(lines) != self._n_lines)
        self._n_lines = len(lines)
        if self.phase == "running" and not self._scrolled_by_user:
            self._scroll_to_pointer(lines)
        self.query_one(TitleLine).show_status(self._progress_text())
        self.query_one(KeyLine).show_keys(self._key_hints())

    def _load_status(self) -> Content:
        if self.phase != "loading":
            return Content(self.measurement.extent_text(self._runner.engine))
        suffix = " Starts when loaded." if self._start_after_load else ""
        return Content.styled(f"{self._activity}{suffix}", "$muted")

    def _progress_text(self) -> str:
        if self.phase == "stopping":
            return self.measurement.stopping_text
        if self.phase in ("running", "done"):
            return self.measurement.progress_text(self.size.width, self._options.glyphs)
        return ""

    def _scroll_to_pointer(self, lines: Sequence[Content]) -> None:
        """Keeps the row that is being measured visible."""
        pointer = self._options.glyphs.pointer
        row = next((n for n, line in enumerate(lines) if line.plain.startswith(pointer)), 0)
        findings = self.query_one("#findings")
        findings.scroll_to(y=max(0, row + 2 - findings.size.height), animate=False)

    def _key_hints(self) -> str:
        """The keys that work now; enter first."""
        keymap, start = self._options.keymap, self._enter_hint()
        enter_hint = (
            f"{format_key(keys_for('measuring.start', keymap)[0])} {start}" if start else ""
        )
        has_ended = self.phase in ("done", "failed")
        scroll = "scroll" if has_ended and self._n_lines > self.size.height - 5 else ""
        labels = {
            "measuring.up": scroll,
            "measuring.down": scroll,
            "measuring.start": "",
            "measuring.copy": "copy" if has_ended and self.measurement.report_text else "",
            "measuring.back": {"running": "stop", "stopping": "leave now"}.get(self.phase, "back"),
            **({"app.log": "log", "app.quit": ""} if self.phase == "failed" else {}),
            **self.measurement.key_hints(),
        }
        other_hints = format_footer(keymap, *self.KEY_CONTEXTS, "app", label_overrides=labels)
        return "  ".join(filter(None, (enter_hint, other_hints)))

    def _enter_hint(self) -> str:
        if self.phase == "loading":
            return "cancel start" if self._start_after_load else "start"
        return {"ready": "start", "done": "run again", "failed": "reload"}.get(self.phase, "")

    # --- keys -----------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """The keys of the other measurement do nothing."""
        if action != "press":
            return True
        return BINDINGS_BY_ID[str(parameters[0])].context == self.measurement.key_context

    def action_press(self, binding_id: str) -> None:
        self.measurement.press(binding_id, self)

    def action_start(self) -> None:
        if self.measurement.refusal:
            self.notify(self.measurement.refusal, markup=False)
        elif self.phase in ("ready", "done"):
            self._start_run()
        elif self.phase == "failed":
            self._start_after_load = True
            self._load()
        elif self.phase == "loading":
            self._start_after_load = not self._start_after_load
        self.draw()

    def action_back(self) -> None:
        """Stops the run; again: leaves, and closes the engine if it is still busy."""
        if self._run is not None:
            self._run.stop()
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
        """Whether there is a run to stop."""
        return self.phase == "running"

    def action_stop(self) -> None:
        """Called on ctrl+c."""
        self.action_back()

    def action_move(self, by: int) -> None:
        if self.measurement.has_begun:
            self._scrolled_by_user = True
            self.query_one("#findings").scroll_relative(y=by, animate=False)
        else:
            self.measurement.move_pointer(by)
            self.draw()

    def action_copy(self) -> None:
        self.copy_text(self.measurement.report_text)

    def copy_text(self, text: str) -> None:
        message = clipboard.copy(self.app, text) if text else "Nothing to copy yet."
        self.notify(message, markup=False)


def error_lines(error: LocalspecError, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """The message and hint of an error behind a bar, then a blank line."""
    bar = glyphs.error_bar
    for text, style in ((error.message, "bold $error"), (error.hint, "")):
        for line in wrap_words(text, width - len(bar)):
            yield Content.assemble((bar, "$error"), (line, style))
    yield Content("")
