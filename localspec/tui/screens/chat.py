"""The chat screen: a chat session with its transcript, message box and speculation panel.

Threads post messages; only message handlers draw.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.chat import copying, examples, slash_commands
from localspec.chat.answer import AnswerDelta
from localspec.chat.history import SearchHit
from localspec.chat.pictures import PictureCost
from localspec.chat.repetition import RepetitionWatch
from localspec.chat.session import ChatSession
from localspec.chat.settings import OverflowPolicy
from localspec.chat.slash_commands import (
    MODEL_CHOICES,
    PRESET_CHOICES,
    CommandCall,
)
from localspec.chat.speculation_stats import SpeculationStats
from localspec.chat.tool_loop import CallState
from localspec.config import toml_file
from localspec.documents.reading import FileRequest
from localspec.errors import DoesNotFitError, LocalspecError
from localspec.launch import SETTINGS_NOTICE
from localspec.models.audio_files import is_audio_name
from localspec.models.pictures import is_picture_name
from localspec.protocol.events import Event, Notice
from localspec.report.speculation import view_speculation
from localspec.tui import chat_front_end
from localspec.tui.app_options import PANEL_MODES, AppOptions, PanelMode
from localspec.tui.chat_front_end import ScreenFrontEnd
from localspec.tui.chat_phase import ChatPhase
from localspec.tui.chat_tools import ChatTools
from localspec.tui.dialogs.call_details import CallDetailsScreen
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.dialogs.tools import ToolsScreen
from localspec.tui.dialogs.turns import TurnChoice, TurnsScreen
from localspec.tui.document_reader import DocumentReader
from localspec.tui.engine_runner import (
    AnswerEnded,
    AnswerInspected,
    CallQuestioned,
    EngineLoaded,
    EngineLoadEvent,
    EngineLoadFailed,
    EngineRunner,
    OverflowRequest,
    SharedServer,
    StepStart,
    UpdatesReady,
)
from localspec.tui.key_bindings import bindings_for
from localspec.tui.navigation import (
    PreferencesChanged,
    ShowChatList,
    ShowChatSettings,
    ShowReplay,
    ShowSharedServer,
)
from localspec.tui.notices import copy_text, show_notice
from localspec.tui.scheduling import FramePacer, set_reliable_timer
from localspec.tui.text.live_frames import NO_GUESS, LiveFrame, LiveFrames
from localspec.tui.text.turn_text import format_end_reason
from localspec.tui.text.wrapping import one_line
from localspec.tui.widgets.call_question import CallQuestion
from localspec.tui.widgets.chat_notes import LoadingLine, ToyNote
from localspec.tui.widgets.composer import AttachedFiles, MessageComposer
from localspec.tui.widgets.screen_frame import (
    CenteredLayout,
    RaisedColumn,
    RowCompositor,
    StatusBar,
)
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.token_details import TokenDetails
from localspec.tui.widgets.transcript import EmptyChatHint, Transcript
from localspec.units import count

# An escape this soon after an answer ended was meant to stop it.
LATE_ESCAPE_SECONDS = 1.0
TYPING_SECONDS = 3.0  # After the last key, somebody types.
SECOND_ESCAPE_SECONDS = 2.0
FIGURES_SECONDS = 0.25
"""Between two drawings of all but the text while an answer streams: at most four a second."""
SERVER_POLL_SECONDS = 0.5  # Between two looks at who waits for the shared engine.
CALL_TICK_SECONDS = 1.0  # Between two drawings of the seconds of a call that runs.


class ChatScreen(CenteredLayout, Screen[None]):
    BINDINGS = bindings_for("chat")
    KEY_CONTEXTS = ("chat",)
    AUTO_FOCUS = "#composer"  # set before the first draw: no typed key is lost

    def __init__(
        self,
        session: ChatSession,
        runner: EngineRunner,
        options: AppOptions,
        found: SearchHit | None = None,
    ) -> None:
        """`found`: a search match to show first."""
        super().__init__()
        self._compositor = RowCompositor()
        self.session = session
        self.runner = runner
        self.options = options
        self._found = found
        self.documents = DocumentReader(self)
        self.tools = ChatTools(self)
        self._asked: CallQuestioned | None = None
        """The question about a call that waits for an answer."""
        self.phase: ChatPhase = "loading"
        self._load_key: object = None  # The `ChatSession.load_key` of the last load.
        self._queued_text: str | None = None  # Typed before the model was loaded.
        self._regenerate_after_load = False
        """To finish the answer that a crash interrupted, or for another model's answer."""
        self._is_drafter_of_key = False
        """Whether the key for speculation chose the drafter, in place of `auto`."""
        self._logprobs_requested = False  # For the last answer.
        self._repetition = RepetitionWatch()
        self._pacer = FramePacer()
        self._frames = LiveFrames()  # Of the answer that streams.
        self._counted_tools = ""  # What the engine was asked about last.
        self._drawn_guess = NO_GUESS
        self._frame_timer: asyncio.TimerHandle | None = None
        self._draw_timer: asyncio.TimerHandle | None = None  # Of `_draw_soon`.
        self._ended: AnswerEnded | None = None
        """How the answer has ended, while slow motion still shows it."""
        self._played = SpeculationStats()
        """The figures of what slow motion has shown, before `_shown_events`."""
        self._shown_events: list[Event] = []
        self._drawn_titles = ("", "")
        self._is_wait_told = False  # That clients of the server wait for this answer.
        self._had_guesses = False  # When this was drawn last.
        # As `time.monotonic`:
        self._draw_time = float("-inf")  # Of the last `draw`.
        self._stop_time: float | None = None  # When this answer was stopped.
        self._end_time = float("-inf")  # When the last answer ended.
        self._escape_time = float("-inf")

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with Vertical(id="main"):
                yield LoadingLine(classes="-first")
                yield EmptyChatHint()
                yield Transcript(
                    colours=self.options.show_guesses,
                    show_marks=self.options.show_token_marks,
                    draws_pictures=not self.options.ascii_only,
                )
                yield LoadingLine(classes="-next")
                yield ToyNote(self.options)
                with RaisedColumn(id="below"):
                    yield CallQuestion()
                    yield TokenDetails()
                    yield AttachedFiles()
                    with Vertical(id="typing"):
                        composer = MessageComposer(self.options.keymap, self.session)
                        yield composer.completions
                        yield composer
            yield SpeculationPanel(self.options.ascii_only)
        yield StatusBar(self.options)

    def on_mount(self) -> None:
        self._apply_preferences()
        self._apply_panel_mode()
        self._show_saved_turns()
        self.composer.replace_text(self.session.draft)
        self.composer.focus()
        self.set_interval(SERVER_POLL_SECONDS, self._watch_server)
        self.set_interval(CALL_TICK_SECONDS, self._tick_calls)
        self.tools.connect()
        self.load()

    def show_found(self, found: SearchHit) -> None:
        """Goes to a search match."""
        self._found = found
        self._show_saved_turns()
        self.draw()

    def _show_saved_turns(self) -> None:
        found = self._found
        if found is not None and found.turn is not None:
            self.session.show_turn(found.turn)
            self.call_after_refresh(self.transcript.show_match, found)
        self.transcript.show_session(self.session)

    def on_unmount(self) -> None:
        self.session.finish_answer()
        self.runner.cancel_questions()
        self.tools.close()

    @on(PreferencesChanged)
    def _apply_preferences(self) -> None:
        if self.options.chats is not None:
            self.session.history_for_new_chats = self.options.chats.history
        self.transcript.set_colours(
            colours=self.options.show_guesses,
            show_marks=self.options.show_token_marks,
        )
        self._frames.has_guesses = self.options.show_guesses
        self._apply_slow_motion()
        self._draw_token_details()
        self.draw()  # its keys may be others

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def composer(self) -> MessageComposer:
        return self.query_one(MessageComposer)

    @property
    def busy(self) -> bool:
        return self.phase == "answering"

    # --- loading
    # ----------------------------------------------------------------------------

    def load(self) -> None:
        session = self.session
        self.phase = "loading"
        self._load_key = session.load_key
        self.transcript.clear_error()
        request = self.options.build_load_request(
            session.pair,
            exact=session.settings.exact,
            ctx=session.settings.ctx,
            draft_length=session.settings.draft_length,
        )
        self.runner.load(session.keep_model_file(request), self.post_message)
        self.draw()

    def load_if_changed(self, *, regenerate: bool = False) -> None:
        """Loads another pair or context size.

        `regenerate`: then answers the last question.
        """
        if self._load_key != self.session.load_key:
            self._regenerate_after_load = regenerate
            self.load()
        elif regenerate:
            self.action_again()

    @on(MessageComposer.TextAttached)
    def _show_attached(self) -> None:
        self.draw()

    @on(MessageComposer.FileChosen)
    def _attach_chosen(self, message: MessageComposer.FileChosen) -> None:
        loaded = self.session.loaded
        is_seen = loaded is not None and loaded.sees and is_picture_name(message.path)
        is_heard = loaded is not None and loaded.hears and is_audio_name(message.path)
        if is_seen or is_heard:
            load = partial(self.session.pictures.load_any, [Path(message.path)])
            self.composer.attach_pictures(load)
        else:
            self.documents.read(FileRequest(path=message.path))

    @on(MessageComposer.PicturesAttached)
    def _show_pictures(self) -> None:
        self.draw()
        self._count_pictures()

    def _count_pictures(self) -> None:
        """Asks the engine what the pictures cost that are to be sent."""
        session = self.session
        known = session.picture_costs
        uncounted = [
            each for each in session.pending_pictures if each.sha256 not in known
        ]
        if self.phase != "ready" or not uncounted:
            return

        def work() -> None:
            engine = self.runner.engine
            if engine is None:
                return
            try:
                costs = session.count_pictures(engine, uncounted)
            except LocalspecError as error:
                self.call_later(self.show_warning, error)
            else:
                self.call_later(self._show_costs, costs)

        self.runner.run(work)

    def _show_costs(self, costs: Mapping[str, PictureCost]) -> None:
        self.session.picture_costs |= costs
        self.draw()

    def _count_tools(self) -> None:
        """Asks the engine what the tools cost that it is offered, if they are others."""
        session = self.session
        if self.phase != "ready":
            return
        tools = session.find_uncounted_tools()
        if not tools or tools == self._counted_tools:
            return
        self._counted_tools = tools

        def work() -> None:
            engine = self.runner.engine
            if engine is None:
                return
            try:
                n_tokens = session.count_tools(engine, tools)
            except LocalspecError as error:
                self.call_later(self.show_warning, error)
            else:
                self.call_later(self._show_tool_cost, tools, n_tokens)

        self.runner.run(work)

    def _show_tool_cost(self, tools: str, n_tokens: int) -> None:
        self.session.tool_costs[tools] = n_tokens
        self.draw()

    @on(EngineLoadEvent)
    def _show_load_notice(self, message: EngineLoadEvent) -> None:
        for line in self.query(LoadingLine):
            line.show_progress(message.event)
        if isinstance(message.event, Notice):
            show_notice(self, message.event)

    @on(EngineLoaded)
    async def _engine_ready(self, message: EngineLoaded) -> None:
        is_first_load = self.session.loaded is None
        self.session.attach_engine(message.engine)
        self._counted_tools = ""
        if is_first_load and self.session.completes_text:
            self._show_saved_turns()  # The chat format is known now.
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS_NOTICE:  # the empty chat shows the settings
                show_notice(self, notice)
        self.phase = "ready"
        self.draw()
        if self._regenerate_after_load:
            self._regenerate_after_load = False
            self.generate(self.session.regenerate)
        else:
            self.send_queued()
        self._count_pictures()

    @on(EngineLoadFailed)
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self.phase = "failed"
        self.composer.restore_text(self._queued_text or "")
        self._queued_text = None
        self._regenerate_after_load = False
        hints = []
        if isinstance(message.error, DoesNotFitError):
            hints.append("/anyway load anyway")
        if self.session.previous_pair is not None and self.session.loaded is None:
            hints.append("/model - previous model")
        hints += self._reload_hints()
        self.transcript.show_error(message.error, hints)
        self.draw()

    def _reload_hints(self) -> list[str]:
        hints = []
        if self.session.is_interrupted:
            hints.append("f5 reload and finish the answer")
        return [*hints, "enter reload", "ctrl+l engine log", "esc back"]

    # --- sending
    # ----------------------------------------------------------------------------

    @on(MessageComposer.Submitted)
    def _submit_message(self, message: MessageComposer.Submitted) -> None:
        self._end_playback()
        text = message.text
        call = slash_commands.parse(text)
        if call is not None:
            chat_front_end.run_command(self, call)
        elif self.phase == "answering":
            self.composer.restore_text(text)
            hint = "Wait for the answer to finish, or press esc to stop it."
            if self._asked is not None:
                hint = "A tool call waits for your answer: tab goes to the choices."
            self.notify(hint, markup=False)
        elif self.phase == "ready" and not self.documents.names:
            self.send(slash_commands.unescape(text))
        else:
            self._queue_message(text)

    def _queue_message(self, text: str) -> None:
        """Sends the text when the model has loaded, and the documents are read.

        Loads the model again if loading failed.
        """
        if text.strip():
            queued = [self._queued_text, text] if self._queued_text else [text]
            self._queued_text = "\n".join(filter(None, queued))
        if self.phase == "failed":
            self.load()
        elif self.phase == "inspecting":
            self.runner.stop_answer()
        elif self._queued_text and self.phase == "ready":
            names = ", ".join(self.documents.names)
            self.notify(f"Sends when {names} has been read.", markup=False)
        elif self._queued_text:
            self.notify("Sends when the model has loaded.", markup=False)

    def send_queued(self) -> None:
        """Sends what waits, unless it has to wait for something else."""
        text = self._queued_text
        if text is not None and self.phase == "ready" and not self.documents.names:
            self._queued_text = None
            self.send(text)

    def restore_queued(self) -> None:
        """Puts a message that waits back into the field: it lacks its document."""
        if self._queued_text is not None and self.phase == "ready":
            self.composer.restore_text(self._queued_text)
            self._queued_text = None

    def send(self, text: str) -> None:
        example = ""
        if not text.strip() and not self.session.has_pending_files:
            example = self.session.next_example()
        if example:
            self.composer.restore_text(example)
        elif not self.session.can_ask(text):
            self.notify("Nothing to send yet.", markup=False)
        elif not self.generate(lambda: self.session.ask(text)):
            self.composer.restore_text(text)

    # --- answering
    # ------------------------------------------------------------------------

    def generate(self, start_turn: Callable[[], None]) -> bool:
        """Starts a turn and its answer.

        Returns False and changes nothing if saving failed.
        """
        session = self.session
        try:
            start_turn()
        except LocalspecError as error:
            self.show_warning(error)
            return False
        self.transcript.clear_error()
        # A turn may take the place of another one, and of the steps after that.
        self.transcript.keep_turns(session.conversation.turns[:-1])
        self.phase = "answering"
        self._repetition = RepetitionWatch()
        self._logprobs_requested = False
        self._is_wait_told = False
        self._stop_time = None
        self._ended = None
        self._begin_playback()
        self.transcript.add_turn(session, session.conversation.turns[-1])
        self.runner.start_answer(
            session, self.post_message, probabilities=self.transcript.is_cursor_active
        )
        self.draw()
        return True

    def _begin_playback(self) -> None:
        """For an answer, or a step of one, that is about to arrive."""
        self._played = self.session.stats.copy_for_playback()
        self._shown_events = []
        self._frames = LiveFrames(
            has_guesses=self.options.show_guesses,
            is_slow=self.options.is_slow(self.session),
        )

    def show_warning(self, error: LocalspecError) -> None:
        show_notice(self, Notice("warning", "refused", error.message, error.hint))

    @on(OverflowRequest)
    def _ask_for_overflow_policy(self, request: OverflowRequest) -> None:
        """The answer's thread waits."""

        def on_dismiss(choice: tuple[OverflowPolicy, bool] | None) -> None:
            policy, is_for_chat = choice or ("stop", False)
            if is_for_chat:
                self.session.change_settings(overflow=policy)
            request.answer(policy)

        self.app.push_screen(ContextFullScreen(request.full), on_dismiss)

    @on(UpdatesReady)
    def _schedule_fetch(self) -> None:
        self._pacer.call_at_next_frame(self, self._fetch_updates)

    def _fetch_updates(self) -> None:
        updates, ended = self.runner.take_updates()
        deltas: list[AnswerDelta] = []
        for update in updates:
            if isinstance(update, AnswerDelta):
                deltas.append(update)
            else:
                self._add_deltas(deltas)
                deltas = []
                self._show_call_update(update)
        self._add_deltas(deltas)
        if ended is not None:
            self._close_question()
            self._ended = ended
            self._frames.end()
            if ended.error is not None or ended.engine_died:
                self._frames.is_slow = False
        self._show_frame(self._frames.next_frame(time.monotonic()))

    def _add_deltas(self, deltas: Sequence[AnswerDelta]) -> None:
        for delta in deltas:
            if isinstance(delta.event, Notice):
                show_notice(self, delta.event)
        if self._repetition.add_deltas(deltas):
            self.notify("It repeats itself: esc stops, f5 tries again.", markup=False)
        self._frames.add(deltas)

    def _show_frame(self, frame: LiveFrame) -> None:
        """Then ends the answer, if it has ended and all of it is shown."""
        self._shown_events += [delta.event for delta in frame.deltas]
        has_changed = frame.deltas or frame.guess != self._drawn_guess
        if has_changed and self.transcript.turns:
            self._drawn_guess = frame.guess
            self.transcript.add_deltas(frame.deltas, frame.guess)
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None
        if frame.due is not None:
            wait = max(0.0, frame.due - time.monotonic())
            self._frame_timer = set_reliable_timer(self, wait, self._schedule_fetch)
        elif self._ended is not None:
            ended = self._ended
            self._ended = None
            self._finish_answer(ended)
            self.draw()
            return
        self._draw_soon()

    @property
    def _shown_stats(self) -> SpeculationStats:
        """The figures of what is on the screen, which the engine may be ahead of."""
        stats = self.session.stats
        if not self._frames.is_slow or not self._frames.is_behind:
            return stats
        for event in self._shown_events:
            self._played.add(event)
        self._shown_events.clear()
        self._played.measured = stats.measured
        return self._played

    def _catch_up(self) -> None:
        """Shows at once what slow motion has not shown yet."""
        if self._frames.is_behind or self._ended is not None:
            self._show_frame(self._frames.catch_up())

    def _end_playback(self) -> None:
        """Ends the answer on the screen if the engine has ended it already."""
        if self._ended is not None:
            self._catch_up()

    def _finish_answer(self, ended: AnswerEnded) -> None:
        session = self.session
        self._end_time = time.monotonic()
        self.phase = "failed" if ended.engine_died else "ready"
        withdrawn = session.withdrawn_question
        if withdrawn is not None:
            self.transcript.show_session(session)
            self.composer.restore_text(withdrawn)
        else:
            stop_ms = None
            if self._stop_time is not None:
                stop_ms = (time.monotonic() - self._stop_time) * 1e3
            turn = session.conversation.turns[-1]
            note = format_end_reason(turn, stop_ms)
            self.transcript.finish_answer(note)
        if ended.error is not None:
            keys = self._reload_hints()
            if not ended.engine_died:
                retry = "enter send again"
                if withdrawn is None:
                    retry = "f6 edit the question"
                keys = [retry, "f4 settings"]
            self.transcript.show_error(ended.error, keys)
        elif len(session.conversation.turns) == 1:
            view = view_speculation(session.stats)
            if view.state == "done" and not view.drafted:
                hint = f"{view.sentence} {examples.GAINING_HINT}"
                self.notify(hint, markup=False)

    # --- calls of tools
    # ----------------------------------------------------------------------------

    def _show_call_update(self, update: CallState | StepStart) -> None:
        """A call is shown behind all the text before it: slow motion ends there."""
        self._show_frame(self._frames.catch_up())
        if isinstance(update, CallState):
            self.transcript.show_call(update)
            return
        self._repetition = RepetitionWatch()
        self._begin_playback()
        self.transcript.begin_step(self.session, update.turn)

    @on(CallQuestioned)
    def _ask_about_call(self, message: CallQuestioned) -> None:
        """The answer's thread waits."""
        self._fetch_updates()  # The question is below what led to it.
        if message.is_answered():
            return
        self._asked = message
        self.transcript.deactivate_cursor()
        self.focus_typing_field()
        self._call_question.ask(message.request)
        self._draw_token_details()
        if self.app.screen is not self:
            hint = "A tool call waits for your answer in the chat."
            self.app.notify(hint, markup=False)
        self.draw()

    @on(CallQuestion.Decided)
    def _answer_question(self, message: CallQuestion.Decided) -> None:
        if self._asked is not None:
            self._asked.answer(message.decision)
        self._close_question()
        self.draw()

    def _close_question(self) -> None:
        """The next question needs the keyboard anew: a key may follow too soon."""
        had_keyboard = self._call_question.has_keyboard
        self._asked = None
        self._call_question.close()
        self._draw_token_details()
        if had_keyboard:
            self.composer.focus()

    @property
    def _call_question(self) -> CallQuestion:
        return self.query_one(CallQuestion)

    @on(Transcript.CallClicked)
    def _open_clicked_call(self, message: Transcript.CallClicked) -> None:
        ids = [state.request.call_id for state in self.transcript.call_states]
        clicked = message.state.request.call_id
        if clicked in ids:
            self.show_call(ids.index(clicked) + 1)

    def action_calls(self) -> None:
        """Shows the last call of the chat; the arrows go to the others."""
        self.show_call(len(self.transcript.call_states))

    def show_call(self, number: int) -> None:
        """Shows the call with this number, from 1 on."""
        states = self.transcript.call_states
        if not states:
            self.notify("No tool was called in this chat.", markup=False)
        elif 1 <= number <= len(states):
            draws_pictures = not self.options.ascii_only
            self.app.push_screen(
                CallDetailsScreen(states, number - 1, draws_pictures=draws_pictures)
            )
        else:
            n_calls = count(len(states), "call")
            self.notify(f"This chat has {n_calls} of tools.", markup=False)

    def show_tools(self) -> None:
        """Lists the servers and their tools, which can be turned on and off."""
        self.app.push_screen(ToolsScreen(self.tools), lambda _: self.draw())

    @on(AnswerInspected)
    def _show_logprobs(self, message: AnswerInspected) -> None:
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
            self.send_queued()

    def _apply_slow_motion(self) -> None:
        self._frames.is_slow = self.options.is_slow(self.session)
        if not self._frames.is_slow:
            self._catch_up()

    # --- drawing
    # ----------------------------------------------------------------------------

    def _draw_soon(self) -> None:
        """Draws the figures of an answer that streams; several calls draw once."""
        if self._draw_timer is None:
            wait = max(0.0, self._draw_time + FIGURES_SECONDS - time.monotonic())
            self._draw_timer = set_reliable_timer(self, wait, self.draw)

    def draw(self) -> None:
        """Redraws everything but the transcript."""
        self._draw_time = time.monotonic()
        if self._draw_timer is not None:
            self._draw_timer.cancel()
            self._draw_timer = None
        session = self.session
        self.transcript.show_thinking(session.settings.show_thinking)
        for notice in session.take_notices():
            show_notice(self, notice)
        self._draw_title()
        self.query_one(AttachedFiles).draw(
            session.pending_attachments,
            session.pending_pictures,
            session.picture_costs,
            self.documents.names,
        )
        self._count_tools()
        self.composer.show_size()
        if self.composer.border_title != Content(self.tools.note).markup:
            self.composer.border_title = Content(self.tools.note)
        is_empty = not session.conversation.turns and not self.transcript.has_error
        empty_hint = self.query_one(EmptyChatHint)
        for line in self.query(LoadingLine):
            line.show_phase(self.phase, is_empty_chat=is_empty)
        self.query_one(ToyNote).draw(session, self.phase)
        empty_hint.display = is_empty
        self.transcript.display = not is_empty
        empty_hint.draw(session)
        if self.transcript.has_guesses != self._had_guesses:
            self._had_guesses = self.transcript.has_guesses
            self._draw_token_details()
        panel = self.query_one(SpeculationPanel)
        stats = self._shown_stats
        panel.draw_session(session, stats, self.phase)
        status = self.query_one(StatusBar)
        status.draw(
            session,
            stats,
            self.phase,
            self.transcript,
            with_speculation=not panel.display,
        )

    def _tick_calls(self) -> None:
        if self.phase == "answering":
            self.transcript.tick_calls()

    def _draw_title(self) -> None:
        session = self.session
        is_saved = self.options.chats is None or session.recorder.is_saving
        saved_note = "" if is_saved else "not saved"
        notes = [self.runner.server_note, saved_note, one_line(session.title)]
        topic = " · ".join(note for note in notes if note)
        pair_name = one_line(session.pair_name)
        titles = (pair_name, topic)
        if titles != self._drawn_titles:
            self._drawn_titles = titles
            model = one_line(session.model_name)
            guesses = pair_name.removeprefix(model)
            title = Content.assemble(model, (guesses, "not bold $muted"))
            self.query_one("#pair", Static).update(title)
            self.query_one("#topic", Static).update(Content(topic))

    def _watch_server(self) -> None:
        """Says who waits: to an editor, a long answer here looks like a hang."""
        if self.runner.server is None:
            return
        self._draw_title()
        n_waiting = self.runner.n_waiting_for_chat
        if n_waiting and self.phase == "answering" and not self._is_wait_told:
            self._is_wait_told = True
            requests = count(n_waiting, "request")
            wait = "waits" if n_waiting == 1 else "wait"
            self.notify(
                f"{requests} of the server {wait} for this answer: esc stops it.",
                markup=False,
            )

    @on(Transcript.FollowingChanged)
    def _follow_changed(self) -> None:
        self.draw()

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    # --- keys: turns
    # ----------------------------------------------------------------------

    def action_stop(self) -> None:
        if self._call_question.leave_reason():
            return
        if self._ended is not None:
            self._catch_up()
        elif self.phase == "answering":
            self._frames.is_slow = False  # Of this answer.
            if self._stop_time is None:
                self._stop_time = time.monotonic()
                self.transcript.set_note("stopping …")
            self.runner.stop_answer()
        elif time.monotonic() - self._end_time < LATE_ESCAPE_SECONDS:
            return
        elif self.phase == "loading" or not self.composer.text:
            if len(self.app.screen_stack) > 1:  # not if this is the only screen
                self._leave()
        else:
            self.composer.edit_text("")
            self._escape_time = time.monotonic()
            self.notify("↑ brings the text back.", markup=False, timeout=2)

    def _leave(self) -> None:
        """Leaves the chat.

        While somebody types it needs a second escape: the first was meant for something
        else.
        """
        now = time.monotonic()
        is_typing = now - self.composer.typed_at < TYPING_SECONDS
        if is_typing and now - self._escape_time > SECOND_ESCAPE_SECONDS:
            self._escape_time = now
            self.notify("Press esc again to leave the chat.", markup=False, timeout=2)
            return
        self.keep_draft()
        self.dismiss()

    def keep_draft(self) -> None:
        """Text that is not sent stays with its chat."""
        self.composer.restore_text(self._queued_text or "")
        self._queued_text = None
        self.session.draft = self.composer.text

    def action_again(self) -> None:
        """Regenerates the last answer; after a crash, reloads and finishes it."""
        self._end_playback()
        if self.phase == "failed":
            self._regenerate_after_load = self.session.is_interrupted
            self.load()
        elif self.phase == "ready" and self.session.conversation.turns:
            self.generate(self.session.regenerate)

    def action_edit(self) -> None:
        self._end_playback()
        # Not while its probabilities are computed: they would be shown for another
        # answer.
        if self.phase in ("answering", "inspecting"):
            return
        session = self.session
        turns = session.conversation.turns
        if turns:
            # Of an answer with calls it takes back all steps.
            question = session.return_to(turns[-1].id)
            self.transcript.keep_turns(session.conversation.turns)
            self.composer.edit_text(question)
            self.composer.focus()
            self.draw()

    def action_turns(self) -> None:
        if self.notify_if_busy():
            return
        session = self.session
        ids_before = self._path_ids()

        def on_dismiss(choice: TurnChoice | None) -> None:
            if self._path_ids() != ids_before:
                self.transcript.show_session(session)
                session.branch_changed()
            if choice is not None:
                question = session.return_to(choice.turn_id)
                self.transcript.show_session(session)
                if choice.action == "again" and self.phase == "ready":
                    self.send(question)
                else:
                    self.composer.edit_text(question)
                    self.composer.focus()
            self.draw()

        dialog = TurnsScreen(session.conversation, session.thinking_markers)
        self.app.push_screen(dialog, on_dismiss)

    def _path_ids(self) -> list[int]:
        return [turn.id for turn in self.session.conversation.turns]

    def notify_if_busy(self) -> bool:
        """Whether the turns are in use, which the user is then told."""
        self._end_playback()
        if self.phase not in ("answering", "inspecting"):
            return False
        self.notify("Press esc to stop the answer first.", markup=False)
        return True

    def action_new(self) -> None:
        if not self.notify_if_busy():
            self.session.start_new_chat()
            self.transcript.show_session(self.session)
            self.composer.focus()
            self.load_if_changed()
            self.draw()

    def action_chats(self) -> None:
        if not self.notify_if_busy():
            self.app.post_message(ShowChatList())

    # --- keys: the model and its settings
    # ----------------------------------------------------------------------------

    def action_speculation(self) -> None:
        """From automatic to drafting in every step, to off, and back.

        A drafter that was chosen by name drafts in every step already: then it is
        turned off and on.
        """
        session = self.session
        before = session.settings.spec
        word = "off"
        if before == "off":
            word = "on"
        elif before == "auto":
            word = session.steady_drafter or "off"
        chat_front_end.run_command(self, CommandCall("spec", word))
        if word == "off" and self._is_drafter_of_key:
            session.last_drafter = "auto"
        self._is_drafter_of_key = word not in ("off", "on")

    def action_settings(self, field: str = "") -> None:
        def on_leave() -> None:
            self.session.save_metadata()
            if self.phase == "ready":
                self.load_if_changed()
            self.draw()

        self.app.post_message(ShowChatSettings(self.session, on_leave, field))

    def action_pick(self, command: Literal["model", "preset"]) -> None:
        choices = MODEL_CHOICES if command == "model" else PRESET_CHOICES
        ScreenFrontEnd(self).pick(command, choices)

    def action_thinking(self) -> None:
        is_shown = self.session.settings.show_thinking
        self.session.change_settings(show_thinking=not is_shown)
        self.draw()

    def action_serve(self) -> None:
        """Serves the model of this chat, unless it is served, and shows the server."""
        runner = self.runner
        if runner.server is None:
            if self.phase != "ready" or runner.host is None:
                self.notify("Wait until the model is ready.", markup=False)
                return
            try:
                runner.server = SharedServer(runner.host, self.session)
            except LocalspecError as error:
                self.show_warning(error)
                return
        self.app.post_message(ShowSharedServer(runner.server.thread, self.draw))

    # --- keys: the panel and the token view
    # ----------------------------------------------------------------------------

    def action_panel(self) -> None:
        if self.has_class("-narrow"):
            self.notify("The panel needs 80 columns.", timeout=3, markup=False)
            return
        shown: PanelMode = "off"
        if self.query_one(SpeculationPanel).display:
            shown = self.options.panel or "figures"
        position = PANEL_MODES.index(shown) + 1
        self.options.panel = PANEL_MODES[position % len(PANEL_MODES)]
        self._apply_panel_mode()
        self.call_after_refresh(self.draw)

    def _apply_panel_mode(self) -> None:
        """Shows the panel as it was last chosen, in this chat or in another one."""
        mode = self.options.panel
        self.set_class(mode in ("figures", "details"), "-panel")
        self.set_class(mode == "off", "-no-panel")
        self.query_one(SpeculationPanel).show_details(mode == "details")

    def action_tokens(self) -> None:
        """Shows by colour which text was guessed, or shows the text alone."""
        options = self.options
        options.show_guesses = not options.show_guesses
        self._apply_preferences()
        try:
            toml_file.set_value("screen.guesses", options.show_guesses)
        except LocalspecError as error:
            self.show_warning(error)

    def _request_logprobs(self) -> None:
        """Computes the probabilities of the last answer, once."""
        request = self.session.build_inspect_request()
        if self.phase != "ready" or request is None or self._logprobs_requested:
            return
        self.phase = "inspecting"
        self._logprobs_requested = True
        self.runner.inspect(request, self.post_message)

    def action_walk(self) -> None:
        if self._asked is not None:
            self._move_to_question()
        elif self.transcript.turns:
            self.transcript.activate_cursor()
            self._request_logprobs()
            self.draw()

    def _move_to_question(self) -> None:
        """To the choices and back; not while tab may complete what is typed."""
        if self._call_question.has_keyboard:
            self.composer.focus()
        elif not self.composer.is_completing:
            self._call_question.take_keyboard()

    def focus_typing_field(self) -> None:
        if self._call_question.is_reason_typed:
            return
        if not self.composer.has_focus:
            self.set_focus(self.composer)  # The transcript then leaves its token view.

    @on(Transcript.TokenViewLeft)
    def _focus_composer(self) -> None:
        self.composer.focus()
        self.draw()

    @on(Transcript.TokenSelected)
    def _show_token(self) -> None:
        self.set_class(self.transcript.is_cursor_active, "-walking")
        self._draw_token_details()

    def _draw_token_details(self) -> None:
        """The selected token, or the legend of the colours."""
        transcript = self.transcript
        details = self.query_one(TokenDetails)
        has_legend = transcript.colours and transcript.has_guesses
        if self.has_class("-narrow") or self._asked is not None:
            has_legend = False
        details.display = transcript.is_cursor_active or has_legend
        token = None
        round_ = None
        if transcript.selected_token is not None:
            token, round_ = transcript.selected_token
        details.show_token(token, round_, transcript.show_marks)

    def action_replay(self) -> None:
        """Replays an answer; while one streams, turns slow motion on and off."""
        if self.phase == "answering":
            self.options.toggle_slow_motion(self.session)
            self._apply_slow_motion()
            self.draw()
            return
        number = self.transcript.selected_turn
        turns = self.session.conversation.turns
        if not turns or not turns[number].rounds:
            self.notify("No answer to replay yet.", markup=False)
            return
        prompt = turns[number].question
        if not self.session.completes_text:
            prompt += "\n\n"
        text = self.transcript.turns[number].text
        replay = ShowReplay(prompt, text.scored_rounds, text.plain_speed)
        self.app.post_message(replay)

    # --- keys: copying and scrolling
    # ----------------------------------------------------------------------------

    def action_copy(self, argument: str = "") -> None:
        """`argument`: as of `/copy`."""
        chat = self.session.snapshot()
        copy_text(self.app, lambda: copying.select_text(chat, argument))

    def action_copy_code(self, turn_id: int, number: int) -> None:
        chat = self.session.snapshot()
        copy_text(self.app, lambda: copying.code_block(chat, turn_id, number))

    def action_page(self, by: int) -> None:
        if self._call_question.scroll_arguments(by):
            return
        if by > 0:
            self.transcript.scroll_page_down(animate=False)
        else:
            self.transcript.scroll_page_up(animate=False)

    def action_top(self) -> None:
        self.transcript.scroll_home(animate=False)

    def action_end(self) -> None:
        self._catch_up()
        self.transcript.follow_end()
