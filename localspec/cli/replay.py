"""`localspec replay`: a recorded answer, round by round."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from localspec.chat import recording
from localspec.clean import clean
from localspec.cli import marks, places, rounds
from localspec.protocol.events import Event, Finished, Notice, Ready, Round


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-color", is_flag=True, help="Also: NO_COLOR in the environment.")
def command(file: Path, no_color: bool) -> int:
    """Show the answers in FILE, as `localspec run … --events FILE` recorded them.

    \b
    localspec run demo -p "def fibonacci(n):" --events answer.jsonl
    localspec replay answer.jsonl
    """
    events = recording.read(file)
    plain = places.plain()
    if not plain and _on_a_terminal():
        return _screen(events)
    colour = not plain and not no_color and _colour()
    _tell(events, plain=plain, colour=colour)
    return 0


def _screen(events: list[Event]) -> int:
    """Show it in the app, round by round."""
    from localspec.tui import start  # noqa: PLC0415  200 ms that no other command needs

    return start.replay(events)


def _on_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def _colour() -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def _tell(events: list[Event], *, plain: bool, colour: bool) -> None:
    """Rounds on stdout; notices and what the marks mean on stderr."""
    for event in events:
        if isinstance(event, Notice) and event.code in recording.LEFT_OUT:
            click.echo(f"localspec: {clean(event.message, multiline=False)}", err=True)
    for event in events:
        if isinstance(event, Ready):
            model, draft = (clean(n or "", multiline=False) for n in (event.model, event.draft))
            click.echo(f"{model} with {draft}" if draft else model)
            break
    found = recording.answers(events)
    for number, answer in enumerate(found, 1):
        if len(found) > 1:
            click.echo(f"\nAnswer {number}")
        _tell_answer(answer, plain=plain, colour=colour)
    if not plain:
        click.echo(marks.legend(colour), err=True, color=colour)


def _tell_answer(answer: tuple[Event, ...], *, plain: bool, colour: bool) -> None:
    said = [event for event in answer if isinstance(event, Round)]
    for event in said:
        click.echo(rounds.told(event, plain=plain, colour=colour), color=colour)
    ended = next((event for event in reversed(answer) if isinstance(event, Finished)), None)
    click.echo(rounds.summary(said, ended))
