"""Base class of the bench and verify screens: loads a pair and runs a measurement on a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, Literal, TypeVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.errors import LocalspecError
from localspec.launch import SETTINGS_NOTICE, ResolvedPair
from localspec.protocol.events import EngineReady, Notice, SpeculationPlan
from localspec.sanitize import sanitize
from localspec.tui import clipboard
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredLayout
from localspec.tui.engine_runner import (
    EngineLoaded,
    EngineLoadEvent,
    EngineLoadFailed,
    EngineRunner,
    InspectableEngine,
)
from localspec.tui.glyphs import Glyphs
from localspec.tui.key_bindings import KeyContext, fit_footer, format_footer, format_key, keys_for
from localspec.tui.screens.background import BackgroundItemsReady, BackgroundRun, BackgroundRunEnded
from localspec.tui.timer import set_reliable_timer

FRAME_SECONDS = 0.25
"""Minimum time between two redraws: drawing takes time from the engine."""

ResultT = TypeVar("ResultT")
MeasurementPhase = Literal["loading", "ready", "running", "stopping", "done", "failed"]


class MeasurementScreen(CenteredLayout, Screen[None], Generic[ResultT]):
    """The pair loads while its options are shown; the measurement starts with a key only."""

    HEADING = ""
    KEY_CONTEXTS: tuple[KeyContext, ...]
    """Of the screen's keys: its own before the shared ones."""

    def __init__(
        self, pair_name: str, choice: ResolvedPair, runner: EngineRunner, options: AppOptions
    ) -> None:
        super().__init__()
        self.pair_name, self.choice = sanitize(pair_name, multiline=False), choice
        self.runner, self.options = runner, options
        self.phase: MeasurementPhase = "loading"
        self.background_run: BackgroundRun[ResultT] | None = None
        self.error: LocalspecError | None = None
        self.ready: EngineReady | None = None
        self._activity = "Loading the pair …"
        self._start_after_load = False
        self._last_draw = 0.0
        self._fetch_scheduled = False
        self._n_lines = 0
        self._is_scrollable = False
        self._scrolled_by_user = False

    # --- for subclasses -------------------------------------------------------------------

    def run_measurement(
        self, engine: InspectableEngine, stopped: Callable[[], bool]
    ) -> Iterator[ResultT]:
        """Called on a thread; yields results as they come."""
        raise NotImplementedError

    def add_result(self, result: ResultT) -> None:
        raise NotImplementedError

    def content_lines(self, width: int, height: int) -> Iterator[Content]:
        raise NotImplementedError

    def mark_complete(self) -> None:
        """Called when the measurement ended without being stopped."""

    def progress_text(self) -> str:
        """Shown in the title, at the right."""
        return ""

    def active_key_hints(self) -> Mapping[str, str]:
        """Footer labels of the subclass's keys; empty ones are hidden."""
        return {}

    def start_refusal(self) -> str:
        """Why the measurement cannot start; empty if it can."""
        return ""

    def move_pointer(self, by: int) -> None:
        """Moves the selection before the start."""

    def findings_text(self) -> str:
        """The text that is copied; empty without results."""
        return ""

    # --- loading --------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(Content(f"{self.HEADING}  {self.pair_name}"), id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        with VerticalScroll(id="findings", can_focus=False):
            yield Static("", id="content", markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self.load()

    def on_resize(self) -> None:
        self.draw()

    def load(self) -> None:
        """An engine that is already loaded for this pair is reused."""
        self.phase, self.error = "loading", None
        self._activity = "Loading the pair …"
        self.runner.load(self.options.build_load_request(self.choice), self.post_message)
        self.draw()

    @on(EngineLoadEvent)
    def _show_load_progress(self, message: EngineLoadEvent) -> None:
        if isinstance(message.event, SpeculationPlan):
            self._activity = "Measuring pass times, once …"
            self.draw()
        elif isinstance(message.event, Notice):
            self._show_notice(message.event)

    @on(EngineLoaded)
    def _engine_ready(self, message: EngineLoaded) -> None:
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS_NOTICE and notice.level != "info":
                self._show_notice(notice)
        self.phase, self.ready = "ready", message.engine.ready
        if self._start_after_load:
            self._start_run()
        self.draw()

    @on(EngineLoadFailed)
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self._fail(message.error)

    def _show_notice(self, notice: Notice) -> None:
        text = sanitize(f"{notice.message} {notice.hint}", multiline=False)
        severity = "information" if notice.level == "info" else notice.level
        self.notify(text, severity=severity, markup=False, timeout=8)

    def _fail(self, error: LocalspecError) -> None:
        """Closes the engine, whose state is unknown: the next start loads it again."""
        self.phase, self.error, self._start_after_load = "failed", error, False
        self.runner.close()
        self.draw()

    # --- running --------------------------------------------------------------------------

    def action_start(self) -> None:
        if refusal := self.start_refusal():
            self.notify(refusal, markup=False)
        elif self.phase in ("ready", "done"):
            self._start_run()
        elif self.phase == "failed":
            self._start_after_load = True
            self.load()
        elif self.phase == "loading":
            self._start_after_load = not self._start_after_load
        self.draw()

    def _start_run(self) -> None:
        engine = self.runner.engine
        if engine is None:  # closed by the chat that shares it
            self._start_after_load = True
            self.load()
            return
        self._start_after_load = False
        self.phase, self.error, self._scrolled_by_user = "running", None, False
        self.reset_results()
        self.background_run = BackgroundRun(
            lambda stopped: self.run_measurement(engine, stopped), self.post_message
        )
        self.query_one("#findings").scroll_home(animate=False)

    def reset_results(self) -> None:
        """Discards earlier results."""

    @on(BackgroundItemsReady)
    def _schedule_fetch(self) -> None:
        """Fetches now, or at the next frame."""
        if self._fetch_scheduled:
            return
        wait = self._last_draw + FRAME_SECONDS - time.monotonic()
        if wait > 0:
            self._fetch_scheduled = True
            set_reliable_timer(self, wait, self._fetch_results)
        else:
            self._fetch_results()

    def _fetch_results(self) -> None:
        self._fetch_scheduled = False
        self._last_draw = time.monotonic()
        if self.background_run is None:
            return
        for item in self.background_run.fetch():
            if isinstance(item, BackgroundRunEnded):
                self._run_ended(item.error)
            else:
                self.add_result(item)
        self.draw()

    def _run_ended(self, error: LocalspecError | None) -> None:
        error = error or self.error
        self.query_one("#findings").scroll_home(animate=False)  # the verdict is at the top
        if error is not None:
            self._fail(error)
            return
        if self.background_run is not None and not self.background_run.is_stopped:
            self.mark_complete()
        self.phase = "done"

    # --- drawing --------------------------------------------------------------------------

    def draw(self) -> None:
        width = min(self.size.width - 5, 116)  # the padding, and a scrollbar
        glyphs = self.options.glyphs
        lines = list(error_lines(self.error, width, glyphs)) if self.error is not None else []
        lines += self.content_lines(width, self.size.height - 5 - len(lines))
        self._is_scrollable = len(lines) > self.size.height - 5
        # A new layout is the expensive part: only if the number of lines has changed.
        content = self.query_one("#content", Static)
        content.update(Content("\n").join(lines), layout=len(lines) != self._n_lines)
        self._n_lines = len(lines)
        if self.phase == "running" and not self._scrolled_by_user:
            self._scroll_to_pointer(lines)
        self.query_one("#machine", Static).update(Content(self.progress_text()), layout=False)
        hints = Content(fit_footer(self._key_hints(), self.size.width - 4))
        self.query_one("#hints", Static).update(hints, layout=False)

    def _scroll_to_pointer(self, lines: Sequence[Content]) -> None:
        """Keeps the row that is being measured visible."""
        pointer = self.options.glyphs.pointer
        row = next((n for n, line in enumerate(lines) if line.plain.startswith(pointer)), 0)
        findings = self.query_one("#findings")
        findings.scroll_to(y=max(0, row + 2 - findings.size.height), animate=False)

    def load_status(self, ready_text: str) -> Content:
        """The loading state; `ready_text` once loaded."""
        if self.phase != "loading":
            return Content(ready_text)
        suffix = " Starts when loaded." if self._start_after_load else ""
        return Content.styled(f"{self._activity}{suffix}", "$muted")

    def _key_hints(self) -> str:
        """The keys that work now; enter first."""
        keymap, start = self.options.keymap, self._enter_hint()
        enter_hint = (
            f"{format_key(keys_for('measuring.start', keymap)[0])} {start}" if start else ""
        )
        other_hints = format_footer(
            keymap, *self.KEY_CONTEXTS, "app", label_overrides=self._shared_key_hints()
        )
        return "  ".join(filter(None, (enter_hint, other_hints)))

    def _enter_hint(self) -> str:
        if self.phase == "loading":
            return "cancel start" if self._start_after_load else "start"
        return {"ready": "start", "done": "run again", "failed": "reload"}.get(self.phase, "")

    def _shared_key_hints(self) -> dict[str, str]:
        """Footer labels by key id; empty ones are hidden."""
        has_ended = self.phase in ("done", "failed")
        can_copy = has_ended and bool(self.findings_text())
        scroll = "scroll" if has_ended and self._is_scrollable else ""
        return {
            "measuring.up": scroll,
            "measuring.down": scroll,
            "measuring.start": "",
            "measuring.copy": "copy" if can_copy else "",
            "measuring.back": {"running": "stop", "stopping": "leave now"}.get(self.phase, "back"),
            **({"app.log": "log", "app.quit": ""} if self.phase == "failed" else {}),
        } | dict(self.active_key_hints())

    # --- keys -----------------------------------------------------------------------------

    def action_back(self) -> None:
        """Stops the run; again: leaves, and closes the engine if it is still busy."""
        if self.phase == "running" and self.background_run is not None:
            self.phase = "stopping"
            self.background_run.stop()
            self.draw()
            return
        if self.background_run is not None:
            self.background_run.stop()
        if self.phase in ("loading", "stopping"):
            self.runner.close()
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
        if self.phase in ("loading", "ready"):
            self.move_pointer(by)
            self.draw()
        else:
            self._scrolled_by_user = True
            self.query_one("#findings").scroll_relative(y=by, animate=False)

    def action_copy(self) -> None:
        self.copy_text(self.findings_text())

    def copy_text(self, text: str) -> None:
        if not text:
            self.notify("Nothing to copy yet.", markup=False)
        else:
            self.notify(clipboard.copy(self.app, text), markup=False)


def wrap_text(text: str, width: int) -> Sequence[str]:
    """At least one line."""
    import textwrap  # noqa: PLC0415  not before the first picture

    return textwrap.wrap(text, max(width, 10), break_on_hyphens=False) or [""]


def error_lines(error: LocalspecError, width: int, glyphs: Glyphs) -> Iterator[Content]:
    """The message and hint of an error behind a bar, then a blank line."""
    bar = glyphs.error_bar
    for text, style in ((error.message, "bold $error"), (error.hint, "")):
        for line in wrap_text(sanitize(text, multiline=False), width - len(bar)):
            yield Content.assemble((bar, "$error"), (line, style))
    yield Content("")
