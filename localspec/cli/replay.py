"""`localspec replay`: a recorded answer, round by round."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from localspec.chat import events_file
from localspec.chat.answer import GeneratedAnswer
from localspec.cli import global_options, speculation_text
from localspec.protocol.events import EngineReady, Event, Notice
from localspec.sanitize import sanitize


@click.command("replay")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--no-color", is_flag=True, help="No colours.  Also: NO_COLOR=1.")
def command(file: Path, no_color: bool) -> int:
    """Show the recorded answers in FILE round by round.

    `localspec run --events FILE` records them.

    \b
    localspec run demo -p "def fibonacci(n):" --events answer.jsonl
    localspec replay answer.jsonl
    """
    events = events_file.read(file)
    plain = global_options.is_plain()
    if not plain and (sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()):
        from localspec.tui import app  # noqa: PLC0415  late: it takes 200 ms to import

        return app.replay(events)
    colour = global_options.use_colour(no_color=no_color)
    _print_answers(events, plain=plain, colour=colour)
    return 0


def _print_answers(events: list[Event], *, plain: bool, colour: bool) -> None:
    """Rounds on stdout; notices and the legend on stderr."""
    for event in events:
        if isinstance(event, Notice) and event.code in events_file.SKIPPED_LINE_CODES:
            click.echo(f"localspec: {sanitize(event.message, multiline=False)}", err=True)
    for event in events:
        if isinstance(event, EngineReady):
            names = (event.model, event.draft)
            model, draft = (sanitize(name or "", multiline=False) for name in names)
            click.echo(f"{model} with {draft}" if draft else model)
            break
    answers = events_file.split_answers(events)
    for number, answer in enumerate(answers, 1):
        if len(answers) > 1:
            click.echo(f"\nAnswer {number}")
        _print_answer(answer, plain=plain, colour=colour)
    if not plain:
        click.echo(speculation_text.format_legend(colour), err=True, color=colour)


def _print_answer(events: tuple[Event, ...], *, plain: bool, colour: bool) -> None:
    answer = GeneratedAnswer()
    for event in events:
        answer.add(event)
    for round_ in answer.rounds:
        click.echo(speculation_text.format_round(round_, plain=plain, colour=colour), color=colour)
    click.echo(speculation_text.format_answer_summary(answer))
