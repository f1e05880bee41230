"""The chat: transcript, composer, and the panel where one watches the speculation."""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.chat import commands
from localspec.chat.conversation import Turn
from localspec.clean import clean
from localspec.errors import LocalspecError
from localspec.launch import SETTINGS
from localspec.protocol.events import Dead, Event, Notice, Plan
from localspec.tui import slash
from localspec.tui.dialogue import Dialogue, ending
from localspec.tui.keys import bindings
from localspec.tui.messages import (
    AnswerEnded,
    AnswerInspected,
    EngineOpened,
    EngineRefused,
    EngineSpoke,
    EngineTold,
)
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.reading import ReadingScreen
from localspec.tui.screens.settings import SettingsScreen
from localspec.tui.text.turn import Speaker
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.greeting import Greeting
from localspec.tui.widgets.panel import Panel
from localspec.tui.widgets.status import Status
from localspec.tui.widgets.story import Story
from localspec.tui.widgets.transcript import Transcript

FRAME = 0.04
"""Seconds from one drawing of what came to the next: at most 25 a second."""
FIGURES = 0.2
"""Seconds from one drawing of the panel's numbers to the next: nobody reads faster."""
SLOWEST = 0.12
SHARE = 0.15
"""Of a core, that drawing may take while an answer streams."""

_ASK_KEYS = ("f6 edit the question", "f4 settings")
_RELOAD_KEYS = ("enter load it again", "ctrl+l its log", "esc back")
_FINISH_KEY = "f5 load it and finish the answer"


class ChatScreen(ReadingScreen):
    """One chat with one pair.  Threads post, handlers draw."""

    BINDINGS = bindings("chat")
    AUTO_FOCUS = "#composer"  # before the first picture: what is typed at once is not lost

    def __init__(self, dialogue: Dialogue, runner: Runner, options: Options) -> None:
        super().__init__(dialogue, options)
        self.runner = runner
        self.phase = "loading"
        """`loading`, `ready`, `answering`, `inspecting` or `failed`."""
        self._inspected = False
        """Whether the last answer's chances were asked for."""
        self._drawn = 0.0
        self._frame = FRAME
        self._figures_wait = False
        self._spent = 0.0
        self._topic = ""
        self._stopped: float | None = None
        self._waiting: str | None = None
        """Sent before the pair was loaded."""
        self._finish = False
        """Whether the last answer, cut off by a death, is to be written when the pair is there."""

    # --- its parts ------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(Content(self.dialogue.pair), id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with Vertical(id="main"):
                yield Greeting()
                yield Transcript(self.options.glyphs, marks=self.options.marks)
                yield Story(self.options.glyphs)
                yield Composer(self.options.keymap)
            yield Panel(self.options.glyphs)
        yield Status(self.options)

    def on_mount(self) -> None:
        self.query_one(Story).display = False
        for turn in self.dialogue.conversation.turns:
            self._show(turn)
            self.transcript.heard(turn.events)
            self.transcript.end(ending(turn, None))
        self.composer.focus()
        self.load()

    # --- loading --------------------------------------------------------------------------

    def load(self) -> None:
        """Load the pair, as when the screen came, or anew after it died."""
        self.phase = "loading"
        self.transcript.forgive()
        self.runner.open(self.options.wish(self.dialogue.choice), self.post_message)
        self.draw("LOADING")

    @on(EngineTold)
    def _told(self, message: EngineTold) -> None:
        if isinstance(message.event, Plan):
            self.draw("MEASURING, once")
        elif isinstance(message.event, Notice):
            self._notice(message.event)

    @on(EngineOpened)
    async def _opened(self, message: EngineOpened) -> None:
        self.dialogue.opened(message.engine)
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS:  # the greeting says that, where it is in nobody's way
                self._notice(notice)
        self.phase = "ready"
        self.draw()
        if self._finish:
            self._finish = False
            self.transcript.take_back()
            self.dialogue.conversation.restart()
            await self._answer()
        else:
            await self._ask_what_waits()

    async def _ask_what_waits(self) -> None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            await self.ask(waiting)

    @on(EngineRefused)
    def _refused(self, message: EngineRefused) -> None:
        self.phase = "failed"
        if self._waiting is not None:
            self.composer.put(self._waiting)
            self._waiting = None
        self.transcript.fail(message.error, self._reload_keys())
        self.draw("NOT LOADED")

    def _reload_keys(self) -> tuple[str, ...]:
        """What can be done where nothing is loaded."""
        turns = self.dialogue.conversation.turns
        cut_off = bool(turns) and turns[-1].reason is None
        return (_FINISH_KEY, *_RELOAD_KEYS) if cut_off else _RELOAD_KEYS

    def _notice(self, notice: Notice) -> None:
        words = clean(f"{notice.message} {notice.hint}", multiline=False)
        severity = "information" if notice.level == "info" else notice.level
        self.notify(words, severity=severity, markup=False, timeout=8)

    # --- asking ---------------------------------------------------------------------------

    @on(Composer.Sent)
    async def _sent(self, message: Composer.Sent) -> None:
        text = message.text
        call = commands.parse(text)
        if call is not None:
            await slash.carry_out(self, call)
        elif self.phase == "answering":
            self.composer.give_back(text)
            self.notify("Wait for the end of the answer, or stop it with esc.", markup=False)
        elif self.phase in ("loading", "inspecting", "failed"):
            self._wait_with(text)
        else:
            await self.ask(commands.literal(text))

    def _wait_with(self, text: str) -> None:
        """Nothing is loaded, perhaps any more: what was typed goes out when it is."""
        if text.strip():
            self._waiting = f"{self._waiting}\n{text}" if self._waiting else text
        if self.phase == "failed":
            self.load()
        elif self.phase == "inspecting":
            self.runner.stop()
        else:
            self.notify("It goes out as soon as the pair is loaded.", markup=False)

    async def ask(self, text: str) -> None:
        """Begin a turn; an empty one goes on with the text of a completion model."""
        loaded = self.dialogue.loaded
        assert loaded is not None
        if not text.strip() and (loaded.chats or not self.dialogue.conversation.turns):
            self.notify("There is nothing to send yet.", markup=False)
            return
        self.dialogue.conversation.ask(text)
        await self._answer()

    async def _answer(self) -> None:
        self.phase = "answering"
        self._inspected = False
        self._stopped = None
        self._show(self.dialogue.conversation.turns[-1])
        request = self.dialogue.request(self.transcript.tokens)
        self.runner.ask(request, self.post_message)
        self.draw()

    def _show(self, turn: Turn) -> None:
        loaded = self.dialogue.loaded
        assert loaded is not None
        self.transcript.add(turn, Speaker(self.dialogue.model, loaded.thinking, not loaded.chats))

    # --- hearing --------------------------------------------------------------------------

    @on(EngineSpoke)
    async def _spoke(self) -> None:
        """Fetch now, or when the next drawing is due."""
        wait = self._drawn + self._frame - time.monotonic()
        if wait > 0:
            self.set_timer(wait, self._fetch)
        else:
            await self._fetch()

    async def _fetch(self) -> None:
        self._drawn = time.monotonic()
        # What the last drawing cost decides when the next one is: the cores are the engine's.
        spent, self._spent = self._spent, time.thread_time()
        self._frame = min(SLOWEST, max(FRAME, (self._spent - spent) / SHARE))
        events: list[Event] = []
        ended: AnswerEnded | None = None
        for item in self.runner.fetch():
            if isinstance(item, AnswerEnded):
                ended = item
            elif isinstance(item, Notice):
                self._notice(item)
            elif not isinstance(item, Dead):
                events.append(item)
        if events and self.dialogue.conversation.turns:
            self.dialogue.hear(events)
            self.transcript.heard(events)
        if ended is not None:
            await self._ended(ended.error, ended.dead)
        self.draw()

    async def _ended(self, error: LocalspecError | None, dead: bool) -> None:
        turn = self.dialogue.conversation.turns[-1]
        stopped = None
        if self._stopped is not None:
            stopped = (time.monotonic() - self._stopped) * 1e3
        self.phase = "ready"
        self.transcript.end(ending(turn, stopped))
        if error is not None:
            self.phase = "failed" if dead else "ready"
            self.transcript.fail(error, self._reload_keys() if dead else _ASK_KEYS)
        elif self.runner.engine is not None:
            self.dialogue.learn(self.runner.engine)

    def inspect(self) -> None:
        wanted = self.dialogue.inspection()
        if self.phase == "ready" and wanted is not None and not self._inspected:
            self.phase = "inspecting"
            self._inspected = True
            self.runner.inspect(wanted, self.post_message)

    @on(AnswerInspected)
    async def _told_chances(self, message: AnswerInspected) -> None:
        if self.phase != "inspecting":
            return
        self.phase = "ready"
        self.transcript.learn(message.places)
        if message.error is not None:
            self.phase = "failed"
            self.runner.close()
            self.transcript.fail(message.error, self._reload_keys())
        self.draw()
        if self.phase == "ready":
            await self._ask_what_waits()

    def draw(self, state: str = "") -> None:
        """Everything that is not the transcript."""
        dialogue = self.dialogue
        if dialogue.title != self._topic:
            self._topic = dialogue.title
            self.query_one("#topic", Static).update(Content(self._topic), layout=False)
        greeting = self.query_one(Greeting)
        greeting.display = not dialogue.conversation.turns and not self.transcript.failed
        self.transcript.display = not greeting.display
        greeting.draw(dialogue.loaded, dialogue.chosen)
        if state or self.phase != "answering":
            self.query_one(Panel).draw(dialogue.figures, state)
        elif not self._figures_wait:
            self._figures_wait = True
            self.set_timer(FIGURES, self._draw_figures)
        self.query_one(Status).draw(dialogue, self.phase, self.transcript)

    def _draw_figures(self) -> None:
        self._figures_wait = False
        self.query_one(Panel).draw(self.dialogue.figures)

    @on(Transcript.Followed)
    def _followed(self) -> None:
        self.draw()

    # --- keys -----------------------------------------------------------------------------

    def action_stop(self) -> None:
        if self.phase == "answering":
            if self._stopped is None:
                self._stopped = time.monotonic()
                self.transcript.note("stopping …")
            self.runner.stop()
        elif self.phase == "loading" or not self.composer.text:
            if len(self.app.screen_stack) > 1:  # not where it is the first
                self.dismiss()
        else:
            self.composer.put("")

    def action_panel(self) -> None:
        panel = self.query_one(Panel)
        self.options.panel = not panel.display
        self.set_class(self.options.panel, "-panel")
        self.set_class(not self.options.panel, "-no-panel")

    def action_settings(self) -> None:
        def changed(_: object) -> None:
            self.draw()

        self.app.push_screen(SettingsScreen(self.dialogue), changed)

    async def action_again(self) -> None:
        """Write the last answer again; the one that a death cut off, with its seed."""
        turns = self.dialogue.conversation.turns
        if self.phase == "failed":
            self._finish = bool(turns) and turns[-1].reason is None
            self.load()
        elif self.phase == "ready" and turns:
            self.transcript.take_back()
            self.dialogue.conversation.again()
            await self._answer()

    async def action_edit(self) -> None:
        """The last question, back in the composer."""
        # Not while its chances are looked up: they would be taken for another answer's.
        if self.phase not in ("answering", "inspecting") and self.dialogue.conversation.turns:
            self.transcript.take_back()
            self.composer.put(self.dialogue.conversation.take_back().question)
            self.composer.focus()
            self.draw()

    async def action_new(self) -> None:
        if self.phase in ("answering", "inspecting"):
            self.notify("Stop the answer first: esc.", markup=False)
            return
        self.dialogue.clear()
        self.transcript.clear()
        self.composer.focus()
        self.draw()
