"""Chats that are kept, for `run`: where they go, which one is gone on with, and how it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import click
from click.core import ParameterSource

from localspec import config
from localspec.chat.conversation import Conversation, Turn, format_question
from localspec.chat.history import ChatHistory, ChatPair, SavedChat
from localspec.chat.recorder import ChatRecorder
from localspec.chat.settings import ChatSettings
from localspec.chat.thinking import strip_thinking
from localspec.cli import options
from localspec.errors import LocalspecError, NotFoundError, UsageError
from localspec.protocol.events import Notice
from localspec.protocol.wire import SamplingParams
from localspec.sanitize import sanitize

_RECAP_TURNS = 2
"""Shown of a chat that goes on."""
_RECAP_LINES = 6
"""Of each question and each answer."""
_OPTION_NAMES = {"draft_length": "draft_max"}
"""Settings that have another name on the command line."""


def resume_chat(is_chat: bool, chat: str | None) -> SavedChat | None:
    """The chat of --continue, if it was said."""
    if chat is None:
        return None
    if not is_chat:
        raise UsageError("--continue goes on with a chat.", "It needs a terminal, and no -p.")
    return _load_chat(chat)


def resolve_pair(model: str | None, draft: str, saved_chat: SavedChat | None) -> tuple[str, str]:
    """The pair that was named; else that of the chat, of the last run, or the demo."""
    pair = saved_chat.list_entry.pair if saved_chat else None
    if model is None and pair is not None and pair.model:
        return pair.model, pair.draft if draft == "auto" else draft
    return options.resolve_default(model, draft)


def create_recorder(
    pair: tuple[str, str],
    conversation: Conversation,
    saved_chat: SavedChat | None,
    given: dict[str, Any],
) -> ChatRecorder:
    """Who keeps this chat.  Raises InUseError where another window has it."""
    if saved_chat and given["system"]:
        conversation.system = given["system"]

    def say(notice: Notice) -> None:
        words = sanitize(f"{notice.message} {notice.hint}", multiline=False)
        click.echo(f"localspec: {words}", err=True)

    known = _open_history(private=given["private"], quiet=given["quiet"])
    made = ChatRecorder(conversation, known, ChatPair(*pair), saved_chat=saved_chat, notify=say)
    if made.lock_error is not None:
        raise made.lock_error
    return made


def _open_history(*, private: bool, quiet: bool = False) -> ChatHistory | None:
    """Where this chat is kept; None where it is not, which is said unless it was wished."""
    if private or config.load().private_chats:
        return None
    try:
        found = ChatHistory.open()
    except LocalspecError as error:
        _warn_unsaved(error, quiet)
        return None
    for notice in found.take_notices():
        click.echo(f"localspec: {notice.message}\n  {notice.hint}", err=True)
    if found.write_error is not None:
        _warn_unsaved(found.write_error, quiet)
    return found


def _warn_unsaved(error: LocalspecError, quiet: bool) -> None:
    if not quiet:
        what = sanitize(f"This chat will not be saved: {error.message}", multiline=False)
        click.echo(f"localspec: {what}\n  {error.hint}", err=True)


def find_chat_id(history: ChatHistory, text: str) -> int:
    """The chat that `last` or a number means.  Raises NotFoundError."""
    if text == "last":
        return history.find_last_id()
    if not text.isdecimal() or len(text) > 15:
        what = f"There is no chat {sanitize(text, multiline=False)[:40]!r}."
        raise NotFoundError(what, "Chats have numbers: localspec history list")
    return int(text)


def _load_chat(text: str) -> SavedChat:
    """The chat to go on with.  Raises NotFoundError."""
    known = ChatHistory.open(create=False)
    try:
        return known.load_chat(find_chat_id(known, text), with_events=False)
    finally:
        known.close()


def merge_settings(saved_settings: ChatSettings, given_settings: ChatSettings) -> ChatSettings:
    """As the chat was had, but for what stands on the command line."""
    context = click.get_current_context()

    def named(names: Iterator[str]) -> Iterator[str]:
        for name in names:
            option = _OPTION_NAMES.get(name, name)
            if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
                yield name

    sampling = _pick_fields(
        given_settings.sampling, named(field.name for field in fields(SamplingParams))
    )
    own = (field.name for field in fields(ChatSettings) if field.name != "sampling")
    changed = _pick_fields(given_settings, named(own))
    return replace(saved_settings, sampling=replace(saved_settings.sampling, **sampling), **changed)


def _pick_fields(settings: object, names: Iterator[str]) -> Mapping[str, Any]:
    return {name: getattr(settings, name) for name in names}


def format_recap(chat: SavedChat, *, plain: bool) -> Iterator[str]:
    """Lines that remind of what was said."""
    listed, turns = chat.list_entry, chat.conversation.turns
    n = len(turns)
    about = f"{n} turn{'s' * (n != 1)}"
    yield f"Chat {listed.id}, {about}: {sanitize(listed.title, multiline=False)}"
    if n > _RECAP_TURNS:
        yield "The last of it:" if plain else "…"
    for turn in turns[-_RECAP_TURNS:]:
        name = sanitize(turn.model or listed.pair.name, multiline=False) or "Answer"
        yield from _format_turn(
            turn, chat, "You: " if plain else "> ", f"{name}: " if plain else ""
        )
    if is_interrupted(chat):
        yield "The last answer was interrupted: Enter, or /retry, finishes it."


def is_interrupted(chat: SavedChat) -> bool:
    """Whether the last answer was cut off."""
    turns = chat.conversation.turns
    return bool(turns) and turns[-1].finish_reason is None


def _format_turn(
    turn: Turn, chat: SavedChat, question_prefix: str, answer_prefix: str
) -> Iterator[str]:
    question = sanitize(format_question(turn)).splitlines()
    if question:
        yield f"{question_prefix}{question[0]}"
        yield from question[1:_RECAP_LINES]
        if len(question) > _RECAP_LINES:
            yield "…"
    answer = sanitize(
        strip_thinking(turn.answer, chat.list_entry.pair.thinking, turn.starts_in_thinking)
    ).splitlines()
    if len(answer) > _RECAP_LINES:
        answer = ["…", *answer[-_RECAP_LINES:]]
    if answer:
        yield f"{answer_prefix}{answer[0]}"
        yield from answer[1:]
