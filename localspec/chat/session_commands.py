"""The slash commands that mean the same in every front end: they change a chat session."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from localspec import launch, paths
from localspec.chat import presets
from localspec.chat.conversation import Turn
from localspec.chat.session import ChatSession
from localspec.chat.settings import CHAT_SETTING_FIELDS, find_field, parse_context_size
from localspec.chat.slash_commands import COMMANDS_BY_NAME, CommandCall
from localspec.errors import UsageError
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models.chat_template.thinking_effort import resolve_effort
from localspec.sanitize import sanitize
from localspec.units import count, short_count, token_rate

_MAX_TEXT_LENGTH = 60


class CommandResult(Struct, frozen=True):
    message: str  # What was done, as one line of sanitized text.
    # A question to put into the input field, to be edited.
    input_text: str | None = None


def check_argument(call: CommandCall) -> None:
    command = COMMANDS_BY_NAME[call.name]
    if command.requires_argument and not call.argument:
        raise UsageError(f"/{call.name} needs an argument.", f"Type: {command.usage}")


def parse_switch(call: CommandCall) -> bool:
    """Whether the argument is `on`.

    Raises UsageError for another word than on and off.
    """
    word = call.argument.strip().lower()
    if word not in ("on", "off"):
        raise UsageError(
            f"/{call.name} needs on or off.",
            f"Type: /{call.name} on, or: /{call.name} off",
        )
    return word == "on"


def run_command(session: ChatSession, call: CommandCall) -> CommandResult:
    """Run one of `SESSION_COMMANDS`.

    Raises LocalspecError, and then changes nothing.
    """
    check_argument(call)
    result = SESSION_COMMANDS[call.name](session, call.argument.strip())
    session.save_metadata()
    return result


def shorten_question(turn: Turn) -> str:
    """A question, or the names of its files, as one short line."""
    return shorten_line(
        turn.question or ", ".join(file.name for file in turn.attachments)
    )


def shorten_line(text: str) -> str:
    line = sanitize(text, multiline=False).strip()
    return line if len(line) <= _MAX_TEXT_LENGTH else line[: _MAX_TEXT_LENGTH - 1] + "…"


def _clear(session: ChatSession, _: str) -> CommandResult:
    session.clear()
    return CommandResult("Cleared: the model no longer sees the earlier turns.")


def _new(session: ChatSession, _: str, *, private: bool = False) -> CommandResult:
    session.start_new_chat(private=private)
    return CommandResult("New chat, not saved." if private else "New chat.")


def _undo(session: ChatSession, _: str) -> CommandResult:
    return CommandResult(
        f"Undone: {shorten_question(session.undo()) or 'the continuation'}"
    )


def _turns(session: ChatSession, rest: str) -> CommandResult:
    """`/turns N` goes back to before turn N to edit it; `/turns N B` switches to its
    branch B.
    """
    conversation = session.conversation
    number, branch = (*rest.split(), "")[:2]
    turn = _find_turn(number, conversation.turns)
    if not branch:
        question = session.return_to(turn.id)
        message = f"Back before turn {number}. The later turns stay as a branch."
        return CommandResult(message, sanitize(question))
    session.switch_branch(_find_turn(branch, conversation.branches(turn.id)).id)
    n_turns = count(len(conversation.turns), "turn")
    return CommandResult(f"Branch {branch} of turn {number}: {n_turns}.")


def _find_turn(number: str, turns: Sequence[Turn]) -> Turn:
    if not number.isdecimal() or len(number) > 6 or not 1 <= int(number) <= len(turns):
        what = f"There is no turn or branch {sanitize(number[:20], multiline=False)!r}."
        raise UsageError(what, "Type /turns to list them.")
    return turns[int(number) - 1]


def _system(session: ChatSession, text: str) -> CommandResult:
    if text:
        session.conversation.system = "" if text == "-" else text
    prompt = sanitize(session.conversation.system, multiline=False)
    return CommandResult(f"System prompt: {prompt}" if prompt else "No system prompt.")


def _model(session: ChatSession, rest: str) -> CommandResult:
    """`NAME [DRAFT]`, or `-` for the pair before the last change."""
    if rest == "-":
        if session.previous_pair is None:
            raise UsageError("There is no previous model.", "Type: /model NAME")
        return _change_pair(session, *session.previous_pair.portable_refs)
    words = _split_words(rest)
    if words is None:
        raise UsageError("A quotation mark is missing.", "Type: /model NAME [DRAFT]")
    if len(words) > 2:
        raise UsageError(
            "/model takes a model and a draft model.", "Type: /model NAME [DRAFT]"
        )
    return _change_pair(session, *words)


def _split_words(text: str) -> list[str] | None:
    """Words as in a shell, but an existing path is one word.

    None: a quotation mark is missing.
    """
    if os.path.exists(os.path.expanduser(path := paths.parse_typed_path(text))):
        return [path]
    try:
        words = shlex.split(text, posix=os.name == "posix")
    except ValueError:
        return None
    return [paths.parse_typed_path(word.strip('"')) for word in words]


def _draft(session: ChatSession, name: str) -> CommandResult:
    return _change_pair(session, session.pair.portable_refs[0], name)


def _loads_the_same(pair: ResolvedPair, other: ResolvedPair) -> bool:
    """They need not be equal: suggested sampling and reasons depend on how a pair was
    named.
    """
    return (
        pair.files == other.files
        and pair.spec == other.spec
        and pair.default_draft == other.default_draft
        and pair.suggested_settings.ctx == other.suggested_settings.ctx
    )


def _change_pair(
    session: ChatSession, model: str, draft: str = "auto"
) -> CommandResult:
    session.require_idle()
    pair = launch.resolve_pair(model, draft)
    if _loads_the_same(pair, session.pair):
        return CommandResult(f"{session.pair_name} answers already.")
    pair = replace(pair, requested_refs=launch.make_portable_refs(model, draft))
    session.change_pair(pair)
    recent_pairs.add_if_path(pair)
    return CommandResult(f"From now on {session.pair_name} answers.")


def _ctx(session: ChatSession, text: str) -> CommandResult:
    if text:
        session.require_idle()
        session.change_settings(ctx=parse_context_size(text))
        wanted = session.settings.ctx
        return CommandResult(
            f"Context: {f'{wanted:,} tokens' if wanted else 'what fits'}."
        )
    if session.loaded is None:
        return CommandResult("The model is not loaded.")
    used = session.stats.context_tokens
    return CommandResult(f"Context: {used:,} of {session.loaded.n_ctx:,} tokens.")


def _set(session: ChatSession, rest: str) -> CommandResult:
    name, _, value = rest.partition(" ")
    if not value.strip():
        names = ", ".join(CHAT_SETTING_FIELDS)
        raise UsageError("/set needs a name and a value.", f"Names: {names}.")
    return _change_setting(session, name, value)


def _change_setting(session: ChatSession, name: str, value: str) -> CommandResult:
    session.settings = session.with_setting(name, value)
    name = find_field(name).name
    when = "" if name == "show_thinking" else ", from the next answer on"
    return CommandResult(f"{name}: {session.settings.format_value(name)}{when}.")


def _preset(session: ChatSession, rest: str) -> CommandResult:
    word, _, name = rest.partition(" ")
    name = name.strip()
    if word == "save" and name:
        preset = presets.save(name, session.conversation.system, session.settings)
        return CommandResult(f"Preset {name} is saved: {preset.summary or 'defaults'}.")
    if word == "delete" and name:
        presets.remove(name)
        return CommandResult(f"Preset {name} is deleted.")
    preset = presets.find(rest)
    session.apply_preset(preset)
    return CommandResult(
        f"{preset.name}: {preset.summary or 'defaults'}, from the next answer on."
    )


def _spec(session: ChatSession, text: str) -> CommandResult:
    """`on` is the drafter before `off`; the message compares the speeds if both are
    known.
    """
    before = session.settings.spec
    if text.isdecimal():
        result = _change_setting(session, "draft_max", text)
        if before == "off":  # a draft length is set in order to speculate
            session.settings = session.with_setting("spec", "auto")
        return result
    if text == "on" and before == "off":
        text = session.last_drafter
    result = _change_setting(session, "spec", text)
    if before != "off":
        session.last_drafter = before
    speculative, plain = session.stats.speculative_speed, session.stats.plain_speed
    if speculative is None or plain is None:
        return result
    speeds = f"With speculation {token_rate(speculative)}, plain {token_rate(plain)}."
    return CommandResult(f"{result.message} {speeds}")


def _think(session: ChatSession, text: str) -> CommandResult:
    """An effort or a budget turns thinking on again; `on` and `off` end an effort."""
    if text in ("low", "medium", "high"):
        if session.loaded is not None:
            resolve_effort(text, None, None, session.loaded.thinking_controls)
        session.change_settings(effort=text, think=None)
        return CommandResult(f"thinking: {text} effort, from the next answer on.")
    if text != "show":
        has_budget = text.isdecimal()
        result = _change_setting(
            session, "think_budget" if has_budget else "think", text
        )
        think = session.settings.think
        session.change_settings(
            effort="", think=(think or None) if has_budget else think
        )
        return result
    session.change_settings(show_thinking=not session.settings.show_thinking)
    is_shown = session.settings.show_thinking
    return CommandResult(f"Thinking is {'shown' if is_shown else 'collapsed'}.")


def _read(session: ChatSession, text: str) -> CommandResult:
    if text == "-":
        session.pending_attachments = ()
        return CommandResult("No files are attached.")
    file, note = session.attach_file(paths.parse_typed_path(text))
    n = file.text.count("\n") + 1
    lines = "1 line" if n == 1 else f"{short_count(n)} lines"
    how = f", {note} (it is not UTF-8)" if note else ""
    return CommandResult(f"Attached to your next message: {file.name}, {lines}{how}.")


def _rename(session: ChatSession, title: str) -> CommandResult:
    session.recorder.rename(title)
    return CommandResult(f"The chat is called {shorten_line(session.title)}.")


def _save(session: ChatSession, text: str) -> CommandResult:
    path = session.export(paths.parse_typed_path(text))
    return CommandResult(f"Saved: {sanitize(str(path), multiline=False)}")


SESSION_COMMANDS: Mapping[str, Callable[[ChatSession, str], CommandResult]] = {
    "clear": _clear,
    "new": _new,
    "private": partial(_new, private=True),
    "model": _model,
    "draft": _draft,
    "ctx": _ctx,
    "undo": _undo,
    "turns": _turns,
    "system": _system,
    "set": _set,
    "preset": _preset,
    "spec": _spec,
    "think": _think,
    "read": _read,
    "save": _save,
    "rename": _rename,
}
"""By name. The others (`/copy`, `/help`, …) depend on the front end, and so do `/turns`
and `/model` without an argument. After `/model`, `/draft` and `/ctx` the front end
loads the pair.
"""
