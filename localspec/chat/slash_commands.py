"""The one table of slash commands, and how a line is read as one; nothing here does anything."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from localspec.chat.settings import CHAT_SETTING_FIELDS, value_choices
from localspec.speculation import SPECS


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """What can be typed after a slash."""

    name: str
    help: str
    argument: str = ""
    """As shown; in brackets where it may be left out."""
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    """Words that complete the argument."""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.argument}".rstrip()

    @property
    def requires_argument(self) -> bool:
        """Whether the argument must be there."""
        return bool(self.argument) and not self.argument.startswith("[")


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A known command, by its own name, and the rest of the line."""

    name: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """No such command; `nearest` is the most similar one, or empty."""

    text: str
    suggestion: str = ""


_ON_OFF = ("on", "off")
_SPEC_CHOICES = ("on", *SPECS)

COMMANDS = (
    SlashCommand("help", "Show these commands.", aliases=("?",)),
    SlashCommand("exit", "Quit.", aliases=("quit", "bye")),
    SlashCommand("clear", "Forget what was said; keep the system prompt and the settings."),
    SlashCommand("new", "Begin a new chat: as at the start, with another seed."),
    SlashCommand("private", "Begin a new chat that is not saved."),
    SlashCommand("regen", "Answer the last message again, with another seed.", aliases=("retry",)),
    SlashCommand("undo", "Take back the last message and its answer."),
    SlashCommand("edit", "Change the last message and answer it again.", "[TEXT]"),
    SlashCommand(
        "turns",
        "Earlier turns; N: back to one, to edit it; N B: its other branch B.",
        "[N [B]]",
        ("branches",),
    ),
    SlashCommand(
        "system", "Set the system prompt; without TEXT show it, `-` removes it.", "[TEXT]"
    ),
    SlashCommand(
        "set",
        "Change a setting for the next answer.",
        "NAME VALUE",
        choices=tuple(CHAT_SETTING_FIELDS),
    ),
    SlashCommand("show", "Show the model, the settings and the context."),
    SlashCommand(
        "spec", "What drafts; N: at most N guesses.", "on|off|DRAFTER|N", (), _SPEC_CHOICES
    ),
    SlashCommand("stats", "Show the numbers of the last answer."),
    SlashCommand(
        "think",
        "Let the model think, or show how it thinks.",
        "on|off|show",
        (),
        (*_ON_OFF, "show"),
    ),
    SlashCommand(
        "tokens", "Mark which tokens were guessed, kept, corrected.", "on|off", (), _ON_OFF
    ),
    SlashCommand("copy", "Copy the last answer."),
    SlashCommand("read", "Put a file before your next message.", "FILE"),
    SlashCommand(
        "save", "Save the chat, by its ending: .md, .html, .json or text.", "FILE", ("export",)
    ),
    SlashCommand("anyway", "Load the pair although it seems not to fit."),
    SlashCommand("bench", "Measure this pair, plain and with guesses."),
    SlashCommand("keys", "Show the keys."),
    SlashCommand("logs", "Show what the engine last said, and where the rest is."),
)

_BY_NAME = {word: command for command in COMMANDS for word in (command.name, *command.aliases)}
_COMMAND_PATTERN = re.compile(r"/([A-Za-z]+|\?)(?:\s+(.*))?", re.DOTALL)


def find_command(name: str) -> SlashCommand:
    """By its name or an alias.  Raises KeyError."""
    return _BY_NAME[name]


def parse(text: str) -> CommandCall | UnknownCommand | None:
    """The command in a message; None where it is none, but something to say.

    A path (`/usr/bin`) is none, nor a text of several lines that only looks like an unknown one.
    """
    found = _COMMAND_PATTERN.fullmatch(text.strip())
    if found is None:
        return None
    name, rest = found[1].lower(), found[2] or ""
    if name in _BY_NAME:
        return CommandCall(_BY_NAME[name].name, rest)
    if "\n" in rest:
        return None
    near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.5)
    return UnknownCommand(f"/{name}", f"/{near[0]}" if near else "")


def unescape(text: str) -> str:
    """What is said by a message that is no command: `//help` says `/help`."""
    return text[1:] if text.startswith("//") and parse(text[1:]) is not None else text


def complete(prefix: str) -> list[str]:
    """Whole lines that a begun command may become."""
    if not prefix.startswith("/"):
        return []
    name, space, rest = prefix[1:].partition(" ")
    if not space:
        return [f"/{word}" for word in sorted(_BY_NAME) if word.startswith(name.lower())]
    known = _BY_NAME.get(name.lower())
    if known is None:
        return []
    if known.name == "set" and " " in rest:
        setting, _, value = rest.partition(" ")
        return [
            f"/{name} {setting} {word}" for word in value_choices(setting) if word.startswith(value)
        ]
    return [f"/{name} {word}" for word in known.choices if word.startswith(rest)]
