"""What the bench and verify screens share: a pair is loaded, measured on a thread, and told."""

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

from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.launch import SETTINGS, Choice
from localspec.protocol.events import Notice, Plan, Ready
from localspec.tui import clipping
from localspec.tui.keys import Where, fitting, footer, keys_of, name
from localspec.tui.later import later
from localspec.tui.measuring.experiment import Ended, Experiment, ExperimentSpoke
from localspec.tui.measuring.paragraphs import failure
from localspec.tui.messages import EngineOpened, EngineRefused, EngineTold
from localspec.tui.middle import Middle
from localspec.tui.options import Options
from localspec.tui.runner import Inspecting, Runner

FRAME = 0.25
"""Seconds from one drawing to the next: nobody reads faster, and drawing would slow the engine."""

Told = TypeVar("Told")
Phase = Literal["loading", "ready", "running", "stopping", "done", "failed"]


class MeasuringScreen(Middle, Screen[None], Generic[Told]):
    """The pair is loaded while one looks at what will be done with it; nothing begins by itself."""

    WHAT = ""
    PLACES: tuple[Where, ...]
    """Of its keys, its own before the shared ones."""

    def __init__(self, name: str, choice: Choice, runner: Runner, options: Options) -> None:
        """`name`: what the pair goes by."""
        super().__init__()
        self.pair_name, self.choice = clean(name, multiline=False), choice
        self.runner, self.options = runner, options
        self.phase: Phase = "loading"
        self.experiment: Experiment[Told] | None = None
        self.error: LocalspecError | None = None
        self.ready: Ready | None = None
        """What is loaded, or was."""
        self._doing = "Loading the pair …"
        self._wanted = False
        """Started before the pair was loaded."""
        self._drawn = 0.0
        self._waits = False
        self._lines = 0
        self._tall = False
        """Whether there is more than there is room for."""
        self._moved = False
        """Whether somebody looks elsewhere than where it is."""

    # --- what differs ---------------------------------------------------------------------

    def make(self, engine: Inspecting, stopped: Callable[[], bool]) -> Iterator[Told]:
        """On a thread: what is told one by one."""
        raise NotImplementedError

    def take(self, told: Told) -> None:
        raise NotImplementedError

    def lines(self, width: int, height: int) -> Iterator[Content]:
        """What is shown at this moment."""
        raise NotImplementedError

    def whole(self) -> None:
        """It came to its end by itself."""

    def progress(self) -> str:
        """In the title, at the right."""
        return ""

    def keys_now(self) -> Mapping[str, str]:
        """Words of the keys that do something now, beside the shared ones."""
        return {}

    def refusal(self) -> str:
        """Why it cannot be started; empty where it can."""
        return ""

    def point(self, by: int) -> None:
        """Move what one stands on, before it is started."""

    def findings(self) -> str:
        """To be copied; empty where there is nothing."""
        return ""

    # --- its parts ------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(Content(f"{self.WHAT}  {self.pair_name}"), id="brand", markup=False)
            yield Static("", id="machine", markup=False)
        with VerticalScroll(id="findings", can_focus=False):
            yield Static("", id="told", markup=False)
        yield Static("", id="hints", markup=False)

    def on_mount(self) -> None:
        self.load()

    def on_resize(self) -> None:
        self.draw()

    def load(self) -> None:
        """A pair that is loaded already is taken as it is: never two at once."""
        self.phase, self.error = "loading", None
        self._doing = "Loading the pair …"
        self.runner.open(self.options.wish(self.choice), self.post_message)
        self.draw()

    @on(EngineTold)
    def _told(self, message: EngineTold) -> None:
        if isinstance(message.event, Plan):
            self._doing = "Measuring what its passes cost, once …"
            self.draw()
        elif isinstance(message.event, Notice):
            self._notice(message.event)

    @on(EngineOpened)
    def _opened(self, message: EngineOpened) -> None:
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS and notice.level != "info":
                self._notice(notice)
        self.phase, self.ready = "ready", message.engine.ready
        if self._wanted:
            self._begin()
        self.draw()

    @on(EngineRefused)
    def _refused(self, message: EngineRefused) -> None:
        self._fail(message.error)

    def _notice(self, notice: Notice) -> None:
        words = clean(f"{notice.message} {notice.hint}", multiline=False)
        severity = "information" if notice.level == "info" else notice.level
        self.notify(words, severity=severity, markup=False, timeout=8)

    def _fail(self, error: LocalspecError) -> None:
        """The engine may be gone, or in the middle of something: the next try loads it anew."""
        self.phase, self.error, self._wanted = "failed", error, False
        self.runner.close()
        self.draw()

    # --- running --------------------------------------------------------------------------

    def action_start(self) -> None:
        if why := self.refusal():
            self.notify(why, markup=False)
        elif self.phase in ("ready", "done"):
            self._begin()
        elif self.phase == "failed":
            self._wanted = True
            self.load()
        elif self.phase == "loading":
            self._wanted = not self._wanted
        self.draw()

    def _begin(self) -> None:
        engine = self.runner.engine
        if engine is None:  # closed by whoever shares it
            self._wanted = True
            self.load()
            return
        self._wanted = False
        self.phase, self.error, self._moved = "running", None, False
        self.began()
        self.experiment = Experiment(lambda stopped: self.make(engine, stopped), self.post_message)
        self.query_one("#findings").scroll_home(animate=False)

    def began(self) -> None:
        """Forget what was found before."""

    @on(ExperimentSpoke)
    def _spoke(self) -> None:
        """Fetch now, or when the next drawing is due."""
        if self._waits:
            return
        wait = self._drawn + FRAME - time.monotonic()
        if wait > 0:
            self._waits = True
            later(self, wait, self._fetch)
        else:
            self._fetch()

    def _fetch(self) -> None:
        self._waits = False
        self._drawn = time.monotonic()
        if self.experiment is None:
            return
        for told in self.experiment.fetch():
            if isinstance(told, Ended):
                self._ended(told.error)
            else:
                self.take(told)
        self.draw()

    def _ended(self, error: LocalspecError | None) -> None:
        error = error or self.error
        self.query_one("#findings").scroll_home(animate=False)  # what it comes to stands first
        if error is not None:
            self._fail(error)
            return
        if self.experiment is not None and not self.experiment.stopped:
            self.whole()
        self.phase = "done"

    # --- drawing --------------------------------------------------------------------------

    def draw(self) -> None:
        width = min(self.size.width - 5, 116)  # the padding, and a scrollbar
        glyphs = self.options.glyphs
        lines = list(failure(self.error, width, glyphs)) if self.error is not None else []
        lines += self.lines(width, self.size.height - 5 - len(lines))
        self._tall = len(lines) > self.size.height - 5
        # Laid out anew only where it is longer or shorter: that is what drawing costs.
        told = self.query_one("#told", Static)
        told.update(Content("\n").join(lines), layout=len(lines) != self._lines)
        self._lines = len(lines)
        if self.phase == "running" and not self._moved:
            self._follow(lines)
        self.query_one("#machine", Static).update(Content(self.progress()), layout=False)
        hints = Content(fitting(self._hints(), self.size.width - 4))
        self.query_one("#hints", Static).update(hints, layout=False)

    def _follow(self, lines: Sequence[Content]) -> None:
        """Keep what is being measured in sight."""
        pointer = self.options.glyphs.pointer
        at = next((n for n, line in enumerate(lines) if line.plain.startswith(pointer)), 0)
        found = self.query_one("#findings")
        found.scroll_to(y=max(0, at + 2 - found.size.height), animate=False)

    def waiting(self, ready: str) -> Content:
        """While the pair is loaded what is done; then `ready`."""
        if self.phase != "loading":
            return Content(ready)
        then = " Then it starts." if self._wanted else ""
        return Content.styled(f"{self._doing}{then}", "$muted")

    def _hints(self) -> str:
        """The keys that do something now, what enter does first."""
        own, start = self.options.keymap, self._start()
        first = f"{name(keys_of('measuring.start', own)[0])} {start}" if start else ""
        rest = footer(own, *self.PLACES, "app", now=self._keys())
        return "  ".join(filter(None, (first, rest)))

    def _start(self) -> str:
        """What enter does."""
        words = {"ready": "start", "done": "again", "failed": "load it again"}
        early = "not yet" if self._wanted else "start"
        return early if self.phase == "loading" else words.get(self.phase, "")

    def _keys(self) -> dict[str, str]:
        """Of the others."""
        over = self.phase in ("done", "failed")
        told = over and bool(self.findings())
        scroll = "scroll" if over and self._tall else ""
        return {
            "measuring.up": scroll,
            "measuring.down": scroll,
            "measuring.start": "",
            "measuring.copy": "copy" if told else "",
            "measuring.back": {"running": "stop", "stopping": "leave now"}.get(self.phase, "back"),
            **({"app.log": "log", "app.quit": ""} if self.phase == "failed" else {}),
        } | dict(self.keys_now())

    # --- keys -----------------------------------------------------------------------------

    def action_back(self) -> None:
        """Stop; once more: leave, and end the engine where it is still at work."""
        if self.phase == "running" and self.experiment is not None:
            self.phase = "stopping"
            self.experiment.stop()
            self.draw()
            return
        if self.experiment is not None:
            self.experiment.stop()
        if self.phase in ("loading", "stopping"):
            self.runner.close()
        if len(self.app.screen_stack) > 1:  # not where it is the first
            self.dismiss()

    @property
    def busy(self) -> bool:
        """Whether there is something to stop."""
        return self.phase == "running"

    def action_stop(self) -> None:
        """As ctrl+c asks."""
        self.action_back()

    def action_move(self, by: int) -> None:
        if self.phase in ("loading", "ready"):
            self.point(by)
            self.draw()
        else:
            self._moved = True
            self.query_one("#findings").scroll_relative(y=by, animate=False)

    def action_copy(self) -> None:
        self.copy(self.findings())

    def copy(self, text: str) -> None:
        if not text:
            self.notify("There is nothing to copy yet.", markup=False)
        else:
            self.notify(clipping.copy(self.app, text), markup=False)
