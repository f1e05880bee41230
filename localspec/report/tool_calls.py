"""What a person reads about the call of a tool, before it runs and afterwards.

Names, arguments and results come from models and servers: all of them are sanitized
here.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from localspec.chat.tool_loop import REASON_MARK, CallState
from localspec.report.lines import Role
from localspec.sanitize import sanitize
from localspec.tools import folder_tools
from localspec.tools.approval import CallRequest, Verdict
from localspec.tools.tool_types import ToolDefinition
from localspec.units import count, short_count

ChoiceVerdict = Literal["once", "chat", "always", "no"]


class CallChoice(Struct, frozen=True):
    """One of the answers to the question whether a call may run."""

    verdict: ChoiceVerdict
    label: str
    consequence: str


CALL_CHOICES = (
    CallChoice("once", "Once", "run this call; the next one is asked for again"),
    CallChoice(
        "chat",
        "In this chat",
        "run this tool without asking, until another chat begins",
    ),
    CallChoice(
        "always", "Always", "in every chat, until the tool is described otherwise"
    ),
    CallChoice("no", "No", "do not run it; you can tell the model why"),
)
"""From the least that is allowed to the most, and last the refusal."""

CALL_QUESTION = "The model asks to run a tool. May it?"
_MAX_SUMMARY = 400  # Characters of the arguments, in one line.
_MAX_RESULT_LINE = 400
_MAX_NAME = 100
_MAX_DESCRIPTION = 200
_VISIBLE_CONTROLS = "\n\t"
_MODIFIERS = "\u200c\u200d\ufe0e\ufe0f"
"""The two joiners of Arabic, Indian scripts and emoji, and the two forms of emoji.

Each changes the look of the character before it, unless that is ASCII or one of them.
There it is invisible, and many of them in a row are a message that nobody sees.
"""
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0d\uffa0"
    "\U000e0100-\U000e01ef]"
)
"""Fillers and selectors of variants, which are letters or marks to Unicode."""
_MAY_BE_UNSEEN = re.compile(f"[{_MODIFIERS}]|{_INVISIBLE.pattern}")


class CallLook(Struct, frozen=True):
    """How the phase of a call is shown: a sign, words, and a role for the colour."""

    sign: str
    words: str
    role: Role


class CallArgument(Struct, frozen=True):
    name: str
    text: str
    """The whole value, on as many lines as it has."""


def show_exactly(text: str) -> str:
    """Text in which every character can be seen, because a person allows it as it is.

    `a\\x1b[2Kb` becomes `a\\u001b[2Kb`: an erased line would hide what runs.
    """
    if text.isprintable() and not _MAY_BE_UNSEEN.search(text):
        return text
    pieces: list[str] = []
    before = " "
    for character in text:
        if _is_seen(character, before):
            pieces.append(character)
        else:
            pieces.append(_spell_out(character))
        before = character
    return "".join(pieces)


def _is_seen(character: str, before: str) -> bool:
    """Whether a character can be seen behind the one before it."""
    if character in _MODIFIERS:
        if before in _MODIFIERS:
            return before == "\ufe0f" and character == "\u200d"  # As in some emoji.
        return not before.isascii()
    if _INVISIBLE.match(character):
        return False
    if character.isprintable() or character in _VISIBLE_CONTROLS:
        return True
    return unicodedata.category(character) == "Zs"  # A blank of any width.


def _spell_out(character: str) -> str:
    code = ord(character)
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


def call_name(request: CallRequest) -> str:
    """`server.tool`; of a tool that does not exist, what the model wrote."""
    return shorten_name(request.full_name)


def shorten_name(name: str) -> str:
    return sanitize(name, multiline=False)[:_MAX_NAME]


def describe_arguments(request: CallRequest) -> tuple[CallArgument, ...]:
    """Each argument in full. Arguments that are no JSON object are one argument."""
    if not request.arguments:
        text = request.arguments_text.strip()
        if text in ("", "{}"):
            return ()
        return (CallArgument("arguments", show_exactly(text)),)
    return tuple(
        CallArgument(show_exactly(name).replace("\n", " "), _format_value(value))
        for name, value in request.arguments.items()
    )


def _format_value(value: Any) -> str:
    """A string as it is, anything else as JSON."""
    if isinstance(value, str):
        return show_exactly(value)
    try:
        return show_exactly(json.dumps(value, ensure_ascii=False, indent=2))
    except RecursionError:  # The writer that indents gives up before the others do.
        return show_exactly(json.dumps(value, ensure_ascii=False))


def read_arguments(text: str) -> Mapping[str, Any]:
    """The arguments of a saved call; empty if they are no JSON object."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(arguments, dict):
        return {}
    return arguments


def summarise_arguments(request: CallRequest) -> str:
    """The arguments in one line, cut if they are long."""
    parts: list[str] = []
    for argument in describe_arguments(request):
        value = " ".join(argument.text[: 2 * _MAX_SUMMARY].split())
        if request.arguments:
            value = f"{argument.name}: {value}"
        parts.append(value)
    summary = ", ".join(parts)
    if len(summary) > _MAX_SUMMARY:
        return f"{summary[:_MAX_SUMMARY]}…"
    return summary


def describe_provider(tool: ToolDefinition) -> str:
    """What runs: `the server time (uvx mcp-server-time)`, or a folder."""
    origin = sanitize(tool.origin, multiline=False)
    if tool.provider == folder_tools.PROVIDER:
        return f"localspec itself, in the folder {origin}"
    if not tool.provider:
        return "a function of this program"
    name = sanitize(tool.provider, multiline=False)
    if not origin:
        return f"the server {name}"
    return f"the server {name} ({origin})"


def describe_description(tool: ToolDefinition) -> str:
    """What the provider says that the tool does, in one line; empty if it says nothing.

    A server may write anything there, so it is marked as the server's words.
    """
    words = " ".join(sanitize(tool.description, multiline=False).split())
    if not words or tool.provider == folder_tools.PROVIDER:
        return words
    if len(words) > _MAX_DESCRIPTION:
        words = f"{words[:_MAX_DESCRIPTION]}…"
    return f"The server says: “{words}”"


def describe_claims(tool: ToolDefinition) -> str:
    """`Its claims, unchecked: read-only.`; empty without a claim.

    The claims of our own folder tools are facts.
    """
    if not tool.claims:
        return ""
    claims = ", ".join(sanitize(claim, multiline=False) for claim in tool.claims)
    if tool.provider == folder_tools.PROVIDER:
        return f"It is {claims}."
    return f"Its claims, unchecked: {claims}."


def describe_allowance(verdict: Verdict) -> str:
    """Why a call ran; empty if a person has just said so."""
    words: dict[Verdict, str] = {
        "chat": "allowed in this chat",
        "always": "always allowed",
        "named": "allowed by --allow",
    }
    return words.get(verdict, "")


def look_of_call(state: CallState) -> CallLook:
    """The sign and the words of a state; each state has both, so no colour is needed."""
    match state.phase:
        case "writing":
            return CallLook("…", "the model writes the call", "muted")
        case "asking":
            return CallLook("?", "waits for your answer", "warning")
        case "running":
            return CallLook("▸", "running", "accent")
        case "refused":
            return CallLook("✗", "refused", "error")
        case "failed":
            return CallLook("✗", "failed", "error")
        case "stopped":
            return CallLook("✗", "stopped", "error")
        case "done":
            return CallLook("✓", "done", "success")


def describe_outcome(state: CallState) -> str:
    """The state in one line, with the size and the beginning of the result.

    For example `done, allowed in this chat · 1.2k characters: src/ tests/ README.md`.
    """
    words = look_of_call(state).words
    result = state.result
    if result is None:
        if state.phase != "writing":
            return words
        return f"{words}, {_count_characters(state.request.arguments_text)}"
    parts = [words]
    allowance = describe_allowance(result.verdict)
    if allowance and state.phase in ("done", "failed"):
        parts.append(f", {allowance}")
    if result.pictures:
        parts.append(f" · {count(len(result.pictures), 'picture')}")
    text = result.text
    if state.phase == "done" and text:
        parts.append(f" · {_count_characters(text)}")
    elif state.phase in ("refused", "stopped"):
        # Before the mark are our own words, which the phase has said already.
        text = text.partition(REASON_MARK)[2]
    beginning = first_line(text)
    if beginning:
        parts.append(f": {beginning}")
    return "".join(parts)


def _count_characters(text: str) -> str:
    if len(text) == 1:
        return "1 character"
    return f"{short_count(len(text))} characters"


def first_line(text: str) -> str:
    """The first words of a result, as one line."""
    beginning = text.lstrip()[: 2 * _MAX_RESULT_LINE]
    line = " ".join(sanitize(beginning, multiline=False).split())
    if len(line) > _MAX_RESULT_LINE:
        return f"{line[:_MAX_RESULT_LINE]}…"
    return line


def is_folded(text: str) -> bool:
    """Whether `describe_outcome` leaves out a part of a result."""
    return first_line(text) != text.strip()
