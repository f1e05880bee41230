"""`localspec history`: the chats that are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import click

from localspec.chat import export
from localspec.chat.history import ChatHistory, ChatListEntry
from localspec.cli import completion, pull
from localspec.cli.resume import find_chat_id
from localspec.cli.table import format_columns
from localspec.errors import UsageError
from localspec.sanitize import sanitize

_TITLE_WIDTH = 60
"""Characters of a title in a list."""

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
CHAT_ARGUMENT = click.argument("chat", default="last", shell_complete=completion.complete_chat)


@contextmanager
def open_history() -> Iterator[ChatHistory]:
    """The person's history, without making one; what is wrong with it is said."""
    history = ChatHistory.open(create=False)
    try:
        for notice in history.take_notices():
            click.echo(f"localspec: {notice.message}\n  {notice.hint}", err=True)
        yield history
    finally:
        history.close()


@click.group("history")
def command() -> None:
    """Chats are kept on this computer, and nowhere else.

    \b
    localspec history list
    localspec history search "binary tree"
    localspec run --continue 12
    """


@command.command("list")
@click.option("-n", "--most", type=click.IntRange(1), help="Only so many.  Default: all.")
@JSON_OPTION
def list_(most: int | None, as_json: bool) -> int:
    """The chats, the last used first."""
    with open_history() as history:
        chats = history.list_chats(-1 if most is None else most)
    if as_json:
        click.echo(
            json.dumps({"schema": 1, "chats": [export.list_entry_json(one) for one in chats]})
        )
        return 0
    if not chats:
        click.echo("No chats are kept.  They begin with: localspec run", err=True)
        return 0
    table = [("CHAT", "LAST USED", "TURNS", "MODEL", "TITLE"), *map(_chat_row, chats)]
    for line in format_columns(table):
        click.echo(line)
    if sys.stdout.isatty():
        click.echo("\nGo on with one: localspec run --continue CHAT", err=True)
    return 0


def _chat_row(listed: ChatListEntry) -> tuple[str, ...]:
    return (
        str(listed.id),
        _format_time(listed.updated),
        str(listed.turn_count),
        listed.pair.name,
        _shorten_title(listed.title),
    )


def _format_time(seconds: float) -> str:
    """By the person's own clock."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "?"


def _shorten_title(title: str) -> str:
    shown = sanitize(title, multiline=False)
    return shown if len(shown) <= _TITLE_WIDTH else f"{shown[: _TITLE_WIDTH - 1]}…"


@command.command("search")
@click.argument("text", nargs=-1, required=True)
@JSON_OPTION
def search(text: tuple[str, ...], as_json: bool) -> int:
    """Chats in which all words of TEXT stand, in one turn or in the title."""
    with open_history() as history:
        found = history.search(" ".join(text))
    if as_json:
        body = [
            {
                "chat": export.list_entry_json(one.list_entry),
                "turn": one.turn,
                "excerpt": one.excerpt,
            }
            for one in found
        ]
        click.echo(json.dumps({"schema": 1, "found": body}))
        return 0
    for line in format_columns([(str(one.list_entry.id), one.excerpt) for one in found]):
        click.echo(line)
    if not found:
        click.echo("Nothing was found.", err=True)
    return 0


@command.command("show")
@CHAT_ARGUMENT
@JSON_OPTION
def show(chat: str, as_json: bool) -> int:
    """What was said in CHAT (a number, or `last`)."""
    with open_history() as history:
        kept = history.load_chat(find_chat_id(history, chat), with_events=False)
    if as_json:
        click.echo(export.render_json(kept))
        return 0
    pair = kept.list_entry.pair
    click.echo(
        export.conversation_to_text(kept.conversation, pair.name or "Answer", pair.thinking),
        nl=False,
    )
    more = len(kept.conversation.all_turns) - len(kept.conversation.turns)
    if more:
        click.echo(f"\n{more} more in other branches: --json shows them.", err=True)
    if kept.conversation.turns and kept.conversation.turns[-1].finish_reason is None:
        click.echo("\nThe last answer was interrupted.", err=True)
    return 0


@command.command("rename")
@click.argument("chat", shell_complete=completion.complete_chat)
@click.argument("title")
def rename(chat: str, title: str) -> int:
    """Give CHAT another title."""
    with open_history() as history:
        history.rename_chat(find_chat_id(history, chat), title)
    return 0


@command.command("rm")
@click.argument("chats", nargs=-1, metavar="[CHAT]...", shell_complete=completion.complete_chat)
@click.option("--all", "everything", is_flag=True, help="All chats.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@JSON_OPTION
def remove(chats: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> int:
    """Remove chats for good: nothing of them stays in any file of localspec."""
    if bool(chats) == everything:
        raise UsageError("Say what to remove.", "localspec history rm CHAT, or: --all")
    with open_history() as history:
        known = [one.id for one in history.list_chats()]
        ids = (
            known if everything else [find_chat_id(history, chat) for chat in dict.fromkeys(chats)]
        )
        gone = [history.find_entry(id_) for id_ in dict.fromkeys(ids)]
        if gone and not yes and not _confirm_removal(gone, as_json):
            click.echo("Nothing was removed.", err=True)
            return 1
        removed = history.remove_chats([one.id for one in gone]) if gone else None
    wiped = removed is None or removed.wiped
    if as_json:
        body = {"schema": 1, "removed": [one.id for one in gone], "wiped": wiped}
        click.echo(json.dumps(body))
    else:
        click.echo(f"{len(gone)} chat{'s' * (len(gone) != 1)} removed.")
    if not wiped:
        why = "another localspec is reading, or the disk is full"
        click.echo(f"Traces are left, as {why}. They go with the next removal.", err=True)
    return 0


def _confirm_removal(chats: list[ChatListEntry], as_json: bool) -> bool:
    if as_json or not pull.can_prompt_user():
        raise UsageError("Nobody can be asked here.", "Say it beforehand: -y")
    for line in format_columns([_chat_row(one) for one in chats]):
        click.echo(f"  {line}", err=True)
    return click.confirm("Remove for good?", default=False, err=True)
