"""The table of slash commands, and the parsing of command lines."""

from __future__ import annotations

import difflib
import re

from msgspec import Struct

from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.speculation_methods import SPECS


class SlashCommand(Struct, frozen=True):
    name: str
    help: str
    argument: str = ""  # The argument as shown; in brackets if it is optional.
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()  # Words for completing the argument.

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def requires_argument(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")


class CommandCall(Struct, frozen=True):
    name: str  # The command's main name, even if an alias was typed.
    argument: str = ""


class UnknownCommand(Struct, frozen=True):
    text: str
    suggestion: str = ""  # The most similar command, or empty.

    @property
    def message(self) -> str:
        near = self.suggestion
        hint = f"Did you mean {near}?" if near else "/help lists the commands."
        return f"Unknown command: {self.text}. {hint}"


_ON_OFF = ("on", "off")

COMMANDS = (
    SlashCommand("help", "Show these commands.", aliases=("?",)),
    SlashCommand("exit", "Quit.", aliases=("quit", "bye")),
    SlashCommand(
        "clear", "Clear the conversation; keep the system prompt and the settings."
    ),
    SlashCommand("new", "Start a new chat with default settings and a new seed."),
    SlashCommand("private", "Start a new chat that is not saved."),
    SlashCommand(
        "regen",
        "Regenerate the last answer with a new seed; NAME: with another model.",
        "[NAME [DRAFT]]",
        ("retry",),
    ),
    SlashCommand(
        "model",
        "Answer with another model; without NAME, list those on this computer; -: the previous.",
        "[NAME [DRAFT]]",
        ("models",),
    ),
    SlashCommand(
        "draft", "Use another draft model.", "NAME|auto|none", choices=("auto", "none")
    ),
    SlashCommand(
        "ctx",
        "Show the context; N: load the model again with N tokens.",
        "[N|auto]",
        (),
        ("auto",),
    ),
    SlashCommand("undo", "Remove the last message and its answer."),
    SlashCommand("edit", "Edit the last message and regenerate the answer.", "[TEXT]"),
    SlashCommand(
        "turns",
        "List earlier turns; N: go back to turn N and edit it; N B: switch to its branch B.",
        "[N [B]]",
        ("branches",),
    ),
    SlashCommand(
        "system",
        "Set the system prompt; without TEXT, show it; `-` removes it.",
        "[TEXT]",
    ),
    SlashCommand(
        "set",
        "Change a setting for the next answer.",
        "NAME VALUE",
        choices=tuple(CHAT_SETTING_FIELDS),
    ),
    SlashCommand(
        "preset",
        "Use a system prompt and settings that were saved by name; without NAME, list them.",
        "[NAME|save NAME|delete NAME]",
        ("presets",),
        ("save", "delete"),
    ),
    SlashCommand("show", "Show the model, the settings and the context."),
    SlashCommand(
        "spec",
        "Turn speculation on or off, or choose a drafter; N: max draft tokens.",
        "on|off|DRAFTER|N",
        (),
        ("on", *SPECS),
    ),
    SlashCommand("stats", "Show statistics of the last answer."),
    SlashCommand(
        "think",
        "Turn thinking on or off, limit it, or show it.",
        "on|off|low|high|N|show",
        (),
        (*_ON_OFF, "low", "medium", "high", "show"),
    ),
    SlashCommand(
        "tokens", "Mark accepted, bonus and corrected tokens.", "on|off", (), _ON_OFF
    ),
    SlashCommand(
        "copy",
        "Copy the last answer; N: that of turn N; code N: a code block; all: the chat.",
        "[N|code [N]|all]",
        (),
        ("code", "all"),
    ),
    SlashCommand("read", "Attach a file to your next message.", "FILE"),
    SlashCommand(
        "save",
        "Save the chat to a file: .md, .html, .json or .txt.",
        "FILE",
        ("export",),
    ),
    SlashCommand("rename", "Give the chat another title.", "TITLE", ("title",)),
    SlashCommand("anyway", "Load the pair even if it may not fit in memory."),
    SlashCommand("bench", "Benchmark this pair, plain and speculative."),
    SlashCommand("keys", "Show the key bindings."),
    SlashCommand(
        "logs", "Show the last lines of the engine log, and the log file's path."
    ),
)

COMMANDS_BY_NAME = {
    word: each for each in COMMANDS for word in (each.name, *each.aliases)
}


def parse(text: str) -> CommandCall | UnknownCommand | None:
    """Parse a command line; None if the text is a normal message.

    A path (`/usr/bin`) is a message, and so is a multi-line text that begins with an
    unknown command.
    """
    match = re.fullmatch(r"/([A-Za-z]+|\?)(?:\s+(.*))?", text.strip(), re.DOTALL)
    if match is None:
        return None
    name, rest = match[1].lower(), match[2] or ""
    if name in COMMANDS_BY_NAME:
        return CommandCall(COMMANDS_BY_NAME[name].name, rest)
    if "\n" in rest:
        return None
    near = difflib.get_close_matches(name, COMMANDS_BY_NAME, n=1, cutoff=0.5)
    return UnknownCommand(f"/{name}", f"/{near[0]}" if near else "")


def unescape(text: str) -> str:
    """Remove the escape of a message that looks like a command: `//help` sends `/help`."""
    return text[1:] if text.startswith("//") and parse(text[1:]) is not None else text
