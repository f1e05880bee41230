"""A chat with an engine: it is loaded, asked and heard.  Threads post, handlers draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from textual import on

from localspec import flags
from localspec.chat.context import Full
from localspec.chat.fields import Overflow
from localspec.clean import clean
from localspec.errors import DoesNotFitError, LocalspecError
from localspec.launch import SETTINGS
from localspec.protocol.events import Dead, Event, Notice, Plan
from localspec.tui.dialogue import Dialogue, ending
from localspec.tui.later import later
from localspec.tui.messages import (
    AnswerEnded,
    AnswerInspected,
    EngineOpened,
    EngineRefused,
    EngineSpoke,
    EngineTold,
    RoomWanted,
)
from localspec.tui.options import Options
from localspec.tui.runner import Inspecting, Runner
from localspec.tui.screens.reading import ReadingScreen
from localspec.tui.screens.room import Chosen, RoomScreen

FRAME = 0.04
"""Seconds from one drawing of what came to the next: at most 25 a second."""
SLOWEST = 0.12
SHARE = 0.15
"""Of a core, that drawing may take while an answer streams."""

_ASK_KEYS = ("f6 edit the question", "f4 settings")
_RELOAD_KEYS = ("enter load it again", "ctrl+l its log", "esc back")
_ANYWAY = ("/anyway load it all the same",)
_FINISH_KEY = "f5 load it and finish the answer"


class AnsweringScreen(ReadingScreen):
    """Everything of a chat that waits for an engine; how it looks is left to others."""

    def __init__(self, dialogue: Dialogue, runner: Runner, options: Options) -> None:
        super().__init__(dialogue, options)
        self.runner = runner
        self.phase = "loading"
        """`loading`, `ready`, `answering`, `inspecting` or `failed`."""
        self._inspected = False
        """Whether the last answer's chances were asked for."""
        self._drawn = 0.0
        self._frame = FRAME
        self._spent = 0.0
        self._stopped: float | None = None
        self._waiting: str | None = None
        """Sent before the pair was loaded."""
        self._question: RoomWanted | None = None
        """The last that a thread waited for."""
        self._finish = False
        """Whether the last answer, cut off by a death, is to be written when the pair is there."""

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
        first = self.dialogue.loaded is None
        self.dialogue.opened(message.engine)
        if first and self.dialogue.conversation.turns:  # now it is known how they read
            self.show_path()
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS:  # the greeting says that, where it is in nobody's way
                self._notice(notice)
        self.phase = "ready"
        self.draw()
        if self._finish:
            self._finish = False
            await self._answer(self.dialogue.restart)
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
        small = isinstance(message.error, DoesNotFitError)
        self.transcript.fail(message.error, (*_ANYWAY * small, *self._reload_keys()))
        self.draw("NOT LOADED")

    def _reload_keys(self) -> tuple[str, ...]:
        """What can be done where nothing is loaded."""
        turns = self.dialogue.conversation.turns
        cut_off = bool(turns) and turns[-1].reason is None
        return (_FINISH_KEY, *_RELOAD_KEYS) if cut_off else _RELOAD_KEYS

    def _notice(self, notice: Notice) -> None:
        words = clean(flags.in_words(f"{notice.message} {notice.hint}"), multiline=False)
        severity = "information" if notice.level == "info" else notice.level
        self.notify(words, severity=severity, markup=False, timeout=8)

    # --- asking ---------------------------------------------------------------------------

    async def ask(self, text: str) -> None:
        """Begin a turn; an empty one goes on with the text of a completion model."""
        loaded = self.dialogue.loaded
        assert loaded is not None
        if not text.strip() and (loaded.chats or not self.dialogue.conversation.turns):
            self.notify("There is nothing to send yet.", markup=False)
            return
        if not await self._answer(lambda: self.dialogue.ask(text)):
            self.composer.give_back(text)

    async def _answer(self, begin: Callable[[], None]) -> bool:
        """Kept before it is shown as sent; False where that is refused: all is as it was."""
        shown = len(self.dialogue.conversation.turns)
        try:
            begin()
        except LocalspecError as error:
            words = clean(f"{error.message} {error.hint}", multiline=False)
            self.notify(words, severity="warning", markup=False)
            return False
        if len(self.dialogue.conversation.turns) == shown:  # in the place of the last
            self.transcript.take_back()
        self.phase = "answering"
        self._inspected = False
        self._stopped = None
        self.show_turn(self.dialogue.conversation.turns[-1])
        self.dialogue.figures.begin()
        keeper, probabilities = self.dialogue.keeper, self.transcript.tokens

        def write(engine: Inspecting) -> Iterator[Event]:
            return self.dialogue.writer(
                engine, self._choose, lambda: bool(self._stopped), probabilities=probabilities
            )

        self.runner.ask(write, self.post_message, lambda event: keeper.heard((event,)))
        self.draw()
        return True

    def _choose(self, full: Full) -> Overflow:
        """On the thread that writes: what the person says."""
        question = RoomWanted(full)
        self._question = question
        return question.wait() if self.post_message(question) else "stop"

    @on(RoomWanted)
    def _ask_for_room(self, message: RoomWanted) -> None:
        def chosen(wish: Chosen | None) -> None:
            wish = wish or Chosen("stop")
            if wish.always:
                self.dialogue.change(overflow=wish.wish)
            message.answer(wish.wish)

        self.app.push_screen(RoomScreen(message.full), chosen)

    def on_unmount(self) -> None:
        self.dialogue.keeper.ended()
        if self._question is not None:  # nobody waits for what nobody is asked any more
            self._question.answer("stop")

    # --- hearing --------------------------------------------------------------------------

    @on(EngineSpoke)
    async def _spoke(self) -> None:
        """Fetch now, or when the next drawing is due."""
        wait = self._drawn + self._frame - time.monotonic()
        if wait > 0:
            later(self, wait, self._fetch)
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
        self.dialogue.keeper.ended()
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
