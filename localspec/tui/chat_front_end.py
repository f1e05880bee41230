"""The chat screen as a front end of the slash commands; most run a key's action."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from localspec.chat import slash_commands
from localspec.chat.document_attachment import NO_FILES
from localspec.chat.front_end import CommandResult, PickerChoices
from localspec.chat.pictures import PictureLoader
from localspec.chat.session import ChatSession
from localspec.chat.slash_commands import CommandCall, UnknownCommand
from localspec.documents.reading import FileRequest
from localspec.errors import LocalspecError
from localspec.tui.dialogs.choices import PickerScreen
from localspec.tui.navigation import ShowHelp, ShowLog, ShowMeasurement
from localspec.tui.notices import copy_text, run_in_background
from localspec.tui.text.wrapping import one_line

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen


def run_command(screen: ChatScreen, call: CommandCall | UnknownCommand) -> None:
    """Runs a slash command; errors become notifications."""
    try:
        slash_commands.run(call, ScreenFrontEnd(screen))
    except LocalspecError as error:
        screen.show_warning(error)


class ScreenFrontEnd:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen

    @property
    def session(self) -> ChatSession:
        return self._screen.session

    def warn_if_busy(self) -> bool:
        return self._screen.notify_if_busy()

    def show_message(self, message: str) -> None:
        self._screen.notify(one_line(message), markup=False)

    def show_result(self, result: CommandResult, *, turns_changed: bool) -> None:
        screen = self._screen
        if turns_changed:
            screen.transcript.show_session(screen.session)
        if result.input_text is not None:
            screen.composer.edit_text(result.input_text)
        self.show_message(result.message)
        screen.load_if_changed()
        screen.draw()

    def pick(self, command: str, choices: PickerChoices) -> None:
        """Opens a dialog over the chat."""
        if self._screen.notify_if_busy():
            return

        def on_dismiss(name: str | None) -> None:
            if name:
                run_command(self._screen, CommandCall(command, name))

        session = self.session
        dialog = PickerScreen(choices, session.pair_name, pair=session.pair)
        self._screen.app.push_screen(dialog, on_dismiss)

    def regenerate(self) -> None:
        self._screen.load_if_changed(regenerate=True)

    def edit_last(self, question: str) -> None:
        screen = self._screen
        if question and screen.phase == "ready":
            screen.generate(lambda: screen.session.edit_last(question))
            return
        screen.action_edit()
        if question:  # It cannot be sent yet.
            screen.composer.edit_text(question)

    def copy_text(self, select: Callable[[], str]) -> None:
        copy_text(self._screen.app, select)

    def run_long(self, work: Callable[[], str]) -> None:
        run_in_background(self._screen.app, work)

    def read_document(self, request: FileRequest) -> None:
        self._screen.documents.read(request)

    def remove_attachments(self) -> None:
        self._screen.documents.forget()
        self.session.pending_attachments = ()
        self.show_message(NO_FILES)
        self._screen.draw()

    def attach_pictures(self, *loaders: PictureLoader) -> None:
        self._screen.composer.attach_pictures(*loaders)

    def mark_tokens(self, *, marked: bool) -> None:
        if marked != self._screen.transcript.colours:
            self._screen.action_tokens()

    def load_anyway(self) -> None:
        screen = self._screen
        if screen.phase == "failed":
            screen.options.force_load.add(screen.session.pair.files)
            screen.load()
        else:
            self.show_message("The model is already loaded, or is loading.")

    def start_benchmark(self) -> None:
        """Uses the loaded engine; the chat's prompt is read again afterwards."""
        screen = self._screen
        if screen.notify_if_busy():
            return
        if screen.phase == "loading":
            self.show_message("Wait until the model has loaded.")
            return

        def on_leave() -> None:
            if screen.runner.engine is None:
                screen.load()

        session = screen.session
        screen.app.post_message(
            ShowMeasurement("bench", session.pair_name, session.pair, on_leave)
        )

    def show_commands(self) -> None:
        self._screen.app.post_message(ShowHelp("commands"))

    def show_keys(self) -> None:
        self._screen.app.post_message(ShowHelp())

    def show_turns(self) -> None:
        self._screen.action_turns()

    def show_settings(self) -> None:
        self._screen.action_settings()

    def show_statistics(self) -> None:
        self._screen.action_panel()

    def show_tools(self) -> None:
        self._screen.show_tools()

    def show_tool_call(self, number: int) -> None:
        self._screen.show_call(number)

    def show_engine_log(self) -> None:
        self._screen.app.post_message(ShowLog())

    def quit(self) -> None:
        self._screen.app.exit()
