"""The chat: transcript, composer, and the panel where one watches the speculation."""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.chat import commands
from localspec.tui import slash
from localspec.tui.dialogue import Dialogue
from localspec.tui.keys import bindings
from localspec.tui.later import later
from localspec.tui.middle import MiddleColumn
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.answering import AnsweringScreen
from localspec.tui.screens.settings import SettingsScreen
from localspec.tui.screens.turns import TurnsScreen, Wanted
from localspec.tui.text.turn import attached
from localspec.tui.widgets.composer import Composer
from localspec.tui.widgets.greeting import Greeting
from localspec.tui.widgets.panel import Panel
from localspec.tui.widgets.status import Status
from localspec.tui.widgets.story import Story
from localspec.tui.widgets.transcript import Transcript

FIGURES = 0.2
"""Seconds from one drawing of the panel's numbers to the next: nobody reads faster."""


class ChatScreen(AnsweringScreen):
    """One chat with one pair."""

    BINDINGS = bindings("chat")
    PLACES = ("chat",)
    AUTO_FOCUS = "#composer"  # before the first picture: what is typed at once is not lost

    def __init__(self, dialogue: Dialogue, runner: Runner, options: Options) -> None:
        super().__init__(dialogue, runner, options)
        self._figures_wait = False
        self._topic = ""

    # --- its parts ------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(Content(self.dialogue.pair), id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with MiddleColumn(id="main"):
                yield Greeting()
                yield Transcript(self.options.glyphs, marks=self.options.marks)
                yield Story(self.options.glyphs)
                yield Static("", id="attached", markup=False)
                with Vertical(id="typing"):
                    yield Composer(self.options.keymap)
            yield Panel(self.options.glyphs)
        yield Status(self.options)

    def on_mount(self) -> None:
        self.query_one(Story).display = False
        self.show_path()
        self.composer.focus()
        self.load()

    # --- typing ---------------------------------------------------------------------------

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

    # --- drawing --------------------------------------------------------------------------

    def draw(self, state: str = "") -> None:
        """Everything that is not the transcript."""
        dialogue = self.dialogue
        self.transcript.show_thinking(dialogue.settings.show_thinking)
        for notice in dialogue.news():
            self._notice(notice)
        topic = self._private() + dialogue.title
        if topic != self._topic:
            self._topic = topic
            self.query_one("#topic", Static).update(Content(self._topic), layout=False)
        waiting = self.query_one("#attached", Static)
        waiting.display = bool(dialogue.attached)
        if dialogue.attached:
            files = "   ".join(attached(file) for file in dialogue.attached)
            waiting.update(Content(f"{files}   /read - takes them away"))
        greeting = self.query_one(Greeting)
        greeting.display = not dialogue.conversation.turns and not self.transcript.failed
        self.transcript.display = not greeting.display
        greeting.draw(dialogue.loaded, dialogue.chosen)
        if state or self.phase != "answering":
            self.query_one(Panel).draw(dialogue.figures, state)
        elif not self._figures_wait:
            self._figures_wait = True
            later(self, FIGURES, self._draw_figures)
        self.query_one(Status).draw(dialogue, self.phase, self.transcript)

    def _private(self) -> str:
        """A word before the title where the chat is not kept."""
        keeps = self.options.chats is None or self.dialogue.keeper.on
        return "" if keeps else f"not saved {self.options.glyphs.dot} "

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
            self.dialogue.moved()
            self.draw()

        self.app.push_screen(SettingsScreen(self.dialogue), changed)

    async def action_again(self) -> None:
        """Write the last answer again; the one that a death cut off, with its seed."""
        turns = self.dialogue.conversation.turns
        if self.phase == "failed":
            self._finish = bool(turns) and turns[-1].reason is None
            self.load()
        elif self.phase == "ready" and turns:
            await self._answer(self.dialogue.again)

    async def action_edit(self) -> None:
        """The last question, back in the composer."""
        # Not while its chances are looked up: they would be taken for another answer's.
        if self.phase not in ("answering", "inspecting") and self.dialogue.conversation.turns:
            self.transcript.take_back()
            self.composer.put(self.dialogue.take_back())
            self.composer.focus()
            self.draw()

    def action_turns(self) -> None:
        """The sheet of turns: earlier questions, other branches."""
        if self._busy():
            return
        dialogue = self.dialogue
        before = [turn.id for turn in dialogue.conversation.turns]

        async def left(wanted: Wanted | None) -> None:
            if before != [turn.id for turn in dialogue.conversation.turns]:
                self.show_path()
                dialogue.moved()
            if wanted is not None:
                await self._go_back(wanted)
            self.draw()

        sheet = TurnsScreen(dialogue.conversation, self.options.glyphs, dialogue.thinking)
        self.app.push_screen(sheet, left)

    async def _go_back(self, wanted: Wanted) -> None:
        """What comes after the turn stays a branch."""
        question = self.dialogue.take_back(wanted.turn)
        self.show_path()
        if wanted.what == "edit" or self.phase != "ready":
            self.composer.put(question)
            self.composer.focus()
        else:
            await self.ask(question)

    @property
    def busy(self) -> bool:
        """Whether there is something to stop."""
        return self.phase == "answering"

    def _busy(self) -> bool:
        if self.phase not in ("answering", "inspecting"):
            return False
        self.notify("Stop the answer first: esc.", markup=False)
        return True

    def action_bench(self) -> None:
        """With the engine that is loaded; what it has read of this chat it reads again later."""
        from localspec.tui.screens.bench import BenchScreen  # noqa: PLC0415  most chats need none

        if self._busy():
            return
        if self.phase == "loading":
            self.notify("Wait until the pair is loaded.", markup=False)
            return

        def left(_: None) -> None:
            if self.runner.engine is None:
                self.load()

        self.app.push_screen(
            BenchScreen(self.dialogue.pair, self.dialogue.choice, self.runner, self.options), left
        )

    def action_new(self, private: bool = False) -> None:
        if self._busy():
            return
        private = private or (self.options.chats is not None and self.options.chats.private)
        self.dialogue.clear(private=private)
        self.transcript.clear()
        self.composer.focus()
        self.draw()
