"""`localspec history`: the saved chats."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import click

from localspec.chat import export
from localspec.chat.history import ChatHistory, ChatListEntry
from localspec.cli import completion, global_options, pull
from localspec.cli.resume import find_chat_id
from localspec.cli.table import format_columns
from localspec.errors import UsageError
from localspec.sanitize import sanitize
from localspec.units import count

_TITLE_WIDTH = 60

CHAT_ARGUMENT = click.argument("chat", default="last", shell_complete=completion.complete_chat)


@contextmanager
def open_history() -> Iterator[ChatHistory]:
    """Open the history without creating it; prints its notices."""
    history = ChatHistory.open(create=False)
    try:
        for notice in history.take_notices():
            click.echo(f"localspec: {notice.message}\n  {notice.hint}", err=True)
        yield history
    finally:
        history.close()


@click.group("history")
def command() -> None:
    """List, search, show, rename and remove saved chats.

    Chats are saved on this computer only.

    \b
    localspec history list
    localspec history search "binary tree"
    localspec run --continue 12
    """


@command.command("list")
@click.option(
    "-n", "--most", type=click.IntRange(1), metavar="N", help="List only N chats.  [default: all]"
)
@global_options.JSON
def list_(most: int | None, as_json: bool) -> int:
    """List the chats, most recently used first."""
    with open_history() as history:
        chats = history.list_chats(-1 if most is None else most)
    if as_json:
        entries = [export.list_entry_json(chat) for chat in chats]
        click.echo(json.dumps({"schema": 1, "chats": entries}))
        return 0
    if not chats:
        click.echo("No saved chats. To start one: localspec run", err=True)
        return 0
    table = [("CHAT", "LAST USED", "TURNS", "MODEL", "TITLE"), *map(_chat_row, chats)]
    for line in format_columns(table):
        click.echo(line)
    if sys.stdout.isatty():
        click.echo("\nContinue a chat: localspec run --continue CHAT", err=True)
    return 0


def _chat_row(chat: ChatListEntry) -> tuple[str, ...]:
    return (
        str(chat.id),
        _format_time(chat.updated),
        str(chat.turn_count),
        chat.pair.name,
        _shorten_title(chat.title),
    )


def _format_time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "?"


def _shorten_title(title: str) -> str:
    title = sanitize(title, multiline=False)
    return title if len(title) <= _TITLE_WIDTH else f"{title[: _TITLE_WIDTH - 1]}…"


@command.command("search")
@click.argument("text", nargs=-1, required=True)
@global_options.JSON
def search(text: tuple[str, ...], as_json: bool) -> int:
    """Find chats with all words of TEXT in one turn or in the title."""
    with open_history() as history:
        hits = history.search(" ".join(text))
    if as_json:
        body = [
            {
                "chat": export.list_entry_json(hit.list_entry),
                "turn": hit.turn,
                "excerpt": hit.excerpt,
            }
            for hit in hits
        ]
        click.echo(json.dumps({"schema": 1, "found": body}))
        return 0
    for line in format_columns([(str(hit.list_entry.id), hit.excerpt) for hit in hits]):
        click.echo(line)
    if not hits:
        click.echo("No results.", err=True)
    return 0


@command.command("show")
@CHAT_ARGUMENT
@global_options.JSON
def show(chat: str, as_json: bool) -> int:
    """Print CHAT (a number, or `last`)."""
    with open_history() as history:
        saved = history.load_chat(find_chat_id(history, chat), with_events=False)
    if as_json:
        click.echo(export.render_json(saved))
        return 0
    click.echo(export.render_text(saved), nl=False)
    turns = saved.conversation.turns
    more = len(saved.conversation.all_turns) - len(turns)
    if more:
        click.echo(f"\n{count(more, 'more turn')} in other branches: --json shows them.", err=True)
    if turns and turns[-1].finish_reason is None:
        click.echo("\nThe last answer was interrupted.", err=True)
    return 0


@command.command("rename")
@click.argument("chat", shell_complete=completion.complete_chat)
@click.argument("title", callback=global_options.reject_empty)
def rename(chat: str, title: str) -> int:
    """Rename CHAT."""
    with open_history() as history:
        history.rename_chat(find_chat_id(history, chat), title)
    return 0


@command.command("rm")
@click.argument("chats", nargs=-1, metavar="[CHAT]...", shell_complete=completion.complete_chat)
@click.option("--all", "everything", is_flag=True, help="Remove all chats.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@global_options.JSON
def remove(chats: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> int:
    """Remove chats permanently; their text is erased from the files of localspec."""
    if bool(chats) == everything:
        raise UsageError("Give a CHAT or --all.", "See: localspec history list")
    with open_history() as history:
        if everything:
            entries = list(history.list_chats())
        else:
            ids = dict.fromkeys(find_chat_id(history, chat) for chat in chats)
            entries = [history.find_entry(id_) for id_ in ids]
        removed_ids = [entry.id for entry in entries]
        if entries and not yes and not _confirm_removal(entries, as_json):
            click.echo("Nothing was removed.", err=True)
            return 1
        removal = history.remove_chats(removed_ids) if entries else None
    wiped = removal is None or removal.wiped
    if as_json:
        click.echo(json.dumps({"schema": 1, "removed": removed_ids, "wiped": wiped}))
    else:
        click.echo(f"{count(len(entries), 'chat')} removed.")
    if not wiped:
        why = "another localspec is reading the file, or the disk is full"
        click.echo(f"Text is left in the file, because {why}.", err=True)
        click.echo("The next removal erases it.", err=True)
    return 0


def _confirm_removal(chats: list[ChatListEntry], as_json: bool) -> bool:
    if as_json or not pull.can_prompt_user():
        raise UsageError("Cannot ask: not a terminal.", "Use -y to remove without asking.")
    for line in format_columns([_chat_row(chat) for chat in chats]):
        click.echo(f"  {line}", err=True)
    return click.confirm("Remove permanently?", default=False, err=True)
