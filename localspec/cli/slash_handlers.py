"""The slash commands that only the linear chat has, or shows in its own way."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterator
from functools import partial

import click

from localspec.chat import copying, presets
from localspec.chat.conversation import Conversation
from localspec.chat.session import ChatSession
from localspec.chat.session_commands import parse_switch, shorten_line, shorten_question
from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import COMMANDS, CommandCall
from localspec.cli import speculation_text
from localspec.cli.answer_printer import ChatOutputStyle
from localspec.cli.speculation_text import AnswerStats
from localspec.engine_process import engine_log
from localspec.errors import StorageError, UsageError
from localspec.lazy_dataclass import dataclass
from localspec.models import model_lookup
from localspec.protocol.events import EngineReady
from localspec.sanitize import sanitize
from localspec.units import short_count

_LOG_LINES = 12

KEY_HELP = (
    ("Enter", "send; on an empty line: continue the text, or retry after a crash"),
    ("\\ at the end", "continue the message on the next line"),
    ('"""', "start and end a message of several lines"),
    ("Tab", "complete a command"),
    ("Up, Down", "earlier messages"),
    ("Ctrl+C", "stop the answer; twice: quit"),
    ("Ctrl+D", "quit"),
)


@dataclass
class LinearChatView:
    """How the linear chat shows its session."""

    session: ChatSession
    style: ChatOutputStyle
    print_line: Callable[[str], None]
    mark_tokens: bool = False
    ready: EngineReady | None = None
    last_answer: AnswerStats | None = None
    initial_text: str = ""  # Text inserted at the next prompt, to be edited.


def _help(_: CommandCall, view: LinearChatView) -> None:
    for command in COMMANDS:
        usage = ", ".join([command.usage, *(f"/{alias}" for alias in command.aliases)])
        if view.style.plain:
            view.print_line(f"{usage}: {command.help}")
        else:
            _print_row(view, f"  {usage:<38} ", command.help)
    view.print_line("To send a message that begins with a slash, type two slashes.")


def _print_row(view: LinearChatView, name: str, text: str) -> None:
    """Wraps the text between words, below its beginning where there is room."""
    width = shutil.get_terminal_size().columns - 1
    indent = " " * min(len(name), 41 if width >= 60 else 6)
    lines = textwrap.wrap(name + text, width, subsequent_indent=indent, drop_whitespace=True)
    for line in lines:
        view.print_line(line)


def _turns(_: CommandCall, view: LinearChatView) -> None:
    view.session.require_turns()
    for line in _format_turns(view.session.conversation):
        view.print_line(line)


def _format_turns(conversation: Conversation) -> Iterator[str]:
    """With the answering model if there are several."""
    has_several_models = len({turn.model for turn in conversation.turns}) > 1
    for number, turn in enumerate(conversation.turns, 1):
        model = sanitize(turn.model, multiline=False) if has_several_models else ""
        notes = ", ".join(filter(None, (conversation.format_branch(turn.id), model)))
        yield f"{number:>3}  {shorten_question(turn)}{f'  ({notes})' if notes else ''}"
    for turn in conversation.undone_turns()[-1:]:
        yield f"     undone: {shorten_question(turn)}"


def _model(_: CommandCall, view: LinearChatView) -> None:
    """Lists the models; `/model NAME` is a session command."""
    view.print_line(f"This chat: {view.session.pair_name}")
    for name, title in model_lookup.list_installed():
        shown = sanitize(name, multiline=False)
        view.print_line(f"{shown}: {title}" if view.style.plain else f"  {shown:<38} {title}")
    view.print_line("Type: /model NAME, a path or user/repo:QUANT.")


def _preset(_: CommandCall, view: LinearChatView) -> None:
    for preset in presets.load().values():
        view.print_line(f"{preset.name}: {preset.summary}")
    view.print_line("Type: /preset NAME; /preset save NAME makes one of this chat.")


def _edit(_: CommandCall, view: LinearChatView) -> None:
    view.session.require_turns()
    view.initial_text = f"/edit {sanitize(view.session.conversation.turns[-1].question)}"


def _show(_: CommandCall, view: LinearChatView) -> None:
    for name, value in _format_state(view):
        text = sanitize(value, multiline=False).rstrip()
        view.print_line(f"{name}: {text}" if view.style.plain else f"  {name:<15} {text}")


def _format_state(view: LinearChatView) -> Iterator[tuple[str, str]]:
    ready, session = view.ready, view.session
    loaded = session.loaded
    assert ready is not None and loaded is not None, "a chat begins when its pair is loaded"
    yield "model", ready.model
    yield "draft", ready.draft or "none"
    template = {None: "none (text completion)", "own": "the model's own"}
    yield "template", template.get(loaded.template, str(loaded.template))
    used = session.answer.context_tokens
    yield "context", f"{short_count(used)} of {short_count(loaded.n_ctx)} tokens"
    if n := session.n_omitted_turns:
        has_summary = bool(session.conversation.dropped.summary)
        yield (
            "oldest turns",
            f"{n} {'sent as a summary' if has_summary else 'not sent to the model'}",
        )
    yield "system prompt", shorten_line(session.conversation.system) or "none"
    for name, field in CHAT_SETTING_FIELDS.items():
        value = session.settings.format_value(name)
        yield name, value if view.style.plain else f"{value:<10}  {field.hint}"


def _stats(_: CommandCall, view: LinearChatView) -> None:
    stats = view.last_answer
    if stats is None or stats.answer.finished is None:
        raise UsageError("No statistics yet.", "They appear after the first answer.")
    if view.style.plain:
        for line in speculation_text.format_stats_sentences(stats):
            view.print_line(line)
        return
    totals, seed = stats.answer.finished.totals, view.session.conversation.seed
    for line in speculation_text.format_stats(stats.answer.plan, totals, seed):
        view.print_line(sanitize(line))


def _tokens(call: CommandCall, view: LinearChatView) -> None:
    view.mark_tokens = parse_switch(call)
    if not view.mark_tokens:
        view.print_line("Tokens are not marked.")
    elif view.style.plain:
        view.print_line("The rounds are listed after each answer.")
    else:
        view.print_line(speculation_text.format_legend(view.style.colour))


def _copy(call: CommandCall, view: LinearChatView) -> None:
    text = copying.select_text(view.session, call.argument)
    write = None if view.style.plain else partial(click.echo, nl=False)
    message = copying.copy(text, write)
    if not message:
        raise StorageError("No clipboard is available.", "Type: /save answer.txt")
    view.print_line(message)


def _keys(_: CommandCall, view: LinearChatView) -> None:
    for key, what in KEY_HELP:
        view.print_line(f"{key}: {what}." if view.style.plain else f"  {key:<15} {what}")


def _anyway(_: CommandCall, view: LinearChatView) -> None:
    view.print_line("The model is already loaded.")


def _bench(_: CommandCall, view: LinearChatView) -> None:
    pair = view.session.recorder.pair
    draft = f" --draft {shlex.quote(pair.draft)}" if pair.draft != "auto" else ""
    view.print_line("Quit this chat first, so that nothing else uses the computer. Then run:")
    line = f"localspec bench {shlex.quote(pair.model)}{draft}"
    view.print_line(sanitize(line, multiline=False))


def _logs(_: CommandCall, view: LinearChatView) -> None:
    path = engine_log.log_path()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines[-_LOG_LINES:]:
        view.print_line(sanitize(line, multiline=False))
    shown = sanitize(str(path), multiline=False)
    view.print_line(f"Full log: {shown}" if lines else "The engine log is empty.")


HANDLERS: dict[str, Callable[[CommandCall, LinearChatView], None]] = {
    "help": _help,
    "turns": _turns,
    "model": _model,
    "preset": _preset,
    "edit": _edit,
    "show": _show,
    "stats": _stats,
    "tokens": _tokens,
    "copy": _copy,
    "anyway": _anyway,
    "bench": _bench,
    "keys": _keys,
    "logs": _logs,
}
"""By name. `ChatLoop` itself handles /exit and /regen, and /edit with a text."""
