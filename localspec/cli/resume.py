"""Saving and continuing chats for `localspec run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from click.core import ParameterSource

from localspec import config, launch
from localspec.chat.conversation import Turn, format_question
from localspec.chat.history import ChatHistory, SavedChat
from localspec.chat.session import ChatSession
from localspec.chat.settings import ANSWER_OPTIONS, ChatSettings
from localspec.errors import LocalspecError, NotFoundError, UsageError
from localspec.launch import recent_pairs
from localspec.sanitize import sanitize
from localspec.units import count

_RECAP_TURNS = 2  # Turns shown when a chat is continued.
_RECAP_LINES = 6  # Lines shown of each question and each answer.


def resume_chat(is_chat: bool, chat: str | None) -> SavedChat | None:
    """The chat of --continue; None without that option."""
    if chat is None:
        return None
    if not is_chat:
        raise UsageError("--continue needs a chat on a terminal.", "Leave out -p and --json.")
    history = ChatHistory.open(create=False)
    try:
        return history.load_chat(find_chat_id(history, chat), with_events=False)
    finally:
        history.close()


def resolve_pair(model: str | None, draft: str, saved_chat: SavedChat | None) -> tuple[str, str]:
    """The named pair; else the saved chat's, else as `recent_pairs.resolve_default`."""
    pair = saved_chat.list_entry.pair if saved_chat else None
    if model is None and pair is not None and pair.model:
        return pair.model, pair.draft if draft == "auto" else draft
    return recent_pairs.resolve_default(model, draft)


def create_session(
    pair: launch.ResolvedPair,
    saved_chat: SavedChat | None,
    settings: ChatSettings,
    given: dict[str, Any],
) -> ChatSession:
    """The session of this chat.  Raises InUseError if another window has the chat open."""
    history = _open_history(private=given["private"], quiet=given["quiet"])
    session = ChatSession(
        pair, given["seed"], history, saved_chat, settings=settings, system=given["system"]
    )
    if session.recorder.lock_error is not None:
        raise session.recorder.lock_error
    if saved_chat is not None:
        merged = merge_settings(saved_chat.settings, settings)
        session.settings = settings if given["preset"] else merged
        if given["system"]:
            session.conversation.system = given["system"]
    return session


def _open_history(*, private: bool, quiet: bool = False) -> ChatHistory | None:
    """The history to save in; None for a private chat, or with a warning if it cannot be opened."""
    if private or not config.load().get("chats.keep"):
        return None
    try:
        history = ChatHistory.open()
    except LocalspecError as error:
        _warn_unsaved(error, quiet)
        return None
    for notice in history.take_notices():
        click.echo(f"localspec: {notice.message}\n  {notice.hint}", err=True)
    if history.write_error is not None:
        _warn_unsaved(history.write_error, quiet)
    return history


def _warn_unsaved(error: LocalspecError, quiet: bool) -> None:
    if not quiet:
        what = sanitize(f"This chat will not be saved: {error.message}", multiline=False)
        click.echo(f"localspec: {what}\n  {error.hint}", err=True)


def find_chat_id(history: ChatHistory, text: str) -> int:
    """The id for a number or `last`.  Raises NotFoundError."""
    if text == "last":
        return history.find_last_id()
    if not text.isdecimal() or len(text) > 15:
        what = f"There is no chat {sanitize(text, multiline=False)[:40]!r}."
        raise NotFoundError(what, "See the numbers: localspec history list")
    return int(text)


def merge_settings(saved_settings: ChatSettings, given_settings: ChatSettings) -> ChatSettings:
    """The settings of the saved chat, overridden by options given on the command line."""
    source_of = click.get_current_context().get_parameter_source
    return saved_settings.with_values(
        {
            name: given_settings.get(option)
            for name, option in ANSWER_OPTIONS.items()
            if source_of(name) is ParameterSource.COMMANDLINE
        }
    )


def format_recap(chat: SavedChat, *, plain: bool) -> Iterator[str]:
    """Title and last turns of a continued chat."""
    entry, turns = chat.list_entry, chat.conversation.turns
    n_turns = count(len(turns), "turn")
    yield f"Chat {entry.id}, {n_turns}: {sanitize(entry.title, multiline=False)}"
    if len(turns) > _RECAP_TURNS:
        yield "Last turns:" if plain else "…"
    for turn in turns[-_RECAP_TURNS:]:
        name = sanitize(turn.model or entry.pair.name, multiline=False) or "Answer"
        yield from _format_turn(
            turn, chat, "You: " if plain else "> ", f"{name}: " if plain else ""
        )
    if turns and turns[-1].finish_reason is None:
        yield "The last answer was interrupted. Press Enter or type /retry to generate it again."


def _format_turn(
    turn: Turn, chat: SavedChat, question_prefix: str, answer_prefix: str
) -> Iterator[str]:
    question = sanitize(format_question(turn)).splitlines()
    if question:
        yield f"{question_prefix}{question[0]}"
        yield from question[1:_RECAP_LINES]
        if len(question) > _RECAP_LINES:
            yield "…"
    answer = sanitize(turn.visible_answer(chat.list_entry.pair.thinking)).splitlines()
    if len(answer) > _RECAP_LINES:
        answer = ["…", *answer[-_RECAP_LINES:]]
    if answer:
        yield f"{answer_prefix}{answer[0]}"
        yield from answer[1:]
