"""Handlers of the slash commands in the app; most run the action of a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat import export
from localspec.chat.conversation import Attachment
from localspec.chat.slash_commands import CommandCall, UnknownCommand, find_command
from localspec.errors import LocalspecError
from localspec.sanitize import sanitize

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

_MAX_FILE_BYTES = 1_000_000
"""The largest file that /read attaches, in bytes."""


async def execute(screen: ChatScreen, call: CommandCall | UnknownCommand) -> None:
    """Runs a slash command; errors become notifications."""
    if isinstance(call, UnknownCommand):
        hint = (
            f"Did you mean {call.suggestion}?" if call.suggestion else "/help lists the commands."
        )
        unknown = sanitize(call.text, multiline=False)
        screen.notify(f"Unknown command: {unknown}. {hint}", markup=False)
        return
    command = find_command(call.name)
    if command.requires_argument and not call.argument:
        screen.notify(f"Usage: {command.usage}", markup=False)
        return
    try:
        pending = _HANDLERS[call.name](screen, call.argument)
        if pending is not None:
            await pending
    except (LocalspecError, OSError) as error:
        hint = error.hint if isinstance(error, LocalspecError) else ""
        message = sanitize(f"{error} {hint}", multiline=False)
        screen.notify(message, severity="warning", markup=False)


CommandHandler = Callable[["ChatScreen", str], Awaitable[None] | None]


def _action_handler(name: str) -> CommandHandler:
    async def handler(screen: ChatScreen, rest: str) -> None:
        await screen.run_action(name)

    return handler


def _set_option(screen: ChatScreen, rest: str) -> None:
    name, _, value = rest.partition(" ")
    _change_setting(screen, name, value)


def _change_setting(screen: ChatScreen, name: str, value: str) -> None:
    session = screen.session
    session.settings = session.changed(name, value)
    session.save_metadata()
    setting = sanitize(f"{name}: {session.settings.format_value(name)}", multiline=False)
    when = "" if name == "show_thinking" else ", from the next answer on"
    screen.notify(f"{setting}{when}.", markup=False)
    screen.draw()


def _set_speculation(screen: ChatScreen, rest: str) -> None:
    _change_setting(screen, "draft_max" if rest.isdecimal() else "spec", rest)


async def _set_thinking(screen: ChatScreen, rest: str) -> None:
    if rest == "show":
        await screen.run_action("thinking")
    else:
        _change_setting(screen, "think", rest)


def _set_system_prompt(screen: ChatScreen, rest: str) -> None:
    conversation = screen.session.conversation
    if rest:
        conversation.system = "" if rest == "-" else rest
        screen.session.save_metadata()
    shown = sanitize(conversation.system, multiline=False) or "none"
    screen.notify(f"System prompt: {shown}", markup=False)


async def _toggle_token_view(screen: ChatScreen, rest: str) -> None:
    if (rest != "off") != screen.transcript.token_view:
        await screen.run_action("tokens")


async def _edit_last_question(screen: ChatScreen, rest: str) -> None:
    await screen.run_action("edit")
    if rest:
        screen.composer.replace_text("")
        await screen.send(rest)


async def _undo_turn(screen: ChatScreen, rest: str) -> None:
    await screen.run_action("edit")
    screen.composer.replace_text("")
    screen.session.pending_attachments = ()


def _attach_file(screen: ChatScreen, rest: str) -> None:
    """Attaches a file to the next question; `-` removes the pending files."""
    if rest == "-":
        screen.session.pending_attachments = ()
        screen.draw()
        return
    path = Path(rest).expanduser()
    if path.stat().st_size > _MAX_FILE_BYTES:
        screen.notify("The file is too large to attach (more than 1 MB).", markup=False)
        return
    text = sanitize(path.read_text(encoding="utf-8", errors="replace"))
    file = Attachment(sanitize(path.name, multiline=False), text)
    screen.session.pending_attachments = (*screen.session.pending_attachments, file)
    screen.draw()


def _save_transcript(screen: ChatScreen, rest: str) -> None:
    session, path = screen.session, Path(rest).expanduser()
    chat = export.snapshot_chat(session.conversation, session.recorder.pair, session.settings)
    export.save_file(path, export.render(chat, path.suffix), overwrite=False)
    screen.notify(f"Saved to {sanitize(str(path), multiline=False)}", markup=False)


def _force_load(screen: ChatScreen, rest: str) -> None:
    if screen.phase == "failed":
        screen.options.force_load.add(screen.session.choice)
        screen.load()
    else:
        screen.notify("The model is already loaded, or is loading.", markup=False)


_HANDLERS: dict[str, CommandHandler] = {
    "help": _action_handler("app.help"),
    "exit": _action_handler("app.quit"),
    "clear": _action_handler("new"),
    "new": _action_handler("new"),
    "private": _action_handler("new(True)"),
    "regen": _action_handler("again"),
    "undo": _undo_turn,
    "edit": _edit_last_question,
    "turns": _action_handler("turns"),
    "system": _set_system_prompt,
    "set": _set_option,
    "show": _action_handler("settings"),
    "spec": _set_speculation,
    "stats": _action_handler("panel"),
    "think": _set_thinking,
    "tokens": _toggle_token_view,
    "copy": _action_handler("copy"),
    "read": _attach_file,
    "save": _save_transcript,
    "anyway": _force_load,
    "bench": _action_handler("bench"),
    "keys": _action_handler("app.help"),
    "logs": _action_handler("app.log"),
}
