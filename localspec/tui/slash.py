"""Slash commands on the screen: each is what a key or a sheet does, or a line that tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.chat import export, transcript
from localspec.chat.commands import Call, Unknown
from localspec.chat.commands import command as known
from localspec.chat.turn import Attachment
from localspec.clean import clean
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.tui.screens.chat import ChatScreen

_LARGEST = 1_000_000
"""Bytes of a file that /read puts before a message."""


async def carry_out(screen: ChatScreen, call: Call | Unknown) -> None:
    """Do what was typed after a slash, or say why not."""
    if isinstance(call, Unknown):
        near = f" Did you mean {call.nearest}?" if call.nearest else " /help lists them."
        screen.notify(f"There is no {clean(call.text, multiline=False)}.{near}", markup=False)
        return
    if known(call.name).needs and not call.rest:
        screen.notify(f"Use: {known(call.name).usage}", markup=False)
        return
    try:
        done = _DEEDS[call.name](screen, call.rest)
        if done is not None:
            await done
    except (LocalspecError, OSError) as error:
        hint = error.hint if isinstance(error, LocalspecError) else ""
        words = clean(f"{error} {hint}", multiline=False)
        screen.notify(words, severity="warning", markup=False)


Deed = Callable[["ChatScreen", str], Awaitable[None] | None]


def _action(name: str) -> Deed:
    async def deed(screen: ChatScreen, rest: str) -> None:
        await screen.run_action(name)

    return deed


def _set(screen: ChatScreen, rest: str) -> None:
    name, _, value = rest.partition(" ")
    _change(screen, name, value)


def _change(screen: ChatScreen, name: str, value: str) -> None:
    dialogue = screen.dialogue
    dialogue.settings = dialogue.changed(name, value)
    dialogue.moved()
    shown = clean(f"{name}: {dialogue.settings.shown(name)}", multiline=False)
    when = "" if name == "show_thinking" else ", from the next answer on"
    screen.notify(f"{shown}{when}.", markup=False)
    screen.draw()


def _spec(screen: ChatScreen, rest: str) -> None:
    _change(screen, "draft_max" if rest.isdecimal() else "spec", rest)


async def _think(screen: ChatScreen, rest: str) -> None:
    if rest == "show":
        await screen.run_action("thinking")
    else:
        _change(screen, "think", rest)


def _system(screen: ChatScreen, rest: str) -> None:
    conversation = screen.dialogue.conversation
    if rest:
        conversation.system = "" if rest == "-" else rest
        screen.dialogue.moved()
    shown = clean(conversation.system, multiline=False) or "none"
    screen.notify(f"System prompt: {shown}", markup=False)


async def _tokens(screen: ChatScreen, rest: str) -> None:
    if (rest != "off") != screen.transcript.tokens:
        await screen.run_action("tokens")


async def _edit(screen: ChatScreen, rest: str) -> None:
    await screen.run_action("edit")
    if rest:
        screen.composer.put("")
        await screen.ask(rest)


async def _undo(screen: ChatScreen, rest: str) -> None:
    await screen.run_action("edit")
    screen.composer.put("")
    screen.dialogue.attached = ()


def _read(screen: ChatScreen, rest: str) -> None:
    """The file goes with the next question; `-` takes those that wait away."""
    if rest == "-":
        screen.dialogue.attached = ()
        screen.draw()
        return
    path = Path(rest).expanduser()
    if path.stat().st_size > _LARGEST:
        screen.notify("That file is too long to read into a message.", markup=False)
        return
    text = clean(path.read_text(encoding="utf-8", errors="replace"))
    file = Attachment(clean(path.name, multiline=False), text)
    screen.dialogue.attached = (*screen.dialogue.attached, file)
    screen.draw()


def _save(screen: ChatScreen, rest: str) -> None:
    dialogue, path = screen.dialogue, Path(rest).expanduser()
    kept = export.so_far(dialogue.conversation, dialogue.keeper.pair, dialogue.settings)
    transcript.save(path, export.written(kept, path.suffix), overwrite=False)
    screen.notify(f"Saved to {clean(str(path), multiline=False)}", markup=False)


def _anyway(screen: ChatScreen, rest: str) -> None:
    if screen.phase == "failed":
        screen.options.anyway.add(screen.dialogue.choice)
        screen.load()
    else:
        screen.notify("It is loaded already, or about to be.", markup=False)


_DEEDS: dict[str, Deed] = {
    "help": _action("app.help"),
    "exit": _action("app.quit"),
    "clear": _action("new"),
    "new": _action("new"),
    "private": _action("new(True)"),
    "regen": _action("again"),
    "undo": _undo,
    "edit": _edit,
    "turns": _action("turns"),
    "system": _system,
    "set": _set,
    "show": _action("settings"),
    "spec": _spec,
    "stats": _action("panel"),
    "think": _think,
    "tokens": _tokens,
    "copy": _action("copy"),
    "read": _read,
    "save": _save,
    "anyway": _anyway,
    "bench": _action("bench"),
    "keys": _action("app.help"),
    "logs": _action("app.log"),
}
