"""The slash commands of the linear chat."""

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

_LOG_LINES = 12
_MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_TEXT_LENGTH = 60

PrintLine = Callable[[str], None]
NextStep = Literal["ask", "answer", "quit"]
"""What the chat loop does after a command."""

KEY_HELP = (
    ("Enter", "send; on an empty line: continue the text, or retry after a crash"),
    ("\\ at the end", "continue the message on the next line"),
    ('"""', "start and end a message of several lines"),
    ("Tab", "complete a command"),
    ("Up, Down", "earlier messages"),
    ("Ctrl+C", "stop the answer; twice: quit"),
    ("Ctrl+D", "quit"),
)


def run_command(call: CommandCall, state: ChatState, print_line: PrintLine) -> NextStep:
    """Run a slash command.  Raises LocalspecError if it fails."""
    command = slash_commands.find_command(call.name)
    if command.requires_argument and not call.argument:
        raise UsageError(f"/{call.name} needs an argument.", f"Type: {command.usage}")
    return _HANDLERS[call.name](call.argument.strip(), state, print_line)


def _help(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    for command in COMMANDS:
        usage = ", ".join([command.usage, *(f"/{alias}" for alias in command.aliases)])
        plain = state.style.plain
        print_line(f"{usage}: {command.help}" if plain else f"  {usage:<38} {command.help}")
    print_line("To send a message that begins with a slash, type two slashes.")
    return "ask"


def _exit(_: str, __: ChatState, ___: PrintLine) -> NextStep:
    return "quit"


def _clear(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.start_chat(Conversation(state.conversation.seed, state.conversation.system))
    print_line("Cleared: the model no longer sees the earlier turns.")
    return "ask"


def _new(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.settings = state.initial_settings
    state.start_chat(Conversation(secrets.randbits(31), state.initial_system_prompt))
    print_line("New chat.")
    return "ask"


def _private(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.start_chat(Conversation(secrets.randbits(31), state.initial_system_prompt))
    state.recorder = ChatRecorder(
        state.conversation, None, state.recorder.pair, notify=state.recorder.notify
    )
    print_line("New chat, not saved.")
    return "ask"


def _turns(rest: str, state: ChatState, print_line: PrintLine) -> NextStep:
    if rest:
        print_line(_go_to_turn(rest.split()[:2], state))
    else:
        state.require_turns()
        for line in _format_turns(state.conversation):
            print_line(line)
    return "ask"


def _format_turns(conversation: Conversation) -> Iterator[str]:
    for number, turn in enumerate(conversation.turns, 1):
        yield f"{number:>3}  {_shorten_question(turn)}{_format_branch(conversation, turn)}"
    for turn in conversation.undone_turns()[-1:]:
        yield f"     undone: {_shorten_question(turn)}"


def _format_branch(conversation: Conversation, turn: Turn) -> str:
    """E.g. `  (2 of 3)`; empty for the only branch."""
    ids = [branch.id for branch in conversation.branches(turn.id)]
    return f"  ({ids.index(turn.id) + 1} of {len(ids)})" if len(ids) > 1 else ""


def _shorten_question(turn: Turn) -> str:
    return _shorten(turn.question or ", ".join(file.name for file in turn.attachments))


def _go_to_turn(arguments: Sequence[str], state: ChatState) -> str:
    """`/turns N` goes back before turn N to edit it; `/turns N B` switches to its branch B.

    Returns the line to print.  Raises UsageError for an unknown number.
    """
    conversation = state.conversation
    turn = _find_turn(arguments[0], conversation.turns)
    state.engine_died = False
    if len(arguments) == 1:
        conversation.undo_to(turn.id)
        state.initial_text, state.attachments = sanitize(turn.question), turn.attachments
        return f"Back before turn {arguments[0]}. The later turns stay as a branch."
    branch = _find_turn(arguments[1], conversation.branches(turn.id))
    conversation.switch_branch(branch.id)
    n = len(conversation.turns)
    return f"Branch {arguments[1]} of turn {arguments[0]}: {n} turn{'s' * (n != 1)}."


def _find_turn(number: str, turns: Sequence[Turn]) -> Turn:
    if not number.isdecimal() or len(number) > 6 or not 1 <= int(number) <= len(turns):
        what = f"There is no turn or branch {sanitize(number[:20], multiline=False)!r}."
        raise UsageError(what, "Type /turns to list them.")
    return turns[int(number) - 1]


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
    print_line(f"Undone: {_shorten_question(turn) or 'the continuation'}")
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
    prompt = sanitize(state.conversation.system)
    print_line(f"System prompt: {prompt}" if prompt else "No system prompt.")
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
    template = {None: "none (text completion)", "own": "the model's own"}
    print_line(_format_row(state, "template", template.get(loaded.template, str(loaded.template))))
    used = state.last_answer.context_tokens if state.last_answer else 0
    print_line(
        _format_row(state, "context", f"{short_count(used)} of {short_count(loaded.n_ctx)} tokens")
    )
    dropped = state.conversation.dropped
    if dropped.turns and dropped.is_prefix_of(state.conversation.turns):
        how = "sent as a summary" if dropped.summary else "not sent to the model"
        print_line(_format_row(state, "oldest turns", f"{dropped.turns} {how}"))
    print_line(_format_row(state, "system prompt", _shorten(state.conversation.system) or "none"))
    for name, field in CHAT_SETTING_FIELDS.items():
        value = state.settings.format_value(name)
        hint = "" if state.style.plain else f"  {field.hint}"
        print_line(_format_row(state, name, f"{value:<10}{hint}" if hint else value))
    return "ask"


def _format_row(state: ChatState, name: str, value: str) -> str:
    text = sanitize(value, multiline=False).rstrip()
    return f"{name}: {text}" if state.style.plain else f"  {name:<15} {text}"


def _spec(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    text = text.lower()
    if text.isdecimal():
        settings = state.settings.with_value("draft_max", text)
        state.settings = settings.with_value("spec", "auto") if settings.spec == "off" else settings
        print_line(f"Speculation: max draft tokens {text}.")
        return "ask"
    settings = state.settings.with_value("spec", text)
    state.loaded.check("spec", settings)
    state.settings = settings
    print_line(f"Speculation: {text}.")
    return "ask"


def _stats(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    answer = state.last_answer
    if answer is None:
        raise UsageError("No statistics yet.", "They appear after the first answer.")
    if state.style.plain:
        for line in speculation_text.format_stats_sentences(answer):
            print_line(line)
        return "ask"
    for line in speculation_text.format_stats(
        answer.plan, answer.finished.totals, state.conversation.seed
    ):
        print_line(sanitize(line))
    return "ask"


def _think(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    if text == "show":
        state.settings = state.settings.with_value(
            "show_thinking", "off" if state.settings.show_thinking else "on"
        )
        print_line(f"Thinking is {'shown' if state.settings.show_thinking else 'collapsed'}.")
    else:
        state.settings = state.settings.with_value("think", text)
        print_line(f"Thinking: {text}, if the model's template supports it.")
    return "ask"


def _tokens(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    if text.lower() not in ("on", "off"):
        raise UsageError("/tokens needs on or off.", "Type: /tokens on, or: /tokens off")
    state.mark_tokens = text.lower() == "on"
    if not state.mark_tokens:
        print_line("Tokens are not marked.")
    elif state.style.plain:
        print_line("The rounds are listed after each answer.")
    else:
        print_line(speculation_text.format_legend(state.style.colour))
    return "ask"


def _copy(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
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
        raise StorageError("No clipboard is available.", "Type: /save answer.txt")
    click.echo(sequence, nl=False)
    print_line("Copied, if this terminal allows it (OSC 52).")
    return "ask"


def _read(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    name = sanitize(text, multiline=False)
    path = Path(os.path.expanduser(text))
    try:
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise UsageError(f"{name} is not a file.", "Give the path of a text file.")
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {name}.", "Type: /read FILE") from error
    except (OSError, ValueError) as error:
        raise StorageError(f"{name} cannot be read: {error}.", "Type: /read FILE") from error
    if len(data) > _MAX_FILE_BYTES or b"\0" in data:
        what = "too large" if len(data) > _MAX_FILE_BYTES else "not a text file"
        raise UsageError(f"{name} is {what}.", "Give the path of a text file of up to 4 MB.")
    content = data.decode("utf-8-sig", "replace").replace("\r\n", "\n").rstrip("\n")
    state.attachments = (*state.attachments, Attachment(path.name, content))
    n = content.count("\n") + 1
    lines = f"{short_count(n)} line{'s' * (n != 1)}"
    print_line(f"Attached to your next message: {name}, {lines}.")
    return "ask"


def _save(text: str, state: ChatState, print_line: PrintLine) -> NextStep:
    state.require_turns()
    path = Path(os.path.abspath(os.path.expanduser(text)))
    chat = export.snapshot_chat(state.conversation, state.recorder.pair, state.settings)
    export.save_file(path, export.render(chat, path.suffix), overwrite=path in state.saved_paths)
    state.saved_paths.add(path)
    print_line(f"Saved: {sanitize(str(path), multiline=False)}")
    return "ask"


def _keys(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    for key, what in KEY_HELP:
        print_line(f"{key}: {what}." if state.style.plain else f"  {key:<15} {what}")
    return "ask"


def _anyway(_: str, __: ChatState, print_line: PrintLine) -> NextStep:
    print_line("The model is already loaded.")
    return "ask"


def _bench(_: str, state: ChatState, print_line: PrintLine) -> NextStep:
    pair = state.recorder.pair
    draft = f" --draft {shlex.quote(pair.draft)}" if pair.draft != "auto" else ""
    print_line("Quit this chat first, so that nothing else uses the computer. Then run:")
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
        f"Full log: {sanitize(str(path), multiline=False)}" if lines else "The engine log is empty."
    )
    return "ask"


def _shorten(text: str) -> str:
    line = sanitize(text, multiline=False).strip()
    return line if len(line) <= _MAX_TEXT_LENGTH else line[: _MAX_TEXT_LENGTH - 1] + "…"


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
    "copy": _copy,
    "read": _read,
    "save": _save,
    "anyway": _anyway,
    "bench": _bench,
    "keys": _keys,
    "logs": _logs,
}
