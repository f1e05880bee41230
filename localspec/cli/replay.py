"""`localspec replay`: a recorded answer, round by round."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from localspec.chat import events_file
from localspec.cli import global_options, speculation_text
from localspec.protocol.events import EngineReady, Event, GenerationFinished, Notice, Round
from localspec.sanitize import sanitize


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-color", is_flag=True, help="Also: NO_COLOR in the environment.")
def command(file: Path, no_color: bool) -> int:
    """Show the answers in FILE, as `localspec run … --events FILE` recorded them.

    \b
    localspec run demo -p "def fibonacci(n):" --events answer.jsonl
    localspec replay answer.jsonl
    """
    events = events_file.read(file)
    plain = global_options.is_plain()
    if not plain and _is_terminal():
        return _replay_in_tui(events)
    colour = not plain and not no_color and _use_colour()
    _print_answers(events, plain=plain, colour=colour)
    return 0


def _replay_in_tui(events: list[Event]) -> int:
    """Show it in the app, round by round."""
    from localspec.tui import app  # noqa: PLC0415  200 ms that no other command needs

    return app.replay(events)


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _use_colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _print_answers(events: list[Event], *, plain: bool, colour: bool) -> None:
    """Rounds on stdout; notices and what the marks mean on stderr."""
    for event in events:
        if isinstance(event, Notice) and event.code in events_file.SKIPPED_LINE_CODES:
            click.echo(f"localspec: {sanitize(event.message, multiline=False)}", err=True)
    for event in events:
        if isinstance(event, EngineReady):
            model, draft = (sanitize(n or "", multiline=False) for n in (event.model, event.draft))
            click.echo(f"{model} with {draft}" if draft else model)
            break
    found = events_file.split_answers(events)
    for number, answer in enumerate(found, 1):
        if len(found) > 1:
            click.echo(f"\nAnswer {number}")
        _print_answer(answer, plain=plain, colour=colour)
    if not plain:
        click.echo(speculation_text.format_legend(colour), err=True, color=colour)


def _print_answer(answer: tuple[Event, ...], *, plain: bool, colour: bool) -> None:
    said = [event for event in answer if isinstance(event, Round)]
    for event in said:
        click.echo(speculation_text.format_round(event, plain=plain, colour=colour), color=colour)
    ended = next(
        (event for event in reversed(answer) if isinstance(event, GenerationFinished)), None
    )
    click.echo(speculation_text.format_answer_summary(said, ended))
