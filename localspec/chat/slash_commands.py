"""The slash commands: one table, which both front ends run.

A command is one row of `COMMANDS`. `change` is what it does to a chat session and means
the same everywhere; `show` is what a front end does for it. A command that has both
changes the session if it has an argument, and shows something if it has none: `/model
NAME` answers with another model, `/model` lists them.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from localspec import draft_kinds, launch, paths
from localspec.chat import argument_completion, copying, picture_sources, presets
from localspec.chat.conversation import Turn
from localspec.chat.front_end import (
    ChatFrontEnd,
    CommandResult,
    PickerChoices,
    PickerRow,
)
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.chat.settings import CHAT_SETTING_FIELDS, find_field, parse_context_size
from localspec.config import other_spellings
from localspec.documents.reading import parse_file_request
from localspec.errors import UsageError
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import model_lookup
from localspec.models.chat_template.thinking_effort import check_thinking
from localspec.sanitize import sanitize
from localspec.tools import folder_tools
from localspec.tools.folder_tools import FolderTools
from localspec.tools.tool_types import ToolProvider
from localspec.tools.toolbox import Toolbox
from localspec.units import count, token_rate

_MAX_TEXT_LENGTH = 60
_EFFORTS = ("low", "medium", "high")
_TOOL_WORDS = ("on", "off", "ask")


class SlashCommand(Struct, frozen=True, kw_only=True):
    name: str
    help: str
    argument: str = ""  # The argument as shown; in brackets if it is optional.
    aliases: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()  # Words for completing the argument.
    complete: Callable[[str], Sequence[str]] = lambda _: ()
    """Other completions of the argument typed so far."""
    new_name_after: str | None = None
    """The words before a name that the user makes up; such a name needs no completion."""
    change: Callable[[ChatSession, str], CommandResult] | None = None
    show: Callable[[ChatFrontEnd, str], None] | None = None
    changes_turns: bool = False  # Whether `change` may select other turns.

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
    hint: str = "/help lists the commands."

    @property
    def message(self) -> str:
        hint = self.hint
        if self.suggestion:
            hint = f"Did you mean {self.suggestion}?"
        return f"Unknown command: {self.text}. {hint}"


# --- running a command
# ------------------------------------------------------------------------


def run(call: CommandCall | UnknownCommand, front_end: ChatFrontEnd) -> None:
    """Run a command line.

    Raises LocalspecError, and then changes nothing.
    """
    if isinstance(call, UnknownCommand):
        front_end.show_message(sanitize(call.message, multiline=False))
        return
    command = COMMANDS_BY_NAME[call.name]
    # A command that can do both shows without an argument, and changes with one.
    changes_session = command.change is not None and bool(call.argument)
    if command.show is not None and not changes_session:
        _check_argument(command, call.argument)
        command.show(front_end, call.argument)
        return
    if command.changes_turns and front_end.warn_if_busy():
        return
    result = change_session(front_end.session, call)
    front_end.show_result(result, turns_changed=command.changes_turns)


def change_session(session: ChatSession, call: CommandCall) -> CommandResult:
    """Do to the session what the command does to it.

    Raises LocalspecError, and then changes nothing.
    """
    command = COMMANDS_BY_NAME[call.name]
    assert command.change is not None
    _check_argument(command, call.argument)
    result = command.change(session, call.argument)
    session.save_metadata()
    return result


def _check_argument(command: SlashCommand, argument: str) -> None:
    if command.requires_argument and not argument:
        raise UsageError(
            f"/{command.name} needs an argument.", f"Type: {command.usage}"
        )


def parse(text: str) -> CommandCall | UnknownCommand | None:
    """Parse a command line; None if the text is a normal message.

    A path (`/usr/bin`) is a message, and so is a multi-line text that begins with an
    unknown command. The name of a setting is a command, too: `/temp 0.3` and `/num_ctx
    8192` are `/set temp 0.3` and `/set num_ctx 8192`.
    """
    match = re.fullmatch(
        r"/([A-Za-z][A-Za-z_-]*|\?)(?:\s+(.*))?", text.strip(), re.DOTALL
    )
    if match is None:
        return None
    name = match[1].lower()
    argument = match[2] or ""
    if name in COMMANDS_BY_NAME:
        return CommandCall(COMMANDS_BY_NAME[name].name, argument)
    if name in CHAT_SETTING_FIELDS or other_spellings.find_option_name(match[1]):
        return CommandCall("set", f"{match[1]} {argument}".rstrip())
    if "\n" in argument or not name.isalpha():
        return None
    spelling = other_spellings.find_name(name)
    if spelling is not None and spelling.hint:
        return UnknownCommand(f"/{name}", hint=spelling.hint)
    near = difflib.get_close_matches(name, COMMANDS_BY_NAME, n=1, cutoff=0.5)
    suggestion = f"/{near[0]}" if near else ""
    return UnknownCommand(f"/{name}", suggestion)


def unescape(text: str) -> str:
    """Remove the escape of a message that looks like a command: `//help` sends `/help`."""
    if text.startswith("//") and parse(text[1:]) is not None:
        return text[1:]
    return text


def shorten_question(turn: Turn) -> str:
    """A question, or the names of its files, as one short line."""
    file_names = ", ".join(turn.file_names)
    return shorten_line(turn.question or file_names)


def describe_step(turn: Turn) -> str:
    """A tool step among the turns of a chat."""
    return f"the answer after {count(len(turn.results), 'result')} of tools"


def shorten_line(text: str) -> str:
    line = sanitize(text, multiline=False).strip()
    if len(line) <= _MAX_TEXT_LENGTH:
        return line
    return line[: _MAX_TEXT_LENGTH - 1] + "…"


# --- turns
# ------------------------------------------------------------------------------------


def _clear(session: ChatSession, _: str) -> CommandResult:
    session.clear()
    return CommandResult("Cleared: the model no longer sees the earlier turns.")


def _new(session: ChatSession, _: str) -> CommandResult:
    session.start_new_chat()
    return CommandResult("New chat.")


def _private(session: ChatSession, _: str) -> CommandResult:
    session.start_new_chat(private=True)
    return CommandResult("New chat, not saved.")


def _regenerate(front_end: ChatFrontEnd, argument: str) -> None:
    front_end.session.require_turns()
    if argument:
        call = CommandCall("model", argument)
        result = change_session(front_end.session, call)
        front_end.show_message(result.message)
    front_end.regenerate()


def _undo(session: ChatSession, _: str) -> CommandResult:
    undone = shorten_question(session.undo()) or "the continuation"
    return CommandResult(f"Undone: {undone}")


def _edit(front_end: ChatFrontEnd, question: str) -> None:
    front_end.session.require_turns()
    front_end.edit_last(question)


def _turns(session: ChatSession, argument: str) -> CommandResult:
    """`N` goes back to before turn N to edit it; `N B` switches to its branch B.

    `3.2` is the second step of turn 3: the answer after its first calls of tools.
    """
    words = argument.split()
    number = words[0] if words else ""
    branch = words[1] if len(words) > 1 else ""
    conversation = session.conversation
    question_number, _, step_number = number.partition(".")
    turn = _find_turn(question_number, conversation.questions)
    if step_number:
        turn = _find_turn(step_number, conversation.list_steps(turn.id))
    if not branch and turn.is_tool_step:
        raise UsageError(
            f"Turn {number} is {describe_step(turn)}: it has no question to edit.",
            f"Type /turns {question_number} to edit the question, or /turns {number} B.",
        )
    if not branch:
        question = session.return_to(turn.id)
        message = f"Back before turn {number}. The later turns stay as a branch."
        return CommandResult(message, sanitize(question))
    sibling = _find_turn(branch, conversation.branches(turn.id))
    session.switch_branch(sibling.id)
    n_turns = count(len(conversation.questions), "turn")
    return CommandResult(f"Branch {branch} of turn {number}: {n_turns}.")


def _find_turn(number: str, turns: Sequence[Turn]) -> Turn:
    if not number.isdecimal() or len(number) > 6 or not 1 <= int(number) <= len(turns):
        what = f"There is no turn or branch {sanitize(number[:20], multiline=False)!r}."
        raise UsageError(what, "Type /turns to list them.")
    return turns[int(number) - 1]


# --- the model
# --------------------------------------------------------------------------------


def _model(session: ChatSession, argument: str) -> CommandResult:
    """`NAME [DRAFT]`, or `-` for the pair before the last change."""
    if argument == "-":
        if session.previous_pair is None:
            raise UsageError("There is no previous model.", "Type: /model NAME")
        model, draft = session.previous_pair.portable_refs
        return _change_pair(session, model, draft)
    words = _split_words(argument)
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
    path = paths.parse_typed_path(text)
    if os.path.exists(os.path.expanduser(path)):
        return [path]
    try:
        words = shlex.split(text, posix=os.name == "posix")
    except ValueError:
        return None
    return [paths.parse_typed_path(word.strip('"')) for word in words]


def _draft(session: ChatSession, name: str) -> CommandResult:
    model, _ = session.pair.portable_refs
    return _change_pair(session, model, name)


def _change_pair(
    session: ChatSession, model: str, draft: str = "auto"
) -> CommandResult:
    session.require_idle()
    pair = launch.resolve_pair(model, draft)
    if _loads_the_same(pair, session.pair):
        return CommandResult(f"{session.pair_name} answers already.")
    pair = replace(pair, requested_refs=launch.make_portable_refs(model, draft))
    session.change_pair(pair)
    recent_pairs.add_if_path(pair, model)
    return CommandResult(f"From now on {session.pair_name} answers.")


def _loads_the_same(pair: ResolvedPair, other: ResolvedPair) -> bool:
    """Whether loading both gives the same engine.

    They need not be equal: suggested sampling and reasons depend on how a pair was
    named.
    """
    return (
        pair.files == other.files
        and pair.spec == other.spec
        and pair.default_draft == other.default_draft
        and pair.suggested_settings.ctx == other.suggested_settings.ctx
    )


def _ctx(session: ChatSession, argument: str) -> CommandResult:
    if argument:
        session.require_idle()
        session.change_settings(ctx=parse_context_size(argument))
        size = session.settings.ctx
        if size is None:
            return CommandResult("Context: what fits.")
        return CommandResult(f"Context: {size:,} tokens.")
    if session.loaded is None:
        return CommandResult("The model is not loaded.")
    used = session.stats.context_tokens
    return CommandResult(f"Context: {used:,} of {session.loaded.n_ctx:,} tokens.")


# --- settings
# ---------------------------------------------------------------------------------


def _system(session: ChatSession, text: str) -> CommandResult:
    if text == "-":
        session.conversation.system = ""
    elif text:
        session.conversation.system = text
    prompt = sanitize(session.conversation.system, multiline=False)
    if not prompt:
        return CommandResult("No system prompt.")
    return CommandResult(f"System prompt: {prompt}")


def _set(session: ChatSession, argument: str) -> CommandResult:
    """`NAME VALUE`; `parameter NAME VALUE` is Ollama's form."""
    words = argument.split(maxsplit=1)
    if len(words) == 2 and words[0] == "parameter":
        words = words[1].split(maxsplit=1)
    name = words[0] if words else ""
    value = words[1] if len(words) == 2 else ""
    command = COMMANDS_BY_NAME.get(other_spellings.find_option_name(name) or name)
    if command is not None and command.name in ("ctx", "system"):
        assert command.change is not None
        return command.change(session, value)
    if value:
        return _change_setting(session, name, value)
    names = ", ".join(CHAT_SETTING_FIELDS)
    hint = f"Names: {names}."
    if name:
        option = find_field(name)
        hint = f"Type: /set {option.name} VALUE. Possible: {option.hint}."
    raise UsageError("/set needs a name and a value.", hint)


def _change_setting(session: ChatSession, name: str, value: str) -> CommandResult:
    session.settings = session.with_setting(name, value)
    name = find_field(name).name
    when = "" if name == "show_thinking" else ", from the next answer on"
    note = _describe_draft_limit(session) if name == "draft_max" else ""
    value_text = session.settings.format_value(name)
    return CommandResult(f"{name}: {value_text}{when}.{note}")


def _describe_draft_limit(session: ChatSession) -> str:
    """What is possible, if the model was loaded for shorter drafts than are asked for.

    A hybrid has memory for 6 draft tokens, or for as many as were asked for when it
    was loaded.
    """
    asked = session.settings.draft_length
    loaded = session.loaded
    if asked is None or loaded is None or not loaded.draft_max:
        return ""
    if asked <= loaded.draft_max:
        return ""
    return (
        f" This model is loaded for at most {loaded.draft_max};"
        " more is possible when it is loaded again."
    )


def _preset(session: ChatSession, argument: str) -> CommandResult:
    word, _, name = argument.partition(" ")
    name = name.strip()
    if word == "save" and name:
        preset = presets.save(name, session.conversation.system, session.settings)
        return CommandResult(f"Preset {name} is saved: {preset.summary or 'defaults'}.")
    if word == "delete" and name:
        presets.remove(name)
        return CommandResult(f"Preset {name} is deleted.")
    preset = presets.find(argument)
    session.apply_preset(preset)
    return CommandResult(
        f"{preset.name}: {preset.summary or 'defaults'}, from the next answer on."
    )


def _list_presets() -> list[PickerRow]:
    return [
        PickerRow(preset.name, about=preset.summary)
        for preset in presets.load().values()
    ]


def _spec(session: ChatSession, argument: str) -> CommandResult:
    """`on` is the drafter before `off`.

    The message compares the speeds if both are known.
    """
    before = session.settings.spec
    if argument.isdecimal():
        result = _change_setting(session, "draft_max", argument)
        if before == "off":  # A draft length is set in order to speculate.
            session.settings = session.with_setting("spec", "auto")
        return result
    if argument == "on" and before == "off":
        argument = session.last_drafter
    session.settings = session.with_setting("spec", argument)
    result = CommandResult(
        f"Speculation is {_describe_drafter(session)}, from the next answer on."
    )
    if before != "off":
        session.last_drafter = before
    speculative = session.stats.speculative_speed
    plain = session.stats.plain_speed
    if speculative is None or plain is None:
        return result
    speeds = f"{token_rate(speculative)}, without {token_rate(plain)}"
    return CommandResult(f"{result.message} With speculation {speeds}.")


def _describe_drafter(session: ChatSession) -> str:
    """The state of speculation that was chosen, in words."""
    spec = session.settings.spec
    if spec == "off":
        return "off"
    if spec == "auto":
        return "automatic: on where it is faster"
    kind = spec
    if spec == "model" and session.loaded is not None and session.loaded.draft_kind:
        kind = session.loaded.draft_kind
    row = draft_kinds.kinds().get(kind)
    name = row.title if row else kind
    if row is not None and row.is_head:
        name = f"the {name} head"
    elif row is not None and row.needs != "nothing":
        name = f"the {name}"
    return f"on in every step, with {name}"


def _think(session: ChatSession, argument: str) -> CommandResult:
    """An effort or a budget turns thinking on again; `on` and `off` end an effort."""
    if argument == "show":
        is_shown = not session.settings.show_thinking
        session.change_settings(show_thinking=is_shown)
        state = "shown" if is_shown else "collapsed"
        return CommandResult(f"Thinking is {state}.")
    if argument in _EFFORTS:
        if session.loaded is not None:
            check_thinking(session.loaded.thinking_controls, effort=argument)
        session.change_settings(effort=argument, think=None)
        return CommandResult(f"thinking: {argument} effort, from the next answer on.")
    if argument.isdecimal():
        result = _change_setting(session, "think_budget", argument)
        # A budget ends `off`; it leaves `on` and the model's own default.
        session.change_settings(effort="", think=session.settings.think or None)
        return result
    result = _change_setting(session, "think", argument)
    session.change_settings(effort="")
    return result


def _tokens(front_end: ChatFrontEnd, argument: str) -> None:
    word = argument.lower()
    if word not in ("on", "off"):
        raise UsageError(
            "/tokens needs on or off.", "Type: /tokens on, or: /tokens off"
        )
    front_end.mark_tokens(marked=word == "on")


# --- files
# ------------------------------------------------------------------------------------


def _copy(front_end: ChatFrontEnd, argument: str) -> None:
    chat = front_end.session.snapshot()
    front_end.copy_text(lambda: copying.select_text(chat, argument))


def _read(front_end: ChatFrontEnd, argument: str) -> None:
    if argument == "-":
        front_end.remove_attachments()
    else:
        front_end.read_document(parse_file_request(argument))


def _image(front_end: ChatFrontEnd, argument: str) -> None:
    """`FILE...`, `paste` for the picture in the clipboard, or `-` for none."""
    session = front_end.session
    if argument == "-":
        session.remove_pictures()
        result = CommandResult("No pictures are attached.")
        front_end.show_result(result, turns_changed=False)
        return
    session.require_sight(name_others=True)
    if argument == "paste":
        front_end.attach_pictures(session.pictures.paste)
        return
    files = picture_sources.split_paths(argument)
    loaders = [partial(session.pictures.load, [file]) for file in files]
    front_end.attach_pictures(*loaders)


def _audio(front_end: ChatFrontEnd, argument: str) -> None:
    """`FILE...`, or `-` for none."""
    session = front_end.session
    if argument == "-":
        session.remove_audio()
        result = CommandResult("No audio is attached.")
        front_end.show_result(result, turns_changed=False)
        return
    session.require_hearing(name_others=True)
    files = picture_sources.split_paths(argument)
    loaders = [partial(session.pictures.load_audio, [file]) for file in files]
    front_end.attach_pictures(*loaders)


def _save(front_end: ChatFrontEnd, argument: str) -> None:
    export = front_end.session.prepare_export(paths.parse_typed_path(argument))

    def work() -> str:
        return f"Saved: {sanitize(str(export()), multiline=False)}"

    front_end.run_long(work)


def _import(front_end: ChatFrontEnd, argument: str) -> None:
    from localspec.chat import chat_import  # noqa: PLC0415  late: few chats import any

    path = Path(os.path.expanduser(paths.parse_typed_path(argument)))

    def work() -> str:
        with closing(ChatHistory.open()) as history:
            return chat_import.import_files(history, [path]).summary

    front_end.run_long(work)


def _rename(session: ChatSession, title: str) -> CommandResult:
    session.recorder.rename(title)
    return CommandResult(f"The chat is called {shorten_line(session.title)}.")


# --- tools
# ------------------------------------------------------------------------------------


def _tools(front_end: ChatFrontEnd, argument: str) -> None:
    """No argument lists the tools, `N` shows a call, a word and a name change one."""
    if not argument:
        front_end.show_tools()
    elif argument.isdecimal():
        front_end.show_tool_call(int(argument[:6]))
    else:
        result = _change_tools(front_end.session, argument)
        front_end.show_result(result, turns_changed=False)


def _change_tools(session: ChatSession, argument: str) -> CommandResult:
    word, _, name = argument.partition(" ")
    name = name.strip()
    if word not in _TOOL_WORDS or not name:
        raise UsageError(
            f"/tools cannot be {shorten_line(argument)!r}.",
            "Type /tools, or /tools off NAME, on NAME or ask NAME.",
        )
    shown = shorten_line(name)
    toolbox = _toolbox_of(session)
    if word == "ask":
        for tool in toolbox.select(name):
            session.approvals.forget(tool.full_name)
        return CommandResult(f"You are asked before each call of {shown} again.")
    toolbox.set_enabled(name, enabled=word == "on")
    return CommandResult(f"{shown} is {word}, from the next answer on.")


def _folder(front_end: ChatFrontEnd, argument: str) -> None:
    """`DIR` offers its files to the model, in place of another folder; `off` none."""
    result = _change_folder(front_end.session, argument)
    front_end.show_result(result, turns_changed=False)


def _change_folder(session: ChatSession, argument: str) -> CommandResult:
    toolbox = _toolbox_of(session)
    current = toolbox.find_provider(folder_tools.PROVIDER)
    if not argument:
        if current is None:
            return CommandResult("The model can read no folder. Type: /folder DIR")
        return CommandResult(f"The model can ask to read {_describe_folder(current)}.")
    if argument == "off":
        if current is None:
            return CommandResult("The model can read no folder.")
        toolbox.remove_for_chat(folder_tools.PROVIDER)
        return CommandResult(
            f"The model can no longer read {_describe_folder(current)}."
        )
    path = Path(os.path.expanduser(paths.parse_typed_path(argument)))
    tools = FolderTools(path)
    toolbox.add_for_chat(tools)
    message = f"The model can ask to list, read and search {_describe_folder(tools)}."
    if session.completes_text:
        message += " But this model has no chat template, so it calls no tools."
    return CommandResult(message)


def _describe_folder(provider: ToolProvider) -> str:
    assert isinstance(provider, FolderTools), "its name is reserved"
    return sanitize(str(provider.folder), multiline=False)


def _toolbox_of(session: ChatSession) -> Toolbox:
    if session.toolbox is None:
        session.toolbox = Toolbox()
    return session.toolbox


# --- the table
# --------------------------------------------------------------------------------


def _list_models() -> list[PickerRow]:
    return [
        PickerRow(model.reference, model.name, model.about)
        for model in model_lookup.list_models_to_open()
    ]


def _find_listed(pair: ResolvedPair) -> str:
    return model_lookup.find_listed(pair.portable_refs[0], pair.target)


MODEL_CHOICES = PickerChoices(
    "Answer with another model",
    "a name, or the path of a .gguf file",
    _list_models,
    _find_listed,
)
PRESET_CHOICES = PickerChoices(
    "Use a preset: system prompt and settings",
    "a name; save NAME makes one of this chat",
    _list_presets,
)

COMMANDS = (
    SlashCommand(
        name="model",
        argument="[NAME [DRAFT]]",
        help="Answer with another model; without NAME, list those on this computer; -: the previous.",
        aliases=("models", "load"),
        complete=argument_completion.complete_model,
        change=_model,
        show=lambda front_end, _: front_end.pick("model", MODEL_CHOICES),
    ),
    SlashCommand(
        name="new",
        help="Start a new chat with default settings and a new seed.",
        change=_new,
        changes_turns=True,
    ),
    SlashCommand(
        name="regen",
        argument="[NAME [DRAFT]]",
        help="Regenerate the last answer with a new seed; NAME: with another model.",
        aliases=("retry",),
        complete=argument_completion.complete_model,
        show=_regenerate,
    ),
    SlashCommand(
        name="edit",
        argument="[TEXT]",
        help="Edit the last message and regenerate the answer.",
        show=_edit,
    ),
    SlashCommand(
        name="undo",
        help="Remove the last message and its answer.",
        change=_undo,
        changes_turns=True,
    ),
    SlashCommand(
        name="system",
        argument="[TEXT]",
        help="Set the system prompt; without TEXT, show it; `-` removes it.",
        change=_system,
    ),
    SlashCommand(
        name="set",
        argument="NAME VALUE",
        help="Change a setting for the next answer.",
        choices=tuple(CHAT_SETTING_FIELDS),
        complete=argument_completion.complete_setting_value,
        change=_set,
    ),
    SlashCommand(
        name="think",
        argument="on|off|low|medium|high|N|show",
        help="Turn thinking on or off, limit it, or show it.",
        choices=("on", "off", *_EFFORTS, "show"),
        change=_think,
    ),
    SlashCommand(
        name="spec",
        argument="on|off|DRAFTER|N",
        help="Turn speculation on or off, or choose a drafter; N: max draft tokens.",
        choices=("on",),
        complete=argument_completion.complete_method,
        change=_spec,
    ),
    SlashCommand(
        name="copy",
        argument="[N|code [N]|all]",
        help="Copy the last answer; N: that of turn N; code N: a code block; all: the chat.",
        choices=("code", "all"),
        show=_copy,
    ),
    SlashCommand(
        name="read",
        argument="FILE [pages N-M]",
        help="Attach a file (text, PDF, DOCX, ODT, EPUB, HTML) or some of its pages; -: none.",
        complete=argument_completion.complete_path,
        show=_read,
    ),
    SlashCommand(
        name="image",
        argument="FILE...|paste|-",
        help="Attach pictures to your next message; paste: the clipboard's; `-` removes them.",
        aliases=("images", "picture"),
        choices=("paste",),
        complete=argument_completion.complete_picture,
        show=_image,
    ),
    SlashCommand(
        name="audio",
        argument="FILE...|-",
        help="Attach WAV, MP3 or FLAC files to your next message; `-` removes them.",
        complete=argument_completion.complete_audio,
        show=_audio,
    ),
    SlashCommand(
        name="folder",
        argument="[DIR|off]",
        help="Let the model list, read and search the files of DIR, and change nothing; you are asked.",
        choices=("off",),
        complete=argument_completion.complete_folder,
        show=_folder,
    ),
    SlashCommand(
        name="tools",
        argument="[N|on NAME|off NAME|ask NAME]",
        help="List tools that the model can call; on, off: one or a server's; ask: before each call; N: show call N.",
        choices=_TOOL_WORDS,
        complete=argument_completion.complete_tools,
        show=_tools,
    ),
    SlashCommand(
        name="save",
        argument="FILE",
        help="Save the chat to a file: .md, .html, .json or .txt.",
        aliases=("export",),
        complete=argument_completion.complete_path,
        new_name_after="",
        show=_save,
    ),
    SlashCommand(
        name="turns",
        argument="[N [B]]",
        help="List earlier turns; N: go back to turn N and edit it; N B: switch to its branch B.",
        aliases=("branches",),
        change=_turns,
        changes_turns=True,
        show=lambda front_end, _: front_end.show_turns(),
    ),
    SlashCommand(
        name="import",
        argument="FILE",
        help="Import chats: our own JSON, ChatGPT's, llama.cpp's, LM Studio's or Open WebUI's.",
        complete=argument_completion.complete_path,
        show=_import,
    ),
    SlashCommand(
        name="rename",
        argument="TITLE",
        help="Give the chat another title.",
        aliases=("title",),
        change=_rename,
    ),
    SlashCommand(
        name="preset",
        argument="[NAME|save NAME|delete NAME]",
        help="Use a system prompt and settings that were saved by name; without NAME, list them.",
        aliases=("presets",),
        choices=("save", "delete"),
        complete=argument_completion.complete_preset,
        new_name_after="save ",
        change=_preset,
        show=lambda front_end, _: front_end.pick("preset", PRESET_CHOICES),
    ),
    SlashCommand(
        name="clear",
        help="Clear the conversation; keep the system prompt and the settings.",
        change=_clear,
        changes_turns=True,
    ),
    SlashCommand(
        name="private",
        help="Start a new chat that is not saved.",
        change=_private,
        changes_turns=True,
    ),
    SlashCommand(
        name="ctx",
        argument="[N|auto]",
        help="Show the context; N: load the model again with N tokens.",
        choices=("auto",),
        change=_ctx,
    ),
    SlashCommand(
        name="draft",
        argument="NAME|auto|none",
        help="Use another draft model.",
        choices=("auto", "none"),
        complete=argument_completion.complete_model,
        change=_draft,
    ),
    SlashCommand(
        name="tokens",
        argument="on|off",
        help="Mark accepted, bonus and corrected tokens.",
        choices=("on", "off"),
        show=_tokens,
    ),
    SlashCommand(
        name="stats",
        help="Show statistics of the last answer.",
        show=lambda front_end, _: front_end.show_statistics(),
    ),
    SlashCommand(
        name="show",
        help="Show the model, the settings and the context.",
        show=lambda front_end, _: front_end.show_settings(),
    ),
    SlashCommand(
        name="help",
        help="Show these commands.",
        aliases=("?",),
        show=lambda front_end, _: front_end.show_commands(),
    ),
    SlashCommand(
        name="keys",
        help="Show the key bindings.",
        show=lambda front_end, _: front_end.show_keys(),
    ),
    SlashCommand(
        name="bench",
        help="Benchmark this pair, plain and speculative.",
        show=lambda front_end, _: front_end.start_benchmark(),
    ),
    SlashCommand(
        name="logs",
        help="Show the last lines of the engine log, and the log file's path.",
        show=lambda front_end, _: front_end.show_engine_log(),
    ),
    SlashCommand(
        name="exit",
        help="Quit.",
        aliases=("quit", "bye"),
        show=lambda front_end, _: front_end.quit(),
    ),
    SlashCommand(
        name="anyway",
        help="Load the pair even if it may not fit in memory.",
        show=lambda front_end, _: front_end.load_anyway(),
    ),
)
"""The commands in the order of use, in which the help and the completion show them."""

COMMANDS_BY_NAME: dict[str, SlashCommand] = {}
"""The commands by their names and aliases."""
for _command in COMMANDS:
    for _word in (_command.name, *_command.aliases):
        COMMANDS_BY_NAME[_word] = _command
