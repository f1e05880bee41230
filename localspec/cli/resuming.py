"""Chats that are kept, for `run`: where they go, which one is gone on with, and how it begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import click
from click.core import ParameterSource

from localspec import config
from localspec.chat.conversation import Conversation, message
from localspec.chat.history import History, Kept, Pair
from localspec.chat.keeping import Keeper
from localspec.chat.settings import Settings
from localspec.chat.thinking import said
from localspec.chat.turn import Turn
from localspec.clean import clean
from localspec.cli import choosing
from localspec.errors import LocalspecError, NotFoundError, UsageError
from localspec.protocol.events import Notice
from localspec.protocol.wire import Sampling

_TURNS = 2
"""Shown of a chat that goes on."""
_LINES = 6
"""Of each question and each answer."""
_OPTIONS = {"draft_length": "draft_max"}
"""Settings that have another name on the command line."""


def gone_on_with(chatting: bool, chat: str | None) -> Kept | None:
    """The chat of --continue, if it was said."""
    if chat is None:
        return None
    if not chatting:
        raise UsageError("--continue goes on with a chat.", "It needs a terminal, and no -p.")
    return _kept(chat)


def asked(model: str | None, draft: str, kept: Kept | None) -> tuple[str, str]:
    """The pair that was named; else that of the chat, of the last run, or the demo."""
    pair = kept.listed.pair if kept else None
    if model is None and pair is not None and pair.model:
        return pair.model, pair.draft if draft == "auto" else draft
    return choosing.again(model, draft)


def keeper(
    pair: tuple[str, str], conversation: Conversation, kept: Kept | None, given: dict[str, Any]
) -> Keeper:
    """Who keeps this chat.  Raises InUseError where another window has it."""
    if kept and given["system"]:
        conversation.system = given["system"]

    def say(notice: Notice) -> None:
        words = clean(f"{notice.message} {notice.hint}", multiline=False)
        click.echo(f"localspec: {words}", err=True)

    known = _history(private=given["private"], quiet=given["quiet"])
    made = Keeper(conversation, known, Pair(*pair), kept=kept, say=say)
    if made.refusal is not None:
        raise made.refusal
    return made


def _history(*, private: bool, quiet: bool = False) -> History | None:
    """Where this chat is kept; None where it is not, which is said unless it was wished."""
    if private or config.read().private:
        return None
    try:
        found = History.open()
    except LocalspecError as error:
        _say_unsaved(error, quiet)
        return None
    for notice in found.notices():
        click.echo(f"localspec: {notice.message}\n  {notice.hint}", err=True)
    if found.refusal is not None:
        _say_unsaved(found.refusal, quiet)
    return found


def _say_unsaved(error: LocalspecError, quiet: bool) -> None:
    if not quiet:
        what = clean(f"This chat will not be saved: {error.message}", multiline=False)
        click.echo(f"localspec: {what}\n  {error.hint}", err=True)


def number(known: History, text: str) -> int:
    """The chat that `last` or a number means.  Raises NotFoundError."""
    if text == "last":
        return known.last()
    if not text.isdecimal() or len(text) > 15:
        what = f"There is no chat {clean(text, multiline=False)[:40]!r}."
        raise NotFoundError(what, "Chats have numbers: localspec history list")
    return int(text)


def _kept(text: str) -> Kept:
    """The chat to go on with.  Raises NotFoundError."""
    known = History.open(create=False)
    try:
        return known.read(number(known, text), rounds=False)
    finally:
        known.close()


def merged(kept: Settings, chosen: Settings) -> Settings:
    """As the chat was had, but for what stands on the command line."""
    context = click.get_current_context()

    def named(names: Iterator[str]) -> Iterator[str]:
        for name in names:
            option = _OPTIONS.get(name, name)
            if context.get_parameter_source(option) is ParameterSource.COMMANDLINE:
                yield name

    sampling = _values(chosen.sampling, named(field.name for field in fields(Sampling)))
    own = (field.name for field in fields(Settings) if field.name != "sampling")
    changed = _values(chosen, named(own))
    return replace(kept, sampling=replace(kept.sampling, **sampling), **changed)


def _values(of: object, names: Iterator[str]) -> Mapping[str, Any]:
    return {name: getattr(of, name) for name in names}


def beginning(chat: Kept, *, plain: bool) -> Iterator[str]:
    """Lines that remind of what was said."""
    listed, turns = chat.listed, chat.conversation.turns
    n = len(turns)
    about = f"{n} turn{'s' * (n != 1)}"
    yield f"Chat {listed.id}, {about}: {clean(listed.title, multiline=False)}"
    if n > _TURNS:
        yield "The last of it:" if plain else "…"
    for turn in turns[-_TURNS:]:
        name = clean(turn.model or listed.pair.name, multiline=False) or "Answer"
        yield from _shown(turn, chat, "You: " if plain else "> ", f"{name}: " if plain else "")
    if interrupted(chat):
        yield "The last answer was interrupted: Enter, or /retry, finishes it."


def interrupted(chat: Kept) -> bool:
    """Whether the last answer was cut off."""
    turns = chat.conversation.turns
    return bool(turns) and turns[-1].reason is None


def _shown(turn: Turn, chat: Kept, asked: str, answered: str) -> Iterator[str]:
    question = clean(message(turn)).splitlines()
    if question:
        yield f"{asked}{question[0]}"
        yield from question[1:_LINES]
        if len(question) > _LINES:
            yield "…"
    answer = clean(said(turn.answer, chat.listed.pair.thinking, turn.begins_inside)).splitlines()
    if len(answer) > _LINES:
        answer = ["…", *answer[-_LINES:]]
    if answer:
        yield f"{answered}{answer[0]}"
        yield from answer[1:]
