"""The engine side of the chat screen: loading, generating, and reading the transcript.

Threads post messages; only message handlers draw.
"""

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


class TranscriptScreen(Screen[None]):
    """What a chat screen does without an engine: scroll, inspect tokens, replay, copy.

    Subclasses compose the widgets.
    """

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
        """Redraws everything but the transcript."""
        raise NotImplementedError

    # --- turns ----------------------------------------------------------------------------

    def show_turn(self, turn: Turn) -> None:
        """Appends a turn. Until a model is loaded, it is formatted as a chat model's."""
        loaded = self.session.loaded
        raw = loaded is not None and not loaded.has_chat_template
        name = sanitize(turn.model, multiline=False) or self.session.model_name
        speaker = Speaker(name, self.session.thinking_markers, raw)
        self.transcript.add_turn(turn, speaker, format_branch(self.session.conversation, turn))

    def show_conversation(self) -> None:
        """Rebuilds the transcript, for another branch or another chat."""
        self.transcript.clear_turns()
        for turn in self.session.conversation.turns:
            self.show_turn(turn)
            self.transcript.add_events(turn.events)
            self.transcript.finish_answer(format_end_reason(turn, None))

    def request_logprobs(self) -> None:
        """Requests the probabilities of the last answer's tokens unless they are recorded."""

    # --- tokens ---------------------------------------------------------------------------

    async def action_tokens(self) -> None:
        """Shows or hides the token view."""
        show = not self.transcript.token_view
        self.query_one(TokenDetails).display = show
        self.transcript.show_tokens(show)
        if show:
            self.request_logprobs()
        if not self.transcript.is_cursor_active:
            self.composer.focus()
        self.draw()

    def action_walk(self) -> None:
        """Moves the focus from the message box to the tokens; the same key returns."""
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
            self.notify("No answer to replay yet.", markup=False)

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
            self.notify("No answer to copy yet.", markup=False)

    def action_thinking(self) -> None:
        """Changes the chat's setting, which is saved with the chat."""
        self.session.change_settings(show_thinking=not self.session.settings.show_thinking)
        self.draw()

    def apply_preferences(self) -> None:
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


FRAME_SECONDS = 0.04
"""Minimum time between two redraws: at most 25 per second."""
MAX_FRAME_SECONDS = 0.12
MAX_DRAWING_SHARE = 0.15
"""Maximum share of a CPU core for drawing while an answer streams."""

_RETRY_HINTS = ("f6 edit the question", "f4 settings")
_RELOAD_HINTS = ("enter reload", "ctrl+l engine log", "esc back")
_FORCE_LOAD_HINTS = ("/anyway load anyway",)
_FINISH_ANSWER_HINT = "f5 reload and finish the answer"


class GenerationScreen(TranscriptScreen):
    """Loads the engine and generates answers; the layout is left to the subclass."""

    def __init__(self, session: ChatSession, runner: EngineRunner, options: AppOptions) -> None:
        super().__init__(session, options)
        self.runner = runner
        self.phase = "loading"
        """`loading`, `ready`, `answering`, `inspecting` or `failed`."""
        self._logprobs_requested = False
        self._last_draw = 0.0
        self._frame_seconds = FRAME_SECONDS
        self._cpu_seconds = 0.0
        self._stop_time: float | None = None
        self._queued_text: str | None = None
        """Typed before the model was loaded."""
        self._overflow_request: OverflowRequest | None = None
        """The last one posted by the generating thread."""
        self._finish_after_load = False
        """Whether to finish the answer that a crash interrupted."""

    # --- loading --------------------------------------------------------------------------

    def load(self) -> None:
        """Loads the pair, at the start or again after a failure."""
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
        is_first_load = self.session.loaded is None
        self.session.attach_engine(message.engine)
        if is_first_load and self.session.conversation.turns:  # the chat format is known now
            self.show_conversation()
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS_NOTICE:  # the empty chat shows the settings
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
            text, self._queued_text = self._queued_text, None
            await self.send(text)

    @on(EngineLoadFailed)
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self.phase = "failed"
        if self._queued_text is not None:
            self.composer.replace_text(self._queued_text)
            self._queued_text = None
        does_not_fit = isinstance(message.error, DoesNotFitError)
        self.transcript.show_error(
            message.error, (*_FORCE_LOAD_HINTS * does_not_fit, *self._reload_hints())
        )
        self.draw("NOT LOADED")

    def _reload_hints(self) -> tuple[str, ...]:
        turns = self.session.conversation.turns
        is_interrupted = bool(turns) and turns[-1].finish_reason is None
        return (_FINISH_ANSWER_HINT, *_RELOAD_HINTS) if is_interrupted else _RELOAD_HINTS

    def _show_notice(self, notice: Notice) -> None:
        text = sanitize(hints.for_screen(f"{notice.message} {notice.hint}"), multiline=False)
        severity = "information" if notice.level == "info" else notice.level
        self.notify(text, severity=severity, markup=False, timeout=8)

    # --- generating -----------------------------------------------------------------------

    async def send(self, text: str) -> None:
        """Starts a turn. For a text-completion model, an empty text continues its output."""
        loaded = self.session.loaded
        assert loaded is not None
        if not text.strip() and (loaded.has_chat_template or not self.session.conversation.turns):
            self.notify("Nothing to send yet.", markup=False)
            return
        if not await self._generate(lambda: self.session.ask(text)):
            self.composer.restore_text(text)

    async def _generate(self, begin_turn: Callable[[], None]) -> bool:
        """Saves the turn, then shows it. Returns False and changes nothing if saving failed."""
        n_shown = len(self.session.conversation.turns)
        try:
            begin_turn()
        except LocalspecError as error:
            warning = sanitize(f"{error.message} {error.hint}", multiline=False)
            self.notify(warning, severity="warning", markup=False)
            return False
        if len(self.session.conversation.turns) == n_shown:  # replaces the last turn
            self.transcript.remove_last_turn()
        self.phase = "answering"
        self._logprobs_requested = False
        self._stop_time = None
        self.show_turn(self.session.conversation.turns[-1])
        self.session.stats.start_answer()
        recorder, probabilities = self.session.recorder, self.transcript.token_view

        def write(engine: InspectableEngine) -> Iterator[Event]:
            return self.session.stream_answer(
                engine,
                self._ask_overflow,
                lambda: bool(self._stop_time),
                probabilities=probabilities,
            )

        self.runner.start_answer(
            write, self.post_message, lambda event: recorder.record_events((event,))
        )
        self.draw()
        return True

    def _ask_overflow(self, full: ContextOverflow) -> OverflowPolicy:
        """Called on the generating thread; waits for the user's choice."""
        request = OverflowRequest(full)
        self._overflow_request = request
        return request.wait() if self.post_message(request) else "stop"

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
        if self._overflow_request is not None:  # the generating thread must not wait for ever
            self._overflow_request.answer("stop")

    # --- events ---------------------------------------------------------------------------

    @on(AnswerEventsReady)
    async def _schedule_fetch(self) -> None:
        """Fetches now, or at the next frame."""
        wait = self._last_draw + self._frame_seconds - time.monotonic()
        if wait > 0:
            set_reliable_timer(self, wait, self._fetch_events)
        else:
            await self._fetch_events()

    async def _fetch_events(self) -> None:
        self._last_draw = time.monotonic()
        # The cost of the last redraw sets the delay of the next: the engine needs the cores.
        before, self._cpu_seconds = self._cpu_seconds, time.thread_time()
        self._frame_seconds = min(
            MAX_FRAME_SECONDS, max(FRAME_SECONDS, (self._cpu_seconds - before) / MAX_DRAWING_SHARE)
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

    async def _finish_answer(self, error: LocalspecError | None, engine_died: bool) -> None:
        turn = self.session.conversation.turns[-1]
        stop_ms = None
        if self._stop_time is not None:
            stop_ms = (time.monotonic() - self._stop_time) * 1e3
        self.phase = "ready"
        self.session.recorder.finish_answer()
        self.transcript.finish_answer(format_end_reason(turn, stop_ms))
        if error is not None:
            self.phase = "failed" if engine_died else "ready"
            self.transcript.show_error(error, self._reload_hints() if engine_died else _RETRY_HINTS)
        elif self.runner.engine is not None:
            self.session.update_plain_speed(self.runner.engine)

    def request_logprobs(self) -> None:
        request = self.session.build_inspect_request()
        if self.phase == "ready" and request is not None and not self._logprobs_requested:
            self.phase = "inspecting"
            self._logprobs_requested = True
            self.runner.inspect(request, self.post_message)

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
