"""`localspec history`: the chats that are kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import click

from localspec.chat import export, transcript
from localspec.chat.history import History, Listed
from localspec.clean import clean
from localspec.cli import completing, pulling
from localspec.cli.resuming import number
from localspec.cli.table import rows
from localspec.errors import UsageError

_TITLE = 60
"""Characters of a title in a list."""

JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document.")
CHAT = click.argument("chat", default="last", shell_complete=completing.chats)


@contextmanager
def opened() -> Iterator[History]:
    """The person's history, without making one; what is wrong with it is said."""
    history = History.open(create=False)
    try:
        for notice in history.notices():
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
@JSON
def list_(most: int | None, as_json: bool) -> int:
    """The chats, the last used first."""
    with opened() as history:
        chats = history.list(-1 if most is None else most)
    if as_json:
        click.echo(json.dumps({"schema": 1, "chats": [export.listed(one) for one in chats]}))
        return 0
    if not chats:
        click.echo("No chats are kept.  They begin with: localspec run", err=True)
        return 0
    table = [("CHAT", "LAST USED", "TURNS", "MODEL", "TITLE"), *map(_row, chats)]
    for line in rows(table):
        click.echo(line)
    if sys.stdout.isatty():
        click.echo("\nGo on with one: localspec run --continue CHAT", err=True)
    return 0


def _row(one: Listed) -> tuple[str, ...]:
    return (str(one.id), _when(one.updated), str(one.turns), one.pair.name, _short(one.title))


def _when(seconds: float) -> str:
    """By the person's own clock."""
    try:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return "?"


def _short(title: str) -> str:
    shown = clean(title, multiline=False)
    return shown if len(shown) <= _TITLE else f"{shown[: _TITLE - 1]}…"


@command.command("search")
@click.argument("text", nargs=-1, required=True)
@JSON
def search(text: tuple[str, ...], as_json: bool) -> int:
    """Chats in which all words of TEXT stand, in one turn or in the title."""
    with opened() as history:
        found = history.search(" ".join(text))
    if as_json:
        body = [
            {"chat": export.listed(one.listed), "turn": one.turn, "excerpt": one.excerpt}
            for one in found
        ]
        click.echo(json.dumps({"schema": 1, "found": body}))
        return 0
    for line in rows([(str(one.listed.id), one.excerpt) for one in found]):
        click.echo(line)
    if not found:
        click.echo("Nothing was found.", err=True)
    return 0


@command.command("show")
@CHAT
@JSON
def show(chat: str, as_json: bool) -> int:
    """What was said in CHAT (a number, or `last`)."""
    with opened() as history:
        kept = history.read(number(history, chat), rounds=False)
    if as_json:
        click.echo(export.document(kept))
        return 0
    pair = kept.listed.pair
    click.echo(transcript.plain(kept.conversation, pair.name or "Answer", pair.thinking), nl=False)
    more = len(kept.conversation.all) - len(kept.conversation.turns)
    if more:
        click.echo(f"\n{more} more in other branches: --json shows them.", err=True)
    if kept.conversation.turns and kept.conversation.turns[-1].reason is None:
        click.echo("\nThe last answer was interrupted.", err=True)
    return 0


@command.command("rename")
@click.argument("chat", shell_complete=completing.chats)
@click.argument("title")
def rename(chat: str, title: str) -> int:
    """Give CHAT another title."""
    with opened() as history:
        history.rename(number(history, chat), title)
    return 0


@command.command("rm")
@click.argument("chats", nargs=-1, metavar="[CHAT]...", shell_complete=completing.chats)
@click.option("--all", "everything", is_flag=True, help="All chats.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@JSON
def remove(chats: tuple[str, ...], everything: bool, yes: bool, as_json: bool) -> int:
    """Remove chats for good: nothing of them stays in any file of localspec."""
    if bool(chats) == everything:
        raise UsageError("Say what to remove.", "localspec history rm CHAT, or: --all")
    with opened() as history:
        known = [one.id for one in history.list()]
        ids = known if everything else [number(history, chat) for chat in dict.fromkeys(chats)]
        gone = [history.about(id_) for id_ in dict.fromkeys(ids)]
        if gone and not yes and not _agreed(gone, as_json):
            click.echo("Nothing was removed.", err=True)
            return 1
        removed = history.remove([one.id for one in gone]) if gone else None
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


def _agreed(gone: list[Listed], as_json: bool) -> bool:
    if as_json or not pulling.can_ask():
        raise UsageError("Nobody can be asked here.", "Say it beforehand: -y")
    for line in rows([_row(one) for one in gone]):
        click.echo(f"  {line}", err=True)
    return click.confirm("Remove for good?", default=False, err=True)
