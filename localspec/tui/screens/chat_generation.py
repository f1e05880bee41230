"""A chat with an engine: it is loaded, asked and heard.  Threads post, handlers draw."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from textual import on
from textual.screen import Screen

from localspec import hints
from localspec.chat.context_window import ContextOverflow
from localspec.chat.conversation import Turn
from localspec.chat.settings import OverflowPolicy
from localspec.chat.thinking import strip_thinking
from localspec.errors import DoesNotFitError, LocalspecError
from localspec.launch import SETTINGS_NOTICE
from localspec.protocol.events import EngineExit, Event, Notice, SpeculationPlan
from localspec.sanitize import sanitize
from localspec.tui import clipboard
from localspec.tui.app_options import AppOptions
from localspec.tui.chat_session import ChatSession, format_branch, format_end_reason
from localspec.tui.engine_runner import (
    AnswerEnded,
    AnswerEventsReady,
    AnswerInspected,
    EngineLoaded,
    EngineLoadEvent,
    EngineLoadFailed,
    EngineRunner,
    InspectableEngine,
    OverflowRequest,
)
from localspec.tui.screens.context_full import ContextFullScreen, OverflowChoice
from localspec.tui.screens.replay import ReplayScreen
from localspec.tui.text.turn_text import Speaker
from localspec.tui.timer import set_reliable_timer
from localspec.tui.widgets.composer import MessageComposer
from localspec.tui.widgets.token_details import TokenDetails
from localspec.tui.widgets.transcript import Transcript

# --- Reading a chat: its transcript scrolled, its tokens looked at, its answers replayed or copied.


class TranscriptScreen(Screen[None]):
    """What a chat's screen can do without an engine; the parts are composed by whoever has one."""

    def __init__(self, session: ChatSession, options: AppOptions) -> None:
        super().__init__()
        self.session = session
        self.options = options

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def composer(self) -> MessageComposer:
        return self.query_one(MessageComposer)

    def draw(self, state: str = "") -> None:
        """Everything that is not the transcript."""
        raise NotImplementedError

    # --- the path -------------------------------------------------------------------------

    def show_turn(self, turn: Turn) -> None:
        """One more, at the end; before a pair is loaded it is taken for a chat model's."""
        loaded = self.session.loaded
        raw = loaded is not None and not loaded.has_chat_template
        name = sanitize(turn.model, multiline=False) or self.session.model_name
        speaker = Speaker(name, self.session.thinking_markers, raw)
        self.transcript.add_turn(turn, speaker, format_branch(self.session.conversation, turn))

    def show_conversation(self) -> None:
        """All turns anew: another branch, or another chat."""
        self.transcript.clear_turns()
        for turn in self.session.conversation.turns:
            self.show_turn(turn)
            self.transcript.add_events(turn.events)
            self.transcript.finish_answer(format_end_reason(turn, None))

    def request_logprobs(self) -> None:
        """Find out the chances of the last answer's tokens, where they are not known."""

    # --- tokens ---------------------------------------------------------------------------

    async def action_tokens(self) -> None:
        """Show or hide how the tokens came."""
        shown = not self.transcript.token_view
        self.query_one(TokenDetails).display = shown
        self.transcript.show_tokens(shown)
        if shown:
            self.request_logprobs()
        if not self.transcript.is_cursor_active:
            self.composer.focus()
        self.draw()

    def action_walk(self) -> None:
        """From the composer to the tokens, where they are shown; tab leads back."""
        if self.transcript.token_view and self.transcript.turns:
            self.transcript.activate_cursor()
            self.draw()

    @on(Transcript.TokenViewLeft)
    def _focus_composer(self) -> None:
        self.composer.focus()
        self.draw()

    @on(Transcript.TokenSelected)
    def _show_token(self, message: Transcript.TokenSelected) -> None:
        self.set_class(self.transcript.is_cursor_active, "-walking")
        self.query_one(TokenDetails).show_token(
            message.token, message.round, self.transcript.show_marks
        )

    # --- answers --------------------------------------------------------------------------

    def action_replay(self) -> None:
        self._push_replay(len(self.session.conversation.turns) - 1)

    @on(Transcript.ReplayRequested)
    def _replay_requested(self, message: Transcript.ReplayRequested) -> None:
        self._push_replay(message.turn)

    def _push_replay(self, number: int) -> None:
        turns = self.session.conversation.turns
        if 0 <= number < len(turns) and turns[number].rounds:
            turn = turns[number]
            self.app.push_screen(ReplayScreen(turn.question, turn.rounds, self.options))
        else:
            self.notify("There is no answer to replay yet.", markup=False)

    def action_copy(self) -> None:
        turns = self.session.conversation.turns
        last = turns[-1] if turns else None
        text = (
            strip_thinking(last.answer, self.session.thinking_markers, last.starts_in_thinking)
            if last
            else ""
        )
        if text:
            self.notify(clipboard.copy(self.app, text), markup=False)
        else:
            self.notify("There is no answer to copy yet.", markup=False)

    def action_thinking(self) -> None:
        """The setting itself, which is kept with the chat."""
        self.session.change_settings(show_thinking=not self.session.settings.show_thinking)
        self.draw()

    def apply_preferences(self) -> None:
        """Something was changed in the preferences."""
        if self.transcript.show_marks != self.options.show_token_marks:
            self.transcript.toggle_marks()

    # --- scrolling ------------------------------------------------------------------------

    def action_page_up(self) -> None:
        self.transcript.scroll_page_up(animate=False)

    def action_page_down(self) -> None:
        self.transcript.scroll_page_down(animate=False)

    def action_top(self) -> None:
        self.transcript.scroll_home(animate=False)

    def action_end(self) -> None:
        self.transcript.follow_end()


# --- A chat with an engine: it is loaded, asked and heard.  Threads post, handlers draw.

FRAME_SECONDS = 0.04
"""Seconds from one drawing of what came to the next: at most 25 a second."""
MAX_FRAME_SECONDS = 0.12
MAX_DRAWING_SHARE = 0.15
"""Of a core, that drawing may take while an answer streams."""

_RETRY_HINTS = ("f6 edit the question", "f4 settings")
_RELOAD_HINTS = ("enter load it again", "ctrl+l its log", "esc back")
_FORCE_LOAD_HINTS = ("/anyway load it all the same",)
_FINISH_ANSWER_HINT = "f5 load it and finish the answer"


class GenerationScreen(TranscriptScreen):
    """Everything of a chat that waits for an engine; how it looks is left to others."""

    def __init__(self, session: ChatSession, runner: EngineRunner, options: AppOptions) -> None:
        super().__init__(session, options)
        self.runner = runner
        self.phase = "loading"
        """`loading`, `ready`, `answering`, `inspecting` or `failed`."""
        self._logprobs_requested = False
        """Whether the last answer's chances were asked for."""
        self._last_draw = 0.0
        self._frame_seconds = FRAME_SECONDS
        self._cpu_seconds = 0.0
        self._stop_time: float | None = None
        self._queued_text: str | None = None
        """Sent before the pair was loaded."""
        self._overflow_request: OverflowRequest | None = None
        """The last that a thread waited for."""
        self._finish_after_load = False
        """Whether the last answer, cut off by a death, is to be written when the pair is there."""

    # --- loading --------------------------------------------------------------------------

    def load(self) -> None:
        """Load the pair, as when the screen came, or anew after it died."""
        self.phase = "loading"
        self.transcript.clear_error()
        self.runner.load(self.options.build_load_request(self.session.choice), self.post_message)
        self.draw("LOADING")

    @on(EngineLoadEvent)
    def _show_load_progress(self, message: EngineLoadEvent) -> None:
        if isinstance(message.event, SpeculationPlan):
            self.draw("MEASURING, once")
        elif isinstance(message.event, Notice):
            self._show_notice(message.event)

    @on(EngineLoaded)
    async def _engine_ready(self, message: EngineLoaded) -> None:
        first = self.session.loaded is None
        self.session.attach_engine(message.engine)
        if first and self.session.conversation.turns:  # now it is known how they read
            self.show_conversation()
        for notice in message.engine.ready.notices:
            if (
                notice.code != SETTINGS_NOTICE
            ):  # the greeting says that, where it is in nobody's way
                self._show_notice(notice)
        self.phase = "ready"
        self.draw()
        if self._finish_after_load:
            self._finish_after_load = False
            await self._generate(self.session.restart_answer)
        else:
            await self._send_queued()

    async def _send_queued(self) -> None:
        if self._queued_text is not None:
            waiting, self._queued_text = self._queued_text, None
            await self.send(waiting)

    @on(EngineLoadFailed)
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self.phase = "failed"
        if self._queued_text is not None:
            self.composer.replace_text(self._queued_text)
            self._queued_text = None
        small = isinstance(message.error, DoesNotFitError)
        self.transcript.show_error(
            message.error, (*_FORCE_LOAD_HINTS * small, *self._reload_hints())
        )
        self.draw("NOT LOADED")

    def _reload_hints(self) -> tuple[str, ...]:
        """What can be done where nothing is loaded."""
        turns = self.session.conversation.turns
        cut_off = bool(turns) and turns[-1].finish_reason is None
        return (_FINISH_ANSWER_HINT, *_RELOAD_HINTS) if cut_off else _RELOAD_HINTS

    def _show_notice(self, notice: Notice) -> None:
        words = sanitize(hints.for_screen(f"{notice.message} {notice.hint}"), multiline=False)
        severity = "information" if notice.level == "info" else notice.level
        self.notify(words, severity=severity, markup=False, timeout=8)

    # --- asking ---------------------------------------------------------------------------

    async def send(self, text: str) -> None:
        """Begin a turn; an empty one goes on with the text of a completion model."""
        loaded = self.session.loaded
        assert loaded is not None
        if not text.strip() and (loaded.has_chat_template or not self.session.conversation.turns):
            self.notify("There is nothing to send yet.", markup=False)
            return
        if not await self._generate(lambda: self.session.ask(text)):
            self.composer.restore_text(text)

    async def _generate(self, begin_turn: Callable[[], None]) -> bool:
        """Kept before it is shown as sent; False where that is refused: all is as it was."""
        shown = len(self.session.conversation.turns)
        try:
            begin_turn()
        except LocalspecError as error:
            words = sanitize(f"{error.message} {error.hint}", multiline=False)
            self.notify(words, severity="warning", markup=False)
            return False
        if len(self.session.conversation.turns) == shown:  # in the place of the last
            self.transcript.remove_last_turn()
        self.phase = "answering"
        self._logprobs_requested = False
        self._stop_time = None
        self.show_turn(self.session.conversation.turns[-1])
        self.session.stats.start_answer()
        keeper, probabilities = self.session.recorder, self.transcript.token_view

        def write(engine: InspectableEngine) -> Iterator[Event]:
            return self.session.stream_answer(
                engine,
                self._ask_overflow,
                lambda: bool(self._stop_time),
                probabilities=probabilities,
            )

        self.runner.start_answer(
            write, self.post_message, lambda event: keeper.record_events((event,))
        )
        self.draw()
        return True

    def _ask_overflow(self, full: ContextOverflow) -> OverflowPolicy:
        """On the thread that writes: what the person says."""
        question = OverflowRequest(full)
        self._overflow_request = question
        return question.wait() if self.post_message(question) else "stop"

    @on(OverflowRequest)
    def _show_context_full(self, message: OverflowRequest) -> None:
        def on_dismiss(choice: OverflowChoice | None) -> None:
            choice = choice or OverflowChoice("stop")
            if choice.always:
                self.session.change_settings(overflow=choice.overflow)
            message.answer(choice.overflow)

        self.app.push_screen(ContextFullScreen(message.full), on_dismiss)

    def on_unmount(self) -> None:
        self.session.recorder.finish_answer()
        if self._overflow_request is not None:  # nobody waits for what nobody is asked any more
            self._overflow_request.answer("stop")

    # --- hearing --------------------------------------------------------------------------

    @on(AnswerEventsReady)
    async def _schedule_fetch(self) -> None:
        """Fetch now, or when the next drawing is due."""
        wait = self._last_draw + self._frame_seconds - time.monotonic()
        if wait > 0:
            set_reliable_timer(self, wait, self._fetch_events)
        else:
            await self._fetch_events()

    async def _fetch_events(self) -> None:
        self._last_draw = time.monotonic()
        # What the last drawing cost decides when the next one is: the cores are the engine's.
        spent, self._cpu_seconds = self._cpu_seconds, time.thread_time()
        self._frame_seconds = min(
            MAX_FRAME_SECONDS, max(FRAME_SECONDS, (self._cpu_seconds - spent) / MAX_DRAWING_SHARE)
        )
        events: list[Event] = []
        ended: AnswerEnded | None = None
        for item in self.runner.take_events():
            if isinstance(item, AnswerEnded):
                ended = item
            elif isinstance(item, Notice):
                self._show_notice(item)
            elif not isinstance(item, EngineExit):
                events.append(item)
        if events and self.session.conversation.turns:
            self.session.apply_events(events)
            self.transcript.add_events(events)
        if ended is not None:
            await self._finish_answer(ended.error, ended.engine_died)
        self.draw()

    async def _finish_answer(self, error: LocalspecError | None, dead: bool) -> None:
        turn = self.session.conversation.turns[-1]
        stopped = None
        if self._stop_time is not None:
            stopped = (time.monotonic() - self._stop_time) * 1e3
        self.phase = "ready"
        self.session.recorder.finish_answer()
        self.transcript.finish_answer(format_end_reason(turn, stopped))
        if error is not None:
            self.phase = "failed" if dead else "ready"
            self.transcript.show_error(error, self._reload_hints() if dead else _RETRY_HINTS)
        elif self.runner.engine is not None:
            self.session.update_plain_speed(self.runner.engine)

    def request_logprobs(self) -> None:
        wanted = self.session.build_inspect_request()
        if self.phase == "ready" and wanted is not None and not self._logprobs_requested:
            self.phase = "inspecting"
            self._logprobs_requested = True
            self.runner.inspect(wanted, self.post_message)

    @on(AnswerInspected)
    async def _show_logprobs(self, message: AnswerInspected) -> None:
        if self.phase != "inspecting":
            return
        self.phase = "ready"
        self.transcript.set_logprobs(message.token_logprobs)
        if message.error is not None:
            self.phase = "failed"
            self.runner.close()
            self.transcript.show_error(message.error, self._reload_hints())
        self.draw()
        if self.phase == "ready":
            await self._send_queued()
