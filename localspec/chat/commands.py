"""The one table of slash commands, and how a line is read as one; nothing here does anything."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from localspec.chat.fields import FIELDS, names
from localspec.speculation import SPECS


@dataclass(frozen=True, slots=True)
class Command:
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
    def needs(self) -> bool:
        """Whether the argument must be there."""
        return bool(self.argument) and not self.argument.startswith("[")


@dataclass(frozen=True, slots=True)
class Call:
    """A known command, by its own name, and the rest of the line."""

    name: str
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No such command; `nearest` is the most similar one, or empty."""

    text: str
    nearest: str = ""


_SWITCH = ("on", "off")
_SPEC = ("on", *SPECS)

COMMANDS = (
    Command("help", "Show these commands.", aliases=("?",)),
    Command("exit", "Quit.", aliases=("quit", "bye")),
    Command("clear", "Forget what was said; keep the system prompt and the settings."),
    Command("new", "Begin a new chat: as at the start, with another seed."),
    Command("private", "Begin a new chat that is not saved."),
    Command("regen", "Answer the last message again, with another seed.", aliases=("retry",)),
    Command("undo", "Take back the last message and its answer."),
    Command("edit", "Change the last message and answer it again.", "[TEXT]"),
    Command(
        "turns",
        "Earlier turns; N: back to one, to edit it; N B: its other branch B.",
        "[N [B]]",
        ("branches",),
    ),
    Command("system", "Set the system prompt; without TEXT show it, `-` removes it.", "[TEXT]"),
    Command("set", "Change a setting for the next answer.", "NAME VALUE", choices=tuple(FIELDS)),
    Command("show", "Show the model, the settings and the context."),
    Command("spec", "What drafts; N: at most N guesses.", "on|off|DRAFTER|N", (), _SPEC),
    Command("stats", "Show the numbers of the last answer."),
    Command(
        "think",
        "Let the model think, or show how it thinks.",
        "on|off|show",
        (),
        (*_SWITCH, "show"),
    ),
    Command("tokens", "Mark which tokens were guessed, kept, corrected.", "on|off", (), _SWITCH),
    Command("copy", "Copy the last answer."),
    Command("read", "Put a file before your next message.", "FILE"),
    Command(
        "save", "Save the chat, by its ending: .md, .html, .json or text.", "FILE", ("export",)
    ),
    Command("anyway", "Load the pair although it seems not to fit."),
    Command("bench", "Measure this pair, plain and with guesses."),
    Command("keys", "Show the keys."),
    Command("logs", "Show what the engine last said, and where the rest is."),
)

_BY_NAME = {word: command for command in COMMANDS for word in (command.name, *command.aliases)}
_COMMAND = re.compile(r"/([A-Za-z]+|\?)(?:\s+(.*))?", re.DOTALL)


def command(name: str) -> Command:
    """By its name or an alias.  Raises KeyError."""
    return _BY_NAME[name]


def parse(text: str) -> Call | Unknown | None:
    """The command in a message; None where it is none, but something to say.

    A path (`/usr/bin`) is none, nor a text of several lines that only looks like an unknown one.
    """
    found = _COMMAND.fullmatch(text.strip())
    if found is None:
        return None
    name, rest = found[1].lower(), found[2] or ""
    if name in _BY_NAME:
        return Call(_BY_NAME[name].name, rest)
    if "\n" in rest:
        return None
    near = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.5)
    return Unknown(f"/{name}", f"/{near[0]}" if near else "")


def literal(text: str) -> str:
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
        return [f"/{name} {setting} {word}" for word in names(setting) if word.startswith(value)]
    return [f"/{name} {word}" for word in known.choices if word.startswith(rest)]
