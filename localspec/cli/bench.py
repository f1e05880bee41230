"""`localspec bench`: measure a pair here, plain and speculating."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from localspec import launch
from localspec.bench import card, results, trial, workloads
from localspec.bench.course import Answered, Asked, Begun, Measuring, Over, Told, course
from localspec.cli import bench_table, choosing, completing, options, places

_SPARSE = 30.0
"""Seconds between lines of progress where there is no terminal."""


@click.command("bench")
@click.argument("pair", required=False, shell_complete=completing.models)
@click.option("--workload", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="Default: what time allows, 1 to 3.")
@click.option("--max-tokens", type=click.IntRange(2), default=64, show_default=True)
@click.option("--temperature", type=click.FloatRange(0), default=0.8, help="Beside 0.")
@click.option("--draft", default="auto", metavar="REF|auto|none", help="The draft model.")
@options.MACHINE
@click.option("--markdown", is_flag=True, help="A card to share.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="With an error, the engine's last words.")
def command(pair: str | None, **given: Any) -> int:
    """Measure PAIR: one of the catalogue, or any model as `run` takes it.

    Every prompt is answered plain and as `run` would, in turns, at temperature 0 and the usual one.

    \b
    localspec bench demo
    localspec bench big.gguf --draft small.gguf --workload code --markdown
    """
    chosen = workloads.load(given["workload"])
    choice = choosing.choose(pair, given["draft"])
    way = trial.Way(given["max_tokens"], choice.spec, choice.why)
    temperatures = tuple(dict.fromkeys((0.0, given["temperature"])))
    asked = Asked(pair or "demo", tuple(chosen), temperatures, way, given["rounds"])
    progress = _Progress(quiet=given["quiet"])
    progress.say("loading")
    engine = launch.start(options.wish(choice, given | {"spec": "auto"}))
    try:
        with _stoppable(engine) as stopped:
            over = _run(engine, asked, stopped, progress)
            progress.clear()  # what is printed next begins on its own line
            return _shown(over, given, stopped=stopped())
    finally:
        progress.clear()
        engine.close()


def _run(
    engine: launch.Remembering, asked: Asked, stopped: Callable[[], bool], progress: _Progress
) -> Over:
    for told in course(engine, asked, stopped):
        if isinstance(told, Over):
            return told
        progress.show(told)
    raise AssertionError("a bench without an end")


def _shown(over: Over, given: dict[str, Any], *, stopped: bool) -> int:
    if over.error is None or (over.report.rows and not given["as_json"]):
        _print(over.report, given)  # with --json the one document is the error
    if over.error is not None:
        raise over.error
    return 130 if stopped else 0


def _print(found: results.Report, given: dict[str, Any]) -> None:
    if given["as_json"]:
        click.echo(json.dumps(results.document(found)))
        return
    lines = card.card(found) if given["markdown"] else bench_table.table(found)
    for line in lines:
        click.echo(bench_table.plain(line))


@contextmanager
def _stoppable(engine: launch.Remembering) -> Iterator[Callable[[], bool]]:
    """Ctrl+C ends the answer in progress and the bench with it; a second one quits."""
    asked = False

    def stop(*_: int | FrameType | None) -> None:
        nonlocal asked
        asked = True
        engine.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """One line on standard error that is written over; sparse lines where it is no terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = places.redraws()
        self._shown = False
        self._last = time.monotonic()

    def show(self, told: Told) -> None:
        if isinstance(told, Measuring):
            self.say(told.why or "measuring passes")
        elif isinstance(told, Begun):
            answers, seconds = told.extent.answers, told.extent.seconds
            self._tell(f"{answers} answers, {_left(seconds)}", always=True)
        elif isinstance(told, Answered):
            left = _left(told.seconds_left)
            self._tell(f"{told.done} of {told.of} answers, {left}   {told.run.task.workload}")

    def say(self, what: str) -> None:
        if self._terminal:
            self._tell(what)

    def _tell(self, text: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if self._quiet or not (self._terminal or always or now - self._last > _SPARSE):
            return
        self._last, self._shown = now, True
        if self._terminal:
            click.echo(f"\r{text[:79]:<79}", nl=False, err=True)
        else:
            click.echo(f"localspec: {text}", err=True)

    def clear(self) -> None:
        if self._shown and self._terminal:
            click.echo("\r" + " " * 79 + "\r", nl=False, err=True)
            self._shown = False


def _left(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"
