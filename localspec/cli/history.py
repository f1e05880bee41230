"""`localspec history`, `export` and `replay`: saved chats and recorded answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

import click

from localspec.chat import chat_import, events_file, export
from localspec.chat.answer import GeneratedAnswer
from localspec.chat.history import ChatHistory, ChatListEntry, name_models
from localspec.cli import global_options, options, terminal
from localspec.cli.global_options import flag
from localspec.cli.report_printer import echo_columns, echo_line
from localspec.cli.shell_completion import complete_chat
from localspec.cli.terminal import echo, echo_json, echo_text, notify
from localspec.errors import NotFoundError, UsageError
from localspec.models import model_names
from localspec.protocol.events import EngineReady, Event, Notice
from localspec.report import answer_stats
from localspec.report.lines import format_columns
from localspec.report.token_classes import format_legend
from localspec.units import count

_TITLE_WIDTH = 60

CHAT_ARGUMENT = click.argument("chat", default="last", shell_complete=complete_chat)


@contextmanager
def open_history(*, create: bool = False) -> Iterator[ChatHistory]:
    """Open the history; prints its notices."""
    history = ChatHistory.open(create=create)
    try:
        for notice in history.take_notices():
            notify(notice.message, notice.hint)
        yield history
    finally:
        history.close()


def find_chat_id(history: ChatHistory, text: str) -> int:
    """The id for a number or `last`.  Raises NotFoundError."""
    if text == "last":
        return history.find_last_id()
    if not text.isdecimal() or len(text) > 15:
        raise NotFoundError(
            f"There is no chat {text[:40]!r}.",
            "See the numbers: localspec history list",
        )
    return int(text)


@click.group("history")
def history_command() -> None:
    """List, search, show, rename, import and remove saved chats.

    Chats are saved on this computer only.

    \b
    localspec history list
    localspec history search "binary tree"
    localspec run --continue 12
    """


@history_command.command("list")
@click.option(
    "-n",
    "--most",
    type=click.IntRange(1),
    metavar="N",
    help="List only N chats.  [default: all]",
)
@global_options.JSON
def list_(most: int | None, as_json: bool) -> None:
    """List the chats, most recently used first."""
    limit = -1  # SQLite's word for all.
    if most is not None:
        limit = most
    with open_history() as history:
        chats = history.list_chats(limit)
    if as_json:
        echo_json({"chats": [export.list_entry_json(chat) for chat in chats]})
        return
    if not chats:
        echo("No saved chats. To start one: localspec run", err=True)
        return
    heading = ("CHAT", "LAST USED", "TURNS", "MODEL", "TITLE")
    models = name_models(chats)
    echo_columns([heading, *(_chat_row(chat, models[chat.id]) for chat in chats)])
    if sys.stdout.isatty():
        echo(err=True)
        echo("Continue a chat: localspec run --continue CHAT", err=True)


def _chat_row(chat: ChatListEntry, model: str) -> tuple[str, ...]:
    try:
        updated = datetime.fromtimestamp(chat.updated).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        updated = "?"
    title = chat.title
    if len(title) > _TITLE_WIDTH:
        title = f"{title[: _TITLE_WIDTH - 1]}…"
    return str(chat.id), updated, str(chat.turn_count), model, title


@history_command.command("search")
@click.argument("text", nargs=-1, required=True)
@global_options.JSON
def search(text: tuple[str, ...], as_json: bool) -> None:
    """Find chats with all words of TEXT in one turn or in the title."""
    with open_history() as history:
        hits = history.search(" ".join(text))
    if as_json:
        found: list[dict[str, Any]] = []
        for hit in hits:
            chat = export.list_entry_json(hit.list_entry)
            found.append({"chat": chat, "turn": hit.turn, "excerpt": hit.excerpt})
        echo_json({"found": found})
        return
    echo_columns([(str(hit.list_entry.id), hit.excerpt) for hit in hits])
    if not hits:
        echo("No results.", err=True)


@history_command.command("show")
@CHAT_ARGUMENT
@global_options.JSON
def show(chat: str, as_json: bool) -> None:
    """Print CHAT (a number, or `last`)."""
    with open_history() as history:
        saved = history.load_chat(find_chat_id(history, chat), with_events=False)
        if as_json:
            echo_text(export.render_json(saved), newline=False)
            return
    echo_text(export.render_text(saved), newline=False)
    conversation = saved.conversation
    turns = conversation.turns
    questions = [turn for turn in conversation.all_turns if not turn.is_tool_step]
    more = len(questions) - len(conversation.questions)
    if more:
        echo(err=True)
        echo(
            f"{count(more, 'more turn')} in other branches: --json shows them.",
            err=True,
        )
    if turns and turns[-1].is_unfinished:
        echo(err=True)
        echo("The last answer was interrupted.", err=True)


@history_command.command("rename")
@click.argument("chat", shell_complete=complete_chat)
@click.argument("title", callback=global_options.reject_empty)
def rename(chat: str, title: str) -> None:
    """Rename CHAT."""
    with open_history() as history:
        history.rename_chat(find_chat_id(history, chat), title)


@history_command.command("import")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@global_options.JSON
def import_(files: tuple[Path, ...], as_json: bool) -> None:
    """Import the chats in each FILE; all of them, or none if one cannot be read.

    FILE is what `localspec export --json`, ChatGPT (conversations.json, or its
    archive), llama.cpp's web UI, LM Studio or Open WebUI wrote. A chat that is here
    already is not imported again.

    \b
    localspec history import chat.json
    localspec history import ~/Downloads/chatgpt-export.zip
    """
    with open_history(create=True) as history:
        report = chat_import.import_files(history, files)
        entries = [history.find_entry(chat_id) for chat_id in report.chat_ids]
    if as_json:
        echo_json(
            {
                "imported": [export.list_entry_json(entry) for entry in entries],
                "known": report.n_known,
                "empty": report.n_empty,
            }
        )
        return
    for entry in entries:
        echo(f"{entry.id}  {entry.title}")
    echo(report.summary, err=True)


@history_command.command("rm")
@click.argument("chats", nargs=-1, metavar="[CHAT]...", shell_complete=complete_chat)
@flag("--all", "everything", about="Remove all chats.")
@global_options.YES
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
        if entries and not yes:
            models = name_models(entries)
            rows = format_columns(
                [_chat_row(chat, models[chat.id]) for chat in entries]
            )
            hint = "Use -y to remove without asking."
            if not terminal.confirm("Remove permanently?", rows, hint, as_json=as_json):
                echo("Nothing was removed.", err=True)
                return 1
        removal = history.remove_chats(removed_ids) if entries else None
    wiped = removal is None or removal.wiped
    if as_json:
        echo_json({"removed": removed_ids, "wiped": wiped})
    else:
        echo(f"{count(len(entries), 'chat')} removed.")
    if not wiped:
        why = "another localspec is reading the file, or the disk is full"
        echo(f"Text is left in the file, because {why}.", err=True)
        echo("The next removal erases it.", err=True)
    return 0


_FORMATS = {
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".json": "json",
}


@click.command("export")
@CHAT_ARGUMENT
@click.option(
    "--md", "file_format", flag_value="md", help="Markdown, without thinking."
)
@click.option(
    "--html",
    "file_format",
    flag_value="html",
    help="One web page; thinking is collapsed.",
)
@click.option(
    "--json",
    "file_format",
    flag_value="json",
    help="Everything, including other branches.",
)
@flag("--rounds", about="With --json: every token and round.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Write to FILE.  [default: standard output]",
)
@flag("-f", "--force", about="Overwrite FILE.")
def export_command(
    chat: str, file_format: str | None, rounds: bool, output: str | None, force: bool
) -> None:
    """Export CHAT (a number, or `last`) as Markdown, HTML or JSON.

    Without a format option, the extension of FILE decides; the default is Markdown.
    """
    if file_format is None:
        extension = os.path.splitext(output or "")[1].lower()
        file_format = _FORMATS.get(extension, "md")
    if rounds and file_format != "json":
        raise UsageError("--rounds needs the JSON format.", "Add --json")
    with open_history() as history:
        saved = history.load_chat(find_chat_id(history, chat), with_events=rounds)
        # Pictures are read while it is open.
        if file_format == "json":
            text = export.render_json(saved, with_events=rounds)
        elif file_format == "html":
            text = export.render_html(saved)
        else:
            text = export.render_markdown(saved)
    if output is None:
        echo_text(text, newline=False)
        return
    path = Path(os.path.abspath(output))
    export.save_file(path, text, overwrite=force)
    echo(f"Saved: {path}", err=True)


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@options.NO_COLOUR
def replay_command(file: Path, no_color: bool) -> int:
    """Show the recorded answers in FILE round by round.

    `localspec run --events FILE` records them.

    \b
    localspec run demo -p "def fibonacci(n):" --events answer.jsonl
    localspec replay answer.jsonl
    """
    events = events_file.read(file)
    if terminal.can_open_app():
        from localspec.cli import full_screen  # noqa: PLC0415  late: it takes 200 ms

        return full_screen.open_replay(events)
    plain = global_options.is_plain()
    colour = global_options.use_colour(no_color=no_color)
    _print_answers(events, plain=plain, colour=colour)
    return 0


def _print_answers(events: list[Event], *, plain: bool, colour: bool) -> None:
    """Rounds on stdout; notices and the legend on stderr."""
    for event in events:
        if isinstance(event, Notice) and event.code in events_file.SKIPPED_LINE_CODES:
            notify(event.message)
    ready = next((event for event in events if isinstance(event, EngineReady)), None)
    if ready is not None:
        draft = PurePath(ready.draft) if ready.draft else None
        echo(model_names.name_pair_files(PurePath(ready.model), draft).text)
    answers = events_file.split_answers(events)
    for number, answer in enumerate(answers, 1):
        if len(answers) > 1:
            echo()
            echo(f"Answer {number}")
        totals = GeneratedAnswer()
        for event in answer:
            totals.add(event)
        for round_ in totals.rounds:
            if plain:
                echo(answer_stats.describe_round(round_))
            else:
                line = answer_stats.format_round(round_, is_coloured=colour)
                echo_line(line, colour=colour)
        echo(answer_stats.format_answer_summary(totals))
    if not plain:
        echo_line(format_legend(with_marks=not colour), err=True, colour=colour)
