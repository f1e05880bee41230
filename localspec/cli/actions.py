"""What each slash command does in the linear chat."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable
from typing import Literal

from localspec.chat import commands
from localspec.chat.commands import COMMANDS, Call
from localspec.chat.conversation import Conversation
from localspec.chat.fields import FIELDS
from localspec.chat.keeping import Keeper
from localspec.clean import clean
from localspec.cli import branches, marks, status, texts
from localspec.cli.state import State
from localspec.cli.texts import Say
from localspec.errors import UsageError
from localspec.units import count
from localspec.worker import log as engine_log

_LOG_LINES = 12

Next = Literal["ask", "answer", "quit"]
"""What follows a command: the prompt, an answer to the last turn, the end."""

KEYS = (
    ("Enter", "send; on an empty line: go on writing, or try again after a failure"),
    ("\\ at the end", "one more line"),
    ('"""', "begins and ends a message of many lines"),
    ("Tab", "completes a command"),
    ("Up, Down", "earlier messages"),
    ("Ctrl+C", "stops the answer; twice: quit"),
    ("Ctrl+D", "quit"),
)


def act(call: Call, state: State, say: Say) -> Next:
    """Carry out a command.  Raises LocalspecError where it cannot be."""
    known = commands.command(call.name)
    if known.needs and not call.rest:
        raise UsageError(f"/{call.name} needs more.", f"Type: {known.usage}")
    return _ACTIONS[call.name](call.rest.strip(), state, say)


def _help(_: str, state: State, say: Say) -> Next:
    for known in COMMANDS:
        words = ", ".join([known.usage, *(f"/{alias}" for alias in known.aliases)])
        say(f"{words}: {known.help}" if state.look.plain else f"  {words:<38} {known.help}")
    say("A message that begins with // begins with a slash.")
    return "ask"


def _exit(_: str, __: State, ___: Say) -> Next:
    return "quit"


def _clear(_: str, state: State, say: Say) -> Next:
    state.begin(Conversation(state.conversation.seed, state.conversation.system))
    say("Forgotten: the model knows nothing of what was said before.")
    return "ask"


def _new(_: str, state: State, say: Say) -> Next:
    state.settings = state.initial
    state.begin(Conversation(secrets.randbits(31), state.system))
    say("A new chat.")
    return "ask"


def _private(_: str, state: State, say: Say) -> Next:
    state.begin(Conversation(secrets.randbits(31), state.system))
    state.keeper = Keeper(state.conversation, None, state.keeper.pair, say=state.keeper.say)
    say("A new chat, which is not saved.")
    return "ask"


def _turns(rest: str, state: State, say: Say) -> Next:
    if rest:
        say(branches.go(rest.split()[:2], state))
    else:
        state.must_have_turns()
        for line in branches.lines(state.conversation):
            say(line)
    return "ask"


def _regen(_: str, state: State, __: Say) -> Next:
    state.must_have_turns()
    if state.died:
        state.conversation.restart()
    else:
        state.conversation.again()
    return "answer"


def _undo(_: str, state: State, say: Say) -> Next:
    state.must_have_turns()
    turn = state.conversation.undo()
    state.died = False
    say(f"Taken back: {branches.asked(turn) or 'what was written on'}")
    return "ask"


def _edit(text: str, state: State, __: Say) -> Next:
    state.must_have_turns()
    last = state.conversation.turns[-1]
    if not text:
        state.begun = f"/edit {clean(last.question)}"
        return "ask"
    state.conversation.edit(last.id, text)
    return "answer"


def _system(text: str, state: State, say: Say) -> Next:
    if text:
        state.conversation.system = "" if text == "-" else text
    shown = clean(state.conversation.system)
    say(f"System prompt: {shown}" if shown else "No system prompt.")
    return "ask"


def _set(rest: str, state: State, say: Say) -> Next:
    name, _, value = rest.partition(" ")
    if not value.strip():
        raise UsageError("/set needs a name and a value.", f"Names: {', '.join(FIELDS)}.")
    settings = state.settings.changed(name, value)
    state.loaded.check(name, settings)
    state.settings = settings
    say(f"{clean(name, multiline=False)}: {clean(value.strip(), multiline=False)}")
    return "ask"


def _show(_: str, state: State, say: Say) -> Next:
    ready, loaded = state.ready, state.loaded
    say(_row(state, "model", ready.model if ready else "not loaded"))
    say(_row(state, "draft", (ready and ready.draft) or "none"))
    template = {None: "none: it completes text", "own": "its own"}
    say(_row(state, "template", template.get(loaded.template, str(loaded.template))))
    used = state.last.context if state.last else 0
    say(_row(state, "context", f"{count(used)} of {count(loaded.n_ctx)} tokens"))
    cut = state.conversation.cut
    if cut.turns and cut.holds(state.conversation.turns):
        what = "a summary is sent" if cut.summary else "not sent any more"
        say(_row(state, "oldest turns", f"{cut.turns}: {what}"))
    say(_row(state, "system prompt", _short(state.conversation.system) or "none"))
    for name, about in FIELDS.items():
        value = state.settings.shown(name)
        hint = "" if state.look.plain else f"  {about.hint}"
        say(_row(state, name, f"{value:<10}{hint}" if hint else value))
    return "ask"


def _row(state: State, name: str, value: str) -> str:
    shown = clean(value, multiline=False).rstrip()
    return f"{name}: {shown}" if state.look.plain else f"  {name:<15} {shown}"


def _spec(text: str, state: State, say: Say) -> Next:
    text = text.lower()
    if text.isdecimal():
        settings = state.settings.changed("draft_max", text)
        state.settings = settings.changed("spec", "auto") if settings.spec == "off" else settings
        say(f"Speculation: {text} guesses a round at most.")
        return "ask"
    settings = state.settings.changed("spec", text)
    state.loaded.check("spec", settings)
    state.settings = settings
    say(f"Speculation: {text}.")
    return "ask"


def _stats(_: str, state: State, say: Say) -> Next:
    last = state.last
    if last is None:
        raise UsageError("There are no numbers yet.", "They come with the first answer.")
    if state.look.plain:
        for line in status.numbers(last):
            say(line)
        return "ask"
    for line in marks.summary(last.plan, last.finished.totals, state.conversation.seed):
        say(clean(line))
    return "ask"


def _think(text: str, state: State, say: Say) -> Next:
    if text == "show":
        state.settings = state.settings.changed(
            "show_thinking", "off" if state.settings.show_thinking else "on"
        )
        say(f"Thinking is {'shown' if state.settings.show_thinking else 'folded'}.")
    else:
        state.settings = state.settings.changed("think", text)
        say(f"Thinking: {text}, where the model's template asks.")
    return "ask"


def _tokens(text: str, state: State, say: Say) -> Next:
    if text.lower() not in ("on", "off"):
        raise UsageError("Tokens are marked or not.", "Type: /tokens on, or: /tokens off")
    state.tokens = text.lower() == "on"
    if not state.tokens:
        say("Tokens are not marked.")
    elif state.look.plain:
        say("After each answer its rounds are told.")
    else:
        say(marks.legend(state.look.colour))
    return "ask"


def _keys(_: str, state: State, say: Say) -> Next:
    for key, what in KEYS:
        say(f"{key}: {what}." if state.look.plain else f"  {key:<15} {what}")
    return "ask"


def _anyway(_: str, __: State, say: Say) -> Next:
    say("It is loaded already.")
    return "ask"


def _bench(_: str, state: State, say: Say) -> Next:
    pair = state.keeper.pair
    draft = f" --draft {shlex.quote(pair.draft)}" if pair.draft != "auto" else ""
    say("Leave first, so that nothing else is at work; then type:")
    say(clean(f"localspec bench {shlex.quote(pair.model)}{draft}", multiline=False))
    return "ask"


def _logs(_: str, __: State, say: Say) -> Next:
    path = engine_log.file()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines[-_LOG_LINES:]:
        say(clean(line, multiline=False))
    say(f"All of it: {clean(str(path), multiline=False)}" if lines else "The engine said nothing.")
    return "ask"


def _short(text: str, longest: int = 60) -> str:
    shown = clean(text, multiline=False).strip()
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


_ACTIONS: dict[str, Callable[[str, State, Say], Next]] = {
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
    "copy": texts.copy,
    "read": texts.read,
    "save": texts.save,
    "anyway": _anyway,
    "bench": _bench,
    "keys": _keys,
    "logs": _logs,
}
"""By the names of the one table."""
