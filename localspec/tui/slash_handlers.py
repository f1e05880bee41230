"""The slash commands that only the app has, or shows in its own way; most run a key's
action.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from localspec.chat import presets, session_commands
from localspec.chat.session_commands import parse_switch
from localspec.chat.slash_commands import CommandCall, UnknownCommand
from localspec.errors import LocalspecError
from localspec.models import model_lookup
from localspec.sanitize import sanitize
from localspec.tui.dialogs.choices import PickerScreen
from localspec.tui.dialogs.turns import TurnChoice, TurnsScreen
from localspec.tui.engine_runner import SharedServer
from localspec.tui.home_rows import PickerChoices
from localspec.tui.navigation import OpenScreen

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

# Commands that show other turns.
_PATH_COMMANDS = (
    "clear",
    "new",
    "private",
    "undo",
    "turns",
)


async def execute(screen: ChatScreen, call: CommandCall | UnknownCommand) -> None:
    """Runs a slash command; errors become notifications."""
    if isinstance(call, UnknownCommand):
        screen.notify(sanitize(call.message, multiline=False), markup=False)
        return
    handler = HANDLERS.get(call.name)
    try:
        is_changing = (
            bool(call.argument) and call.name in session_commands.SESSION_COMMANDS
        )
        if handler is not None and not is_changing:
            session_commands.check_argument(call)
            pending = handler(screen, call)
            if pending is not None:
                await pending
        elif call.name not in _PATH_COMMANDS or not screen.notify_if_busy():
            _run_session_command(screen, call)
    except LocalspecError as error:
        screen.show_warning(error)


async def toggle_speculation(screen: ChatScreen) -> None:
    """Off, or on; where `auto` pauses, first on for show: the draft drafts in every
    round.
    """
    session = screen.session
    spec = session.settings.spec
    if spec == "off":
        switch = "on"
    elif spec == "auto" and session.is_paused and session.pair.draft is not None:
        switch = "model"
    else:
        switch = "off"
    await execute(screen, CommandCall("spec", switch))
    if switch == "off" and spec == "model" and screen.is_on_for_show:
        session.last_drafter = "auto"
    screen.is_on_for_show = switch == "model"


def _run_session_command(screen: ChatScreen, call: CommandCall) -> None:
    result = session_commands.run_command(screen.session, call)
    if call.name in _PATH_COMMANDS:
        screen.transcript.show_session(screen.session)
    if result.input_text is not None:
        screen.composer.edit_text(result.input_text)
    screen.notify(sanitize(result.message, multiline=False), markup=False)
    screen.load_if_changed()
    screen.draw()


def open_settings(screen: ChatScreen, field: str) -> None:
    def on_dismiss(_: object) -> None:
        screen.session.save_metadata()
        if screen.phase == "ready":
            screen.load_if_changed()
        screen.draw()

    name = "chat_settings.ChatSettingsScreen"
    screen.post_message(OpenScreen(name, (screen.session, field), on_dismiss))


PICKER_CHOICES = {
    "model": PickerChoices(
        "Answer with another model",
        "a name, or the path of a .gguf file",
        model_lookup.list_installed,
    ),
    "preset": PickerChoices(
        "Use a preset: system prompt and settings",
        "a name; save NAME makes one of this chat",
        lambda: [(preset.name, preset.summary) for preset in presets.load().values()],
    ),
}


def pick(screen: ChatScreen, command: str) -> None:
    """Opens the dialog over a chat; what is chosen means the same as `/command CHOICE`."""

    async def on_dismiss(name: str | None) -> None:
        if name:
            await execute(screen, CommandCall(command, name))

    sheet = PickerScreen(PICKER_CHOICES[command], screen.session.pair_name)
    screen.app.push_screen(sheet, on_dismiss)


def show_server(screen: ChatScreen) -> None:
    """Serves the model of a chat, unless it is served, and shows the server's board."""
    runner = screen.runner
    if runner.server is None:
        if screen.phase != "ready" or runner.host is None:
            screen.notify("Wait until the model is ready.", markup=False)
            return
        try:
            runner.server = SharedServer(runner.host, screen.session)
        except LocalspecError as error:
            screen.show_warning(error)
            return
    board = runner.server.thread, screen.options, runner.stop_server
    name = "serve.SharedServeScreen"
    screen.post_message(OpenScreen(name, board, lambda _: screen.draw()))


def open_turns(screen: ChatScreen) -> None:
    session = screen.session
    ids_before = [turn.id for turn in session.conversation.turns]

    def on_dismiss(pair: TurnChoice | None) -> None:
        if ids_before != [turn.id for turn in session.conversation.turns]:
            screen.transcript.show_session(session)
            session.branch_changed()
        if pair is not None:
            question = session.return_to(pair.turn_id)
            screen.transcript.show_session(session)
            if pair.action == "again" and screen.phase == "ready":
                screen.send(question)
            else:
                screen.composer.edit_text(question)
                screen.composer.focus()
        screen.draw()

    sheet = TurnsScreen(session.conversation, session.thinking_markers)
    screen.app.push_screen(sheet, on_dismiss)


CommandHandler = Callable[["ChatScreen", CommandCall], Awaitable[None] | None]


def _action_handler(name: str) -> CommandHandler:
    async def handler(screen: ChatScreen, call: CommandCall) -> None:
        await screen.run_action(name)

    return handler


def _regenerate(screen: ChatScreen, call: CommandCall) -> None:
    """With a name: by another model."""
    screen.session.require_turns()
    if call.argument:
        result = session_commands.run_command(
            screen.session, CommandCall("model", call.argument)
        )
        screen.notify(result.message, markup=False)
        screen.load_if_changed(regenerate=True)
    else:
        screen.action_again()


def _edit_last_question(screen: ChatScreen, call: CommandCall) -> None:
    screen.session.require_turns()
    if call.argument and screen.phase == "ready":
        screen.generate(lambda: screen.session.edit_last(call.argument))
        return
    screen.action_edit()
    if call.argument:  # it cannot be sent yet
        screen.composer.edit_text(call.argument)


def _toggle_token_view(screen: ChatScreen, call: CommandCall) -> None:
    if parse_switch(call) != screen.transcript.token_view:
        screen.action_tokens()


def _force_load(screen: ChatScreen, call: CommandCall) -> None:
    if screen.phase == "failed":
        screen.options.force_load.add(screen.session.pair.files)
        screen.load()
    else:
        screen.notify("The model is already loaded, or is loading.", markup=False)


def _bench(screen: ChatScreen, call: CommandCall) -> None:
    """Uses the loaded engine; the chat's prompt is read again afterwards."""
    if screen.notify_if_busy():
        return
    if screen.phase == "loading":
        screen.notify("Wait until the model has loaded.", markup=False)
        return

    def on_dismiss(_: object) -> None:
        if screen.runner.engine is None:
            screen.load()

    session = screen.session
    given = "bench", session.pair_name, session.pair, screen.runner, screen.options
    screen.post_message(OpenScreen("measurement.make_screen", given, on_dismiss))


HANDLERS: dict[str, CommandHandler] = {
    "help": _action_handler("app.help('commands')"),
    "exit": _action_handler("app.quit"),
    "regen": _regenerate,
    "model": _action_handler("pick('model')"),
    "preset": _action_handler("pick('preset')"),
    "edit": _edit_last_question,
    "turns": _action_handler("turns"),
    "show": _action_handler("settings"),
    "stats": _action_handler("panel"),
    "tokens": _toggle_token_view,
    "copy": lambda screen, call: screen.action_copy(call.argument),
    "anyway": _force_load,
    "bench": _bench,
    "keys": _action_handler("app.help"),
    "logs": _action_handler("app.log"),
}
