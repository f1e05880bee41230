"""What each slash command does in the linear chat."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import click

from localspec.chat import clipboard, export, slash_commands
from localspec.chat.conversation import Attachment, Conversation, Turn
from localspec.chat.recorder import ChatRecorder
from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import COMMANDS, CommandCall
from localspec.chat.thinking import strip_thinking
from localspec.cli import speculation_text
from localspec.cli.chat_state import ChatState
from localspec.errors import NotFoundError, StorageError, UsageError
from localspec.sanitize import sanitize
from localspec.units import short_count
from localspec.worker import engine_log

# --- Earlier turns and other branches, in the linear chat.

_MAX_QUESTION_LENGTH = 60


def format_turns(conversation: Conversation) -> Iterator[str]:
    """The turns of the path, and what was taken back."""
    for number, turn in enumerate(conversation.turns, 1):
        yield f"{number:>3}  {shorten_question(turn)}{format_branch(conversation, turn)}"
    for turn in conversation.undone_turns()[-1:]:
        yield f"     taken back: {shorten_question(turn)}"


def format_branch(conversation: Conversation, turn: Turn) -> str:
    """Which of several in one place it is."""
    ids = [one.id for one in conversation.branches(turn.id)]
    return f"  ({ids.index(turn.id) + 1} of {len(ids)})" if len(ids) > 1 else ""


def shorten_question(turn: Turn) -> str:
    """A question, short."""
    words = turn.question or ", ".join(file.name for file in turn.attachments)
    shown = sanitize(words, multiline=False).strip()
    return shown if len(shown) <= _MAX_QUESTION_LENGTH else shown[: _MAX_QUESTION_LENGTH - 1] + "…"


def go_to_turn(arguments: Sequence[str], state: ChatState) -> str:
    """To the turn with a number, to be edited; or, with another, to that branch there.

    What was done, in words.  Raises UsageError.
    """
    conversation = state.conversation
    turn = _find_turn(arguments[0], conversation.turns)
    state.engine_died = False
    if len(arguments) == 1:
        conversation.undo_to(turn.id)
        state.initial_text, state.attachments = sanitize(turn.question), turn.attachments
        return f"Back before turn {arguments[0]}; what came stays a branch."
    other = _find_turn(arguments[1], conversation.branches(turn.id))
    conversation.switch_branch(other.id)
    return f"Branch {arguments[1]} of turn {arguments[0]}: {len(conversation.turns)} turns."


def _find_turn(number: str, turns: Sequence[Turn]) -> Turn:
    if not number.isdecimal() or len(number) > 6 or not 1 <= int(number) <= len(turns):
        raise UsageError(
            f"There is no {sanitize(number[:20], multiline=False)!r} here.", "See: /turns"
        )
    return turns[int(number) - 1]


# --- What goes into a linear chat and comes out of it: files, and the clipboard.

_MAX_FILE_BYTES = 4 * 1024 * 1024
"""Bytes of a file before a message."""

PrintLine = Callable[[str], None]
"""Shows lines of talk."""


def copy_answer(_: str, state: ChatState, print_line: PrintLine) -> Literal["ask"]:
    """The last answer, by a tool of this computer or through the terminal."""
    state.require_turns()
    turn = state.conversation.turns[-1]
    text = sanitize(
        strip_thinking(turn.answer, state.loaded.thinking_markers, turn.starts_in_thinking)
    )
    tool = clipboard.copy_with_system_tool(text)
    if tool:
        print_line(f"Copied with {tool}.")
        return "ask"
    sequence = None if state.style.plain else clipboard.build_osc52(text)
    if sequence is None:
        raise StorageError("The clipboard cannot be reached from here.", "Type: /save answer.txt")
    click.echo(sequence, nl=False)
    print_line("Copied, if this terminal allows it (OSC 52).")
    return "ask"


def attach_file(text: str, state: ChatState, print_line: PrintLine) -> Literal["ask"]:
    """A file, which goes before the next message."""
    name = sanitize(text, multiline=False)
    path = Path(os.path.expanduser(text))
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"{name} is no file.", "Give the path of a text file.")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {name}.", "Type: /read FILE") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"{name} cannot be read: {error}.", "Type: /read FILE") from error
    if len(data) > _MAX_FILE_BYTES or b"\0" in data:
        what = "too large" if len(data) > _MAX_FILE_BYTES else "no text"
        raise UsageError(f"{name} is {what}.", "Give the path of a text file of up to 4 MB.")
    added = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").rstrip("\n")
    state.attachments = (*state.attachments, Attachment(path.name, added))
    print_line(
        f"{short_count(added.count(chr(10)) + 1)} lines of {name} go before your next message."
    )
    return "ask"


def save_chat(text: str, state: ChatState, print_line: PrintLine) -> Literal["ask"]:
    """The chat, into a file."""
    state.require_turns()
    path = Path(os.path.abspath(os.path.expanduser(text)))
    kept = export.snapshot_chat(state.conversation, state.recorder.pair, state.settings)
    whole = export.render(kept, path.suffix)
    export.save_file(path, whole, overwrite=path in state.saved_paths)
    state.saved_paths.add(path)
    print_line(f"Saved: {sanitize(str(path), multiline=False)}")
    return "ask"


# --- What each slash command does in the linear chat.

_LOG_LINES = 12

NextStep = Literal["ask", "answer", "quit"]
"""What follows a command: the prompt, an answer to the last turn, the end."""

KEY_HELP = (
    ("Enter", "send; on an empty line: go on writing, or try again after a failure"),
    ("\\ at the end", "one more line"),
    ('"""', "begins and ends a message of many lines"),
    ("Tab", "completes a command"),
    ("Up, Down", "earlier messages"),
    ("Ctrl+C", "stops the answer; twice: quit"),
    ("Ctrl+D", "quit"),
)


def run_command(call: CommandCall, state: ChatState, print_line: PrintLine) -> NextStep:
    """Carry out a command.  Raises LocalspecError where it cannot be."""
    known = slash_commands.find_command(call.name)
    if known.requires_argument and not call.argument:
        raise UsageError(f"/{call.name} needs more.", f"Type: {known.usage}")
    return _HANDLERS[call.name](call.argument.strip(), state, print_line)


def _help(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    for known in COMMANDS:
        words = ", ".join([known.usage, *(f"/{alias}" for alias in known.aliases)])
        print_line(f"{words}: {known.help}" if state.style.plain else f"  {words:<38} {known.help}")
    print_line("A message that begins with // begins with a slash.")
    return "ask"


def _exit(_: str, __: ChatState, ___: PrintLine) -> NextStep:
    return "quit"


def _clear(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.start_chat(Conversation(state.conversation.seed, state.conversation.system))
    print_line("Forgotten: the model knows nothing of what was said before.")
    return "ask"


def _new(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.settings = state.initial_settings
    state.start_chat(Conversation(secrets.randbits(31), state.initial_system_prompt))
    print_line("A new chat.")
    return "ask"


def _private(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.start_chat(Conversation(secrets.randbits(31), state.initial_system_prompt))
    state.recorder = ChatRecorder(
        state.conversation, None, state.recorder.pair, notify=state.recorder.notify
    )
    print_line("A new chat, which is not saved.")
    return "ask"


def _turns(rest: str, state: ChatState, print_line: PrintLine) -> NextStep:
    if rest:
        print_line(go_to_turn(rest.split()[:2], state))
    else:
        state.require_turns()
        for line in format_turns(state.conversation):
            print_line(line)
    return "ask"


def _regen(_: str, state: ChatState, __: PrintLine) -> NextStep:
    state.require_turns()
    if state.engine_died:
        state.conversation.restart_answer()
    else:
        state.conversation.retry()
    return "answer"


def _undo(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.require_turns()
    turn = state.conversation.undo()
    state.engine_died = False
    print_line(f"Taken back: {shorten_question(turn) or 'what was written on'}")
    return "ask"


def _edit(text: str, state: ChatState, __: PrintLine) -> NextStep:
    state.require_turns()
    last = state.conversation.turns[-1]
    if not text:
        state.initial_text = f"/edit {sanitize(last.question)}"
        return "ask"
    state.conversation.edit_turn(last.id, text)
    return "answer"


def _system(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    if text:
        state.conversation.system = "" if text == "-" else text
    shown = sanitize(state.conversation.system)
    print_line(f"System prompt: {shown}" if shown else "No system prompt.")
    return "ask"


def _set(rest: str, state: ChatState, print_line: PrintLine) -> NextStep:
    name, _, value = rest.partition(" ")
    if not value.strip():
        raise UsageError(
            "/set needs a name and a value.", f"Names: {', '.join(CHAT_SETTING_FIELDS)}."
        )
    settings = state.settings.with_value(name, value)
    state.loaded.check(name, settings)
    state.settings = settings
    print_line(f"{sanitize(name, multiline=False)}: {sanitize(value.strip(), multiline=False)}")
    return "ask"


def _show(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    ready, loaded = state.ready, state.loaded
    print_line(_format_row(state, "model", ready.model if ready else "not loaded"))
    print_line(_format_row(state, "draft", (ready and ready.draft) or "none"))
    template = {None: "none: it completes text", "own": "its own"}
    print_line(_format_row(state, "template", template.get(loaded.template, str(loaded.template))))
    used = state.last_answer.context_tokens if state.last_answer else 0
    print_line(
        _format_row(state, "context", f"{short_count(used)} of {short_count(loaded.n_ctx)} tokens")
    )
    cut = state.conversation.dropped
    if cut.turns and cut.is_prefix_of(state.conversation.turns):
        what = "a summary is sent" if cut.summary else "not sent any more"
        print_line(_format_row(state, "oldest turns", f"{cut.turns}: {what}"))
    print_line(_format_row(state, "system prompt", _shorten(state.conversation.system) or "none"))
    for name, about in CHAT_SETTING_FIELDS.items():
        value = state.settings.format_value(name)
        hint = "" if state.style.plain else f"  {about.hint}"
        print_line(_format_row(state, name, f"{value:<10}{hint}" if hint else value))
    return "ask"


def _format_row(state: ChatState, name: str, value: str) -> str:
    shown = sanitize(value, multiline=False).rstrip()
    return f"{name}: {shown}" if state.style.plain else f"  {name:<15} {shown}"


def _spec(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    text = text.lower()
    if text.isdecimal():
        settings = state.settings.with_value("draft_max", text)
        state.settings = settings.with_value("spec", "auto") if settings.spec == "off" else settings
        print_line(f"Speculation: {text} guesses a round at most.")
        return "ask"
    settings = state.settings.with_value("spec", text)
    state.loaded.check("spec", settings)
    state.settings = settings
    print_line(f"Speculation: {text}.")
    return "ask"


def _stats(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    last = state.last_answer
    if last is None:
        raise UsageError("There are no numbers yet.", "They come with the first answer.")
    if state.style.plain:
        for line in speculation_text.format_stats_sentences(last):
            print_line(line)
        return "ask"
    for line in speculation_text.format_stats(
        last.plan, last.finished.totals, state.conversation.seed
    ):
        print_line(sanitize(line))
    return "ask"


def _think(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    if text == "show":
        state.settings = state.settings.with_value(
            "show_thinking", "off" if state.settings.show_thinking else "on"
        )
        print_line(f"Thinking is {'shown' if state.settings.show_thinking else 'folded'}.")
    else:
        state.settings = state.settings.with_value("think", text)
        print_line(f"Thinking: {text}, where the model's template asks.")
    return "ask"


def _tokens(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    if text.lower() not in ("on", "off"):
        raise UsageError("Tokens are marked or not.", "Type: /tokens on, or: /tokens off")
    state.mark_tokens = text.lower() == "on"
    if not state.mark_tokens:
        print_line("Tokens are not marked.")
    elif state.style.plain:
        print_line("After each answer its rounds are told.")
    else:
        print_line(speculation_text.format_legend(state.style.colour))
    return "ask"


def _keys(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    for key, what in KEY_HELP:
        print_line(f"{key}: {what}." if state.style.plain else f"  {key:<15} {what}")
    return "ask"


def _anyway(_: str, __: ChatState, print_line: PrintLine) -> NextStep:
    print_line("It is loaded already.")
    return "ask"


def _bench(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    pair = state.recorder.pair
    draft = f" --draft {shlex.quote(pair.draft)}" if pair.draft != "auto" else ""
    print_line("Leave first, so that nothing else is at work; then type:")
    print_line(sanitize(f"localspec bench {shlex.quote(pair.model)}{draft}", multiline=False))
    return "ask"


def _logs(_: str, __: ChatState, print_line: PrintLine) -> NextStep:
    path = engine_log.log_path()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines[-_LOG_LINES:]:
        print_line(sanitize(line, multiline=False))
    print_line(
        f"All of it: {sanitize(str(path), multiline=False)}"
        if lines
        else "The engine said nothing."
    )
    return "ask"


def _shorten(text: str, max_length: int = 60) -> str:
    shown = sanitize(text, multiline=False).strip()
    return shown if len(shown) <= max_length else shown[: max_length - 1] + "…"


_HANDLERS: dict[str, Callable[[str, ChatState, PrintLine], NextStep]] = {
    "help": _help,
    "exit": _exit,
    "clear": _clear,
    "new": _new,
    "private": _private,
    "turns": _turns,
    "regen": _regen,
    "undo": _undo,
    "edit": _edit,
    "system": _system,
    "set": _set,
    "show": _show,
    "spec": _spec,
    "stats": _stats,
    "think": _think,
    "tokens": _tokens,
    "copy": copy_answer,
    "read": attach_file,
    "save": save_chat,
    "anyway": _anyway,
    "bench": _bench,
    "keys": _keys,
    "logs": _logs,
}
"""By the names of the one table."""
