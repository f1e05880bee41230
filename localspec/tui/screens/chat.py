"""The chat screen: transcript, message box, speculation panel and status line."""

from __future__ import annotations

import time

from rich.cells import cell_len
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from localspec.chat import slash_commands
from localspec.tui import slash_handlers
from localspec.tui.app_options import AppOptions
from localspec.tui.centered import CenteredColumn
from localspec.tui.chat_session import ChatSession
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.key_bindings import bindings_for, fit_footer, format_footer, format_key
from localspec.tui.screens.chat_generation import GenerationScreen
from localspec.tui.screens.chat_settings import ChatSettingsScreen
from localspec.tui.screens.turns import TurnChoice, TurnsScreen
from localspec.tui.text.turn_text import format_attachment
from localspec.tui.timer import set_reliable_timer
from localspec.tui.widgets.composer import MessageComposer
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from localspec.tui.widgets.token_details import TokenDetails
from localspec.tui.widgets.transcript import EmptyChatHint, Transcript
from localspec.units import milliseconds

PANEL_REFRESH_SECONDS = 0.2
"""Minimum time between two updates of the panel while an answer streams."""


class ChatScreen(GenerationScreen):
    BINDINGS = bindings_for("chat")
    KEY_CONTEXTS = ("chat",)
    AUTO_FOCUS = "#composer"  # set before the first draw: no typed key is lost

    def __init__(self, session: ChatSession, runner: EngineRunner, options: AppOptions) -> None:
        super().__init__(session, runner, options)
        self._panel_refresh_pending = False
        self._drawn_title = ""

    # --- widgets --------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        with Horizontal(id="title"):
            yield Static(Content(self.session.pair_name), id="pair", markup=False)
            yield Static("", id="topic", markup=False)
        with Horizontal(id="body"):
            with CenteredColumn(id="main"):
                yield EmptyChatHint()
                yield Transcript(self.options.glyphs, show_marks=self.options.show_token_marks)
                yield TokenDetails(self.options.glyphs)
                yield Static("", id="attached", markup=False)
                with Vertical(id="typing"):
                    yield MessageComposer(self.options.keymap)
            yield SpeculationPanel(self.options.glyphs)
        yield StatusBar(self.options)

    def on_mount(self) -> None:
        self.query_one(TokenDetails).display = False
        self.show_conversation()
        self.composer.focus()
        self.load()

    # --- typing ---------------------------------------------------------------------------

    @on(MessageComposer.Submitted)
    async def _submit_message(self, message: MessageComposer.Submitted) -> None:
        text = message.text
        call = slash_commands.parse(text)
        if call is not None:
            await slash_handlers.execute(self, call)
        elif self.phase == "answering":
            self.composer.restore_text(text)
            self.notify("Wait for the answer to finish, or press esc to stop it.", markup=False)
        elif self.phase in ("loading", "inspecting", "failed"):
            self._queue_message(text)
        else:
            await self.send(slash_commands.unescape(text))

    def _queue_message(self, text: str) -> None:
        """Sends the text when the model has loaded; loads it again if loading failed."""
        if text.strip():
            self._queued_text = f"{self._queued_text}\n{text}" if self._queued_text else text
        if self.phase == "failed":
            self.load()
        elif self.phase == "inspecting":
            self.runner.stop_answer()
        else:
            self.notify("Sends when the model has loaded.", markup=False)

    # --- drawing --------------------------------------------------------------------------

    def draw(self, state: str = "") -> None:
        """Redraws everything but the transcript."""
        session = self.session
        self.transcript.show_thinking(session.settings.show_thinking)
        for notice in session.take_save_notices():
            self._show_notice(notice)
        title = self._private_prefix() + session.title
        if title != self._drawn_title:
            self._drawn_title = title
            self.query_one("#topic", Static).update(Content(self._drawn_title), layout=False)
        attached = self.query_one("#attached", Static)
        attached.display = bool(session.pending_attachments)
        if session.pending_attachments:
            files = "   ".join(format_attachment(file) for file in session.pending_attachments)
            attached.update(Content(f"{files}   /read - removes them"))
        empty_hint = self.query_one(EmptyChatHint)
        empty_hint.display = not session.conversation.turns and not self.transcript.has_error
        self.transcript.display = not empty_hint.display
        empty_hint.draw(session.loaded, session.settings_summary)
        if state or self.phase != "answering":
            self.query_one(SpeculationPanel).draw(session.stats, state)
        elif not self._panel_refresh_pending:
            self._panel_refresh_pending = True
            set_reliable_timer(self, PANEL_REFRESH_SECONDS, self._refresh_panel)
        self.query_one(StatusBar).draw(session, self.phase, self.transcript)

    def _private_prefix(self) -> str:
        """A prefix for the title of a chat that is not saved."""
        is_saved = self.options.chats is None or self.session.recorder.is_saving
        return "" if is_saved else f"not saved {self.options.glyphs.dot} "

    def _refresh_panel(self) -> None:
        self._panel_refresh_pending = False
        self.query_one(SpeculationPanel).draw(self.session.stats)

    @on(Transcript.FollowingChanged)
    def _follow_changed(self) -> None:
        self.draw()

    # --- keys -----------------------------------------------------------------------------

    def action_stop(self) -> None:
        if self.phase == "answering":
            if self._stop_time is None:
                self._stop_time = time.monotonic()
                self.transcript.set_note("stopping …")
            self.runner.stop_answer()
        elif self.phase == "loading" or not self.composer.text:
            if len(self.app.screen_stack) > 1:  # not if this is the only screen
                self.dismiss()
        else:
            self.composer.replace_text("")

    def action_panel(self) -> None:
        panel = self.query_one(SpeculationPanel)
        self.options.show_panel = not panel.display
        self.set_class(self.options.show_panel, "-panel")
        self.set_class(not self.options.show_panel, "-no-panel")

    def action_settings(self) -> None:
        def on_dismiss(_: object) -> None:
            self.session.save_metadata()
            self.draw()

        self.app.push_screen(ChatSettingsScreen(self.session), on_dismiss)

    async def action_again(self) -> None:
        """Regenerates the last answer; after a crash, reloads and finishes it with its seed."""
        turns = self.session.conversation.turns
        if self.phase == "failed":
            self._finish_after_load = bool(turns) and turns[-1].finish_reason is None
            self.load()
        elif self.phase == "ready" and turns:
            await self._generate(self.session.regenerate)

    async def action_edit(self) -> None:
        """Puts the last question back into the message box."""
        # Not while its probabilities are computed: they would be shown for another answer.
        if self.phase not in ("answering", "inspecting") and self.session.conversation.turns:
            self.transcript.remove_last_turn()
            self.composer.replace_text(self.session.undo_turn())
            self.composer.focus()
            self.draw()

    def action_turns(self) -> None:
        if self._notify_if_busy():
            return
        session = self.session
        ids_before = [turn.id for turn in session.conversation.turns]

        async def on_dismiss(choice: TurnChoice | None) -> None:
            if ids_before != [turn.id for turn in session.conversation.turns]:
                self.show_conversation()
                session.save_metadata()
            if choice is not None:
                await self._return_to_turn(choice)
            self.draw()

        sheet = TurnsScreen(session.conversation, self.options.glyphs, session.thinking_markers)
        self.app.push_screen(sheet, on_dismiss)

    async def _return_to_turn(self, choice: TurnChoice) -> None:
        """The turns after it stay available as a branch."""
        question = self.session.undo_turn(choice.turn_id)
        self.show_conversation()
        if choice.action == "edit" or self.phase != "ready":
            self.composer.replace_text(question)
            self.composer.focus()
        else:
            await self.send(question)

    @property
    def busy(self) -> bool:
        """Whether there is an answer to stop."""
        return self.phase == "answering"

    def _notify_if_busy(self) -> bool:
        if self.phase not in ("answering", "inspecting"):
            return False
        self.notify("Press esc to stop the answer first.", markup=False)
        return True

    def action_bench(self) -> None:
        """Uses the loaded engine; the chat's prompt is read again afterwards."""
        from localspec.tui.screens.bench import BenchScreen  # noqa: PLC0415  keeps start-up fast

        if self._notify_if_busy():
            return
        if self.phase == "loading":
            self.notify("Wait until the model has loaded.", markup=False)
            return

        def on_dismiss(_: None) -> None:
            if self.runner.engine is None:
                self.load()

        self.app.push_screen(
            BenchScreen(self.session.pair_name, self.session.choice, self.runner, self.options),
            on_dismiss,
        )

    def action_new(self, private: bool = False) -> None:
        if self._notify_if_busy():
            return
        private = private or (self.options.chats is not None and self.options.chats.private)
        self.session.start_new_chat(private=private)
        self.transcript.clear_turns()
        self.composer.focus()
        self.draw()


# --- status line --------------------------------------------------------------------------

_NARROW_WIDTH = 80
"""The app's breakpoint for narrow terminals."""


class StatusBar(Static):
    """Keys at the left, numbers at the right. A single text, so that the layout does not move."""

    def __init__(self, options: AppOptions) -> None:
        super().__init__(markup=False)
        self._options = options
        self._keys_and_numbers = ("", "")

    def draw(self, session: ChatSession, phase: str, transcript: Transcript) -> None:
        keymap = self._options.keymap
        if transcript.is_cursor_active:
            keys = format_footer(keymap, "tokens")
        else:
            labels = {"chat.stop": "stop" if phase == "answering" else "back"}
            keys = format_footer(keymap, "composer", "chat", "app", label_overrides=labels)
            if transcript.token_view:
                send, _, others = keys.partition("  ")
                walk_key = format_key(keymap.get("chat.walk", "tab"))
                keys = f"{send}  {walk_key} select token  {others}"
        numbers = _status_numbers(session, phase)
        if transcript.is_cursor_active and self.app.size.width < _NARROW_WIDTH:
            numbers = ""  # the keys are needed to leave the token view
        if not transcript.following:
            end_key = format_key(keymap.get("chat.end", "ctrl+end"))
            numbers = f"more below: {end_key}   {numbers}"
        if self._keys_and_numbers != (keys, numbers):
            self._keys_and_numbers = (keys, numbers)
            self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        keys, numbers = self._keys_and_numbers
        width = self.content_size.width
        keys = fit_footer(keys, width - cell_len(numbers) - 3)
        space = " " * (width - cell_len(keys) - cell_len(numbers))
        self.update(Content(f"{keys}{space}{numbers}"), layout=False)


def _status_numbers(session: ChatSession, phase: str) -> str:
    stats = session.stats
    if phase == "loading":
        return "loading"
    parts: list[str] = []
    if stats.prefill is not None and stats.prefill.done < stats.prefill.total:
        parts.append(f"reading prompt {stats.prefill.done:,} / {stats.prefill.total:,}")
    if session.loaded is not None:
        parts.append(
            f"ctx {_short_count(stats.context_tokens)} / {_short_count(session.loaded.n_ctx)}"
        )
    if session.n_omitted_turns:
        turns = "turn" if session.n_omitted_turns == 1 else "turns"
        parts.append(f"{session.n_omitted_turns} old {turns} left out")
    if stats.reused_tokens:
        parts.append(f"reused {_short_count(stats.reused_tokens)}")
    if stats.first_token_ms is not None and phase != "answering":
        parts.append(f"first token {milliseconds(stats.first_token_ms)}")
    return "   ".join(parts)


def _short_count(n: int) -> str:
    return f"{n / 1000:.1f}k" if n >= 1000 else str(n)
