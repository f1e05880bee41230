"""The slash commands that only the linear chat has, or shows in its own way."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial

from msgspec import Struct

from localspec.chat import copying, presets
from localspec.chat.session import ChatSession
from localspec.chat.session_commands import parse_switch, shorten_line, shorten_question
from localspec.chat.settings import CHAT_SETTING_FIELDS
from localspec.chat.slash_commands import COMMANDS, CommandCall
from localspec.cli import speculation_text, terminal
from localspec.cli.answer_printer import OutputStyle
from localspec.cli.speculation_text import AnswerStats
from localspec.engine_process import engine_log
from localspec.errors import StorageError, UsageError
from localspec.models import model_lookup
from localspec.protocol.events import EngineReady
from localspec.sanitize import sanitize
from localspec.units import short_count

KEY_HELP = (
    ("Enter", "send; on an empty line: continue the text, or retry after a crash"),
    ("\\ at the end", "continue the message on the next line"),
    ('"""', "start and end a message of several lines"),
    ("Tab", "complete a command"),
    ("Up, Down", "earlier messages"),
    ("Ctrl+C", "stop the answer; twice: quit"),
    ("Ctrl+D", "quit"),
)


class LinearChatView(Struct):
    """How the linear chat shows its session."""

    session: ChatSession
    style: OutputStyle
    mark_tokens: bool = False
    ready: EngineReady | None = None
    last_answer: AnswerStats | None = None
    initial_text: str = ""  # Text inserted at the next prompt, to be edited.

    def print_line(self, line: str) -> None:
        """Print one line on standard error, after the answer so far."""
        sys.stdout.flush()
        terminal.echo(line, err=True)

    def print_styled(self, line: str) -> None:
        """Like `print_line`, for our own text with colours."""
        sys.stdout.flush()
        terminal.echo_styled(line, err=True, colour=self.style.colour)

    def print_row(self, name: str, text: str, width: int = 15) -> None:
        if self.style.plain:
            self.print_line(f"{name}: {text}")
            return
        columns, start = shutil.get_terminal_size().columns - 1, f"  {name:<{width}} "
        indent = " " * min(len(start), width + 3 if columns >= 60 else 6)
        for line in textwrap.wrap(start + text, columns, subsequent_indent=indent):
            self.print_line(line)


def _help(_: CommandCall, view: LinearChatView) -> None:
    for command in COMMANDS:
        usage = ", ".join([command.usage, *(f"/{alias}" for alias in command.aliases)])
        view.print_row(usage, command.help, 38)
    view.print_line("To send a message that begins with a slash, type two slashes.")


def _turns(_: CommandCall, view: LinearChatView) -> None:
    """Lists the turns, with the answering model if there are several."""
    view.session.require_turns()
    conversation = view.session.conversation
    has_several_models = len({turn.model for turn in conversation.turns}) > 1
    for number, turn in enumerate(conversation.turns, 1):
        model = turn.model if has_several_models else ""
        notes = ", ".join(filter(None, (conversation.format_branch(turn.id), model)))
        view.print_line(
            f"{number:>3}  {shorten_question(turn)}{f'  ({notes})' if notes else ''}"
        )
    for turn in conversation.undone_turns()[-1:]:
        view.print_line(f"     undone: {shorten_question(turn)}")


def _model(_: CommandCall, view: LinearChatView) -> None:
    """Lists the models; `/model NAME` is a session command."""
    view.print_line(f"This chat: {view.session.pair_name}")
    for name, title in model_lookup.list_installed():
        view.print_row(name, title, 38)
    view.print_line("Type: /model NAME, a path or user/repo:QUANT.")


def _preset(_: CommandCall, view: LinearChatView) -> None:
    for preset in presets.load().values():
        view.print_line(f"{preset.name}: {preset.summary}")
    view.print_line("Type: /preset NAME; /preset save NAME makes one of this chat.")


def _edit(_: CommandCall, view: LinearChatView) -> None:
    view.session.require_turns()
    view.initial_text = (
        f"/edit {sanitize(view.session.conversation.turns[-1].question)}"
    )


def _show(_: CommandCall, view: LinearChatView) -> None:
    for row in _format_state(view):
        view.print_row(*row)


def _format_state(view: LinearChatView) -> Iterator[tuple[str, str]]:
    ready, session = view.ready, view.session
    loaded = session.loaded
    assert ready is not None and loaded is not None, (
        "a chat begins when its pair is loaded"
    )
    yield "model", ready.model
    yield "draft", ready.draft or "none"
    template = {None: "none (text completion)", "own": "the model's own"}
    yield "template", template.get(loaded.template, str(loaded.template))
    used = session.answer.context_tokens
    yield "context", f"{short_count(used)} of {short_count(loaded.n_ctx)} tokens"
    if n := session.n_omitted_turns:
        is_summarised = bool(session.conversation.dropped.summary)
        how = "sent as a summary" if is_summarised else "not sent to the model"
        yield "oldest turns", f"{n} {how}"
    yield "system prompt", shorten_line(session.conversation.system) or "none"
    for name, field in CHAT_SETTING_FIELDS.items():
        value = session.settings.format_value(name)
        source = session.settings.find_source(name, session.pair.suggested_settings)
        about = ", ".join(filter(None, (source, field.hint)))
        yield name, value if view.style.plain else f"{value:<10}  {about}"


def _stats(_: CommandCall, view: LinearChatView) -> None:
    stats = view.last_answer
    if stats is None or stats.answer.finished is None:
        raise UsageError("No statistics yet.", "They appear after the first answer.")
    totals, session = stats.answer.finished.totals, view.session
    seed, plan = session.conversation.seed, stats.answer.plan
    lines = speculation_text.format_stats(plan, totals, seed, plain=view.style.plain)
    sampling = session.settings.describe_sampling(session.pair.suggested_settings)
    for line in (*lines, f"sampling: {sampling}"):
        view.print_line(line)


def _tokens(call: CommandCall, view: LinearChatView) -> None:
    view.mark_tokens = parse_switch(call)
    if not view.mark_tokens:
        view.print_line("Tokens are not marked.")
    elif view.style.plain:
        view.print_line("The rounds are listed after each answer.")
    else:
        view.print_styled(speculation_text.format_legend(view.style.colour))


def _copy(call: CommandCall, view: LinearChatView) -> None:
    text = copying.select_text(view.session, call.argument)
    write = None if view.style.plain else partial(terminal.echo_styled, newline=False)
    message = copying.copy(text, write)
    if not message:
        raise StorageError("No clipboard is available.", "Type: /save answer.txt")
    view.print_line(message)


def _keys(_: CommandCall, view: LinearChatView) -> None:
    for row in KEY_HELP:
        view.print_row(*row)


def _bench(_: CommandCall, view: LinearChatView) -> None:
    pair = view.session.recorder.pair
    draft = f" --draft {shlex.quote(pair.draft)}" if pair.draft != "auto" else ""
    view.print_line(
        "Quit this chat first, so that nothing else uses the computer. Then run:"
    )
    view.print_line(f"localspec bench {shlex.quote(pair.model)}{draft}")


def _logs(_: CommandCall, view: LinearChatView) -> None:
    path = engine_log.log_path()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines[-12:]:
        view.print_line(line)
    view.print_line(f"Full log: {path}" if lines else "The engine log is empty.")


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
    "anyway": lambda _, view: view.print_line("The model is already loaded."),
    "bench": _bench,
    "keys": _keys,
    "logs": _logs,
}
"""By name. `ChatLoop` itself handles /exit and /regen, and /edit with a text."""
