"""The chat screen: a chat session with its transcript, message box and speculation
panel.

Threads post messages; only message handlers draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from localspec.chat import copying, examples, slash_commands
from localspec.chat.history import SearchHit
from localspec.chat.repetition import RepetitionWatch
from localspec.chat.session import ChatSession
from localspec.chat.settings import OverflowPolicy
from localspec.errors import DoesNotFitError, LocalspecError
from localspec.launch import SETTINGS_NOTICE
from localspec.protocol.events import Notice
from localspec.tui import slash_handlers
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.engine_runner import (
    AnswerEnded,
    AnswerInspected,
    DeltasReady,
    EngineLoaded,
    EngineLoadEvent,
    EngineLoadFailed,
    EngineRunner,
    OverflowRequest,
)
from localspec.tui.key_bindings import bindings_for
from localspec.tui.navigation import OpenScreen
from localspec.tui.notices import copy_text, show_notice
from localspec.tui.scheduling import FramePacer
from localspec.tui.text.turn_text import format_end_reason
from localspec.tui.widgets.composer import AttachedFiles, MessageComposer
from localspec.tui.widgets.screen_frame import CenteredColumn, StatusBar
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.token_details import TokenDetails
from localspec.tui.widgets.transcript import EmptyChatHint, Transcript

# An escape this soon after an answer ended was meant to stop it.
LATE_ESCAPE_SECONDS = 1.0
TYPING_SECONDS = 3.0  # After the last key, somebody types.
SECOND_ESCAPE_SECONDS = 2.0


class ChatScreen(Screen[None]):
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
        self._found = found
        self.session, self.runner, self.options = session, runner, options
        # `loading`, `ready`, `answering`, `inspecting` or `failed`.
        self.phase = "loading"
        self._pacer = FramePacer()
        self._drawn_titles = ("", "")
        self.is_on_for_show = False
        """Whether the key for speculation chose to draft where `auto` pauses."""
        self._logprobs_requested, self._repetition = False, RepetitionWatch()
        self._stop_time: float | None = None
        self._end_time = self._escape_time = float("-inf")
        self._queued_text: str | None = None  # Typed before the model was loaded.
        self._regenerate_after_load = False
        """To finish the answer that a crash interrupted, or for another model's answer.
        """
        self._load_key: object = None  # The `ChatSession.load_key` of the last load.

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with CenteredColumn(id="main"):
                yield EmptyChatHint()
                yield Transcript(show_marks=self.options.show_token_marks)
                yield TokenDetails()
                yield AttachedFiles()
                with Vertical(id="typing"):
                    composer = MessageComposer(self.options.keymap, self.session)
                    yield composer.completions
                    yield composer
            yield SpeculationPanel(self.options.ascii_only)
        yield StatusBar(self.options)

    def on_mount(self) -> None:
        self.query_one(TokenDetails).display = False
        self.apply_preferences()
        self._show_saved_turns()
        self.composer.replace_text(self.session.draft)
        self.composer.focus()
        self.load()

    def _show_saved_turns(self) -> None:
        if (found := self._found) is not None and found.turn is not None:
            self.session.show_turn(found.turn)
            self.call_after_refresh(self.transcript.show_match, found)
        self.transcript.show_session(self.session)

    def on_unmount(self) -> None:
        self.session.finish_answer()
        self.runner.cancel_overflow_request()

    def apply_preferences(self) -> None:
        self.session.saves_new_chats = not (
            self.options.chats and self.options.chats.private
        )
        if self.transcript.show_marks != self.options.show_token_marks:
            self.transcript.action_glyphs()
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

    def load(self) -> None:
        session = self.session
        self.phase, self._load_key = "loading", session.load_key
        self.transcript.clear_error()
        request = self.options.build_load_request(
            session.pair, exact=session.settings.exact, ctx=session.settings.ctx
        )
        self.runner.load(request, self.post_message)
        self.draw()

    def load_if_changed(self, *, regenerate: bool = False) -> None:
        """Loads another pair or context size; `regenerate`: then answers the last
        question.
        """
        if self._load_key != self.session.load_key:
            self._regenerate_after_load = regenerate
            self.load()
        elif regenerate:
            self.action_again()

    @on(EngineLoadEvent)
    def _show_load_notice(self, message: EngineLoadEvent) -> None:
        if isinstance(message.event, Notice):
            show_notice(self, message.event)

    @on(EngineLoaded)
    async def _engine_ready(self, message: EngineLoaded) -> None:
        is_first_load = self.session.loaded is None
        self.session.attach_engine(message.engine)
        # the chat format is known now
        if is_first_load and self.session.completes_text:
            self._show_saved_turns()
        for notice in message.engine.ready.notices:
            if notice.code != SETTINGS_NOTICE:  # the empty chat shows the settings
                show_notice(self, notice)
        self.phase = "ready"
        self.draw()
        if self._regenerate_after_load:
            self._regenerate_after_load = False
            self.generate(self.session.regenerate)
        else:
            self._send_queued()

    @on(EngineLoadFailed)
    def _load_failed(self, message: EngineLoadFailed) -> None:
        self.phase = "failed"
        self.composer.restore_text(self._queued_text or "")
        self._queued_text = None
        self._regenerate_after_load = False
        does_not_fit = isinstance(message.error, DoesNotFitError)
        is_new_pair = (
            self.session.previous_pair is not None and self.session.loaded is None
        )
        hints = ("/anyway load anyway",) * does_not_fit + (
            "/model - previous model",
        ) * is_new_pair
        self.transcript.show_error(message.error, (*hints, *self._reload_hints()))
        self.draw()

    def _reload_hints(self) -> tuple[str, ...]:
        finish = ("f5 reload and finish the answer",) * self.session.is_interrupted
        return (*finish, "enter reload", "ctrl+l engine log", "esc back")

    @on(MessageComposer.Submitted)
    async def _submit_message(self, message: MessageComposer.Submitted) -> None:
        text = message.text
        if (call := slash_commands.parse(text)) is not None:
            await slash_handlers.execute(self, call)
        elif self.phase == "answering":
            self.composer.restore_text(text)
            self.notify(
                "Wait for the answer to finish, or press esc to stop it.", markup=False
            )
        elif self.phase in ("loading", "inspecting", "failed"):
            self._queue_message(text)
        else:
            self.send(slash_commands.unescape(text))

    def _queue_message(self, text: str) -> None:
        """Sends the text when the model has loaded; loads it again if loading failed."""
        if text.strip():
            self._queued_text = (
                f"{self._queued_text}\n{text}" if self._queued_text else text
            )
        if self.phase == "failed":
            self.load()
        elif self.phase == "inspecting":
            self.runner.stop_answer()
        else:
            self.notify("Sends when the model has loaded.", markup=False)

    def _send_queued(self) -> None:
        if self._queued_text is not None:
            text, self._queued_text = self._queued_text, None
            self.send(text)

    def send(self, text: str) -> None:
        if not text.strip() and (example := self.session.next_example()):
            self.composer.restore_text(example)
        elif not self.session.can_ask(text):
            self.notify("Nothing to send yet.", markup=False)
        elif not self.generate(lambda: self.session.ask(text)):
            self.composer.restore_text(text)

    # --- answering
    # ------------------------------------------------------------------------

    def generate(self, begin_turn: Callable[[], None]) -> bool:
        """Starts a turn and its answer.

        Returns False and changes nothing if saving failed.
        """
        n_shown, session = len(self.session.conversation.turns), self.session
        try:
            begin_turn()
        except LocalspecError as error:
            self.show_warning(error)
            return False
        self.transcript.clear_error()
        if len(session.conversation.turns) == n_shown:  # replaces the last turn
            self.transcript.remove_last_turn()
        self.phase, self._repetition = "answering", RepetitionWatch()
        self._logprobs_requested, self._stop_time = False, None
        self.transcript.add_turn(session, session.conversation.turns[-1])
        self.runner.start_answer(
            session, self.post_message, probabilities=self.transcript.token_view
        )
        self.draw()
        return True

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

    @on(DeltasReady)
    def _schedule_fetch(self) -> None:
        self._pacer.call_at_next_frame(self, self._fetch_deltas)

    def _fetch_deltas(self) -> None:
        deltas, ended = self.runner.take_deltas()
        for delta in deltas:
            if isinstance(delta.event, Notice):
                show_notice(self, delta.event)
        if deltas and self.transcript.turns:
            self.transcript.add_deltas(deltas)
            if self._repetition.add_deltas(deltas):
                self.notify(
                    "It repeats itself: esc stops, f5 tries again.", markup=False
                )
        if ended is not None:
            self._finish_answer(ended)
        self.draw()

    def _finish_answer(self, ended: AnswerEnded) -> None:
        session, stopped_at, self._end_time = (
            self.session,
            self._stop_time,
            time.monotonic(),
        )
        self.phase = "failed" if ended.engine_died else "ready"
        if (withdrawn := session.withdrawn_question) is not None:
            self.transcript.show_session(session)
            self.composer.restore_text(withdrawn)
        else:
            stop_ms = (
                None if stopped_at is None else (time.monotonic() - stopped_at) * 1e3
            )
            note = format_end_reason(session.conversation.turns[-1], stop_ms)
            self.transcript.finish_answer(note)
        if ended.error is not None:
            retry = "f6 edit the question" if withdrawn is None else "enter send again"
            keys = self._reload_hints() if ended.engine_died else (retry, "f4 settings")
            self.transcript.show_error(ended.error, keys)
        elif self.runner.engine is not None:
            session.update_costs(self.runner.engine)
            if session.is_paused and len(session.conversation.turns) == 1:
                self.notify(examples.PAUSED_HINT, markup=False)

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
            self._send_queued()

    def draw(self) -> None:
        """Redraws everything but the transcript."""
        session = self.session
        self.transcript.show_thinking(session.settings.show_thinking)
        for notice in session.take_notices():
            show_notice(self, notice)
        is_saved = self.options.chats is None or session.recorder.is_saving
        dot = " · "
        title = f"{'' if is_saved else f'not saved{dot}'}{session.title}"
        title = dot.join(filter(None, (self.runner.server_note, title)))
        if (titles := (session.pair_name, title)) != self._drawn_titles:
            self._drawn_titles = titles
            self.query_one("#pair", Static).update(Content(session.pair_name))
            self.query_one("#topic", Static).update(Content(title))
        self.query_one(AttachedFiles).draw(session.pending_attachments)
        self.composer.show_size()
        empty_hint = self.query_one(EmptyChatHint)
        empty_hint.display = (
            not session.conversation.turns and not self.transcript.has_error
        )
        self.transcript.display = not empty_hint.display
        empty_hint.draw(session)
        panel = self.query_one(SpeculationPanel)
        panel.draw_session(session, self.phase)
        status = self.query_one(StatusBar)
        status.draw(session, self.phase, self.transcript, with_speed=not panel.display)

    @on(Transcript.FollowingChanged)
    def _follow_changed(self) -> None:
        self.draw()

    # --- keys: turns
    # ----------------------------------------------------------------------

    def action_stop(self) -> None:
        if self.phase == "answering":
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
        """Asks for a second escape while somebody types: the first was meant for
        something else.
        """
        now = time.monotonic()
        is_typing = now - self.composer.typed_at < TYPING_SECONDS
        if is_typing and now - self._escape_time > SECOND_ESCAPE_SECONDS:
            self._escape_time = now
            self.notify("Press esc again to leave the chat.", markup=False, timeout=2)
            return
        self.composer.restore_text(self._queued_text or "")
        self.session.draft = self.composer.text
        self.dismiss()

    def action_again(self) -> None:
        """Regenerates the last answer; after a crash, reloads and finishes it with its
        seed.
        """
        if self.phase == "failed":
            self._regenerate_after_load = self.session.is_interrupted
            self.load()
        elif self.phase == "ready" and self.session.conversation.turns:
            self.generate(self.session.regenerate)

    def action_edit(self) -> None:
        turns = self.session.conversation.turns
        # Not while its probabilities are computed: they would be shown for another
        # answer.
        if self.phase not in ("answering", "inspecting") and turns:
            self.transcript.remove_last_turn()
            self.composer.edit_text(self.session.return_to(turns[-1].id))
            self.composer.focus()
            self.draw()

    def action_turns(self) -> None:
        if not self.notify_if_busy():
            slash_handlers.open_turns(self)

    def notify_if_busy(self) -> bool:
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

    def action_panel(self) -> None:
        if self.has_class("-narrow"):
            self.notify("The panel needs 80 columns.", timeout=3, markup=False)
            return
        self.options.show_panel = not self.query_one(SpeculationPanel).display
        self.set_class(self.options.show_panel, "-panel")
        self.set_class(not self.options.show_panel, "-no-panel")
        self.call_after_refresh(self.draw)

    def on_resize(self) -> None:
        self.call_after_refresh(self.draw)

    async def action_speculation(self) -> None:
        await slash_handlers.toggle_speculation(self)

    def action_settings(self, field: str = "") -> None:
        slash_handlers.open_settings(self, field)

    def action_pick(self, command: str) -> None:
        """`model` or `preset`."""
        if not self.notify_if_busy():
            slash_handlers.pick(self, command)

    def action_tokens(self) -> None:
        show = not self.transcript.token_view
        self.query_one(TokenDetails).display = show
        self.transcript.show_tokens(show)
        if show:
            request = self.session.build_inspect_request()
            if (
                self.phase == "ready"
                and request is not None
                and not self._logprobs_requested
            ):
                self.phase, self._logprobs_requested = "inspecting", True
                self.runner.inspect(request, self.post_message)
        if not self.transcript.is_cursor_active:
            self.composer.focus()
        self.draw()

    def action_walk(self) -> None:
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
        details, show_marks = self.query_one(TokenDetails), self.transcript.show_marks
        details.show_token(message.token, message.round, show_marks)

    def action_replay(self, number: int = -1) -> None:
        turns = self.session.conversation.turns
        if turns and turns[number].rounds:
            prompt = turns[number].question + (
                "" if self.session.completes_text else "\n\n"
            )
            rounds = self.transcript.turns[number].scored_rounds
            given = prompt, rounds, self.options
            self.post_message(OpenScreen("replay.ReplayScreen", given))
        else:
            self.notify("No answer to replay yet.", markup=False)

    def action_copy(self, argument: str = "") -> None:
        self._copy(lambda: copying.select_text(self.session, argument))

    def action_copy_code(self, turn_id: int, number: int) -> None:
        self._copy(lambda: copying.code_block(self.session, turn_id, number))

    def _copy(self, select: Callable[[], str]) -> None:
        try:
            copy_text(self.app, select())
        except LocalspecError as error:
            self.show_warning(error)

    def action_thinking(self) -> None:
        self.session.change_settings(
            show_thinking=not self.session.settings.show_thinking
        )
        self.draw()

    def action_serve(self) -> None:
        slash_handlers.show_server(self)

    def action_page(self, by: int) -> None:
        scroll = (
            self.transcript.scroll_page_down
            if by > 0
            else self.transcript.scroll_page_up
        )
        scroll(animate=False)

    def action_top(self) -> None:
        self.transcript.scroll_home(animate=False)

    def action_end(self) -> None:
        self.transcript.follow_end()
