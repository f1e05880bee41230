"""`localspec bench`: measure a pair here, plain and speculating."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import click

from localspec import launch
from localspec.bench import here, report, results, trial, workloads
from localspec.cli import bench_table, choosing, completing, options, places
from localspec.errors import LocalspecError
from localspec.protocol.wire import Measured, Probe

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
    progress = _Progress(quiet=given["quiet"])
    progress.say("loading")
    engine = launch.start(options.wish(choice, given | {"spec": "auto"}))
    try:
        with _stoppable(engine) as stopped:
            name = pair or "demo"
            return _bench(_Bench(engine, name, chosen, way, progress, stopped), given)
    finally:
        progress.clear()
        engine.close()


class _Bench:
    """One bench from its first measurement to its report."""

    def __init__(
        self,
        engine: launch.Remembering,
        name: str,
        chosen: Sequence[workloads.Workload],
        way: trial.Way,
        progress: _Progress,
        stopped: Callable[[], bool],
    ) -> None:
        self._engine, self._name, self._chosen = engine, name, chosen
        self._way, self._progress, self.stopped = way, progress, stopped
        self._worker = engine.worker
        self._runs: list[trial.Run] = []
        self._rounds = 0
        self._measured: Measured | None = None

    def measure(self, temperatures: Sequence[float], rounds: int | None) -> None:
        """Costs first, then every run; ends early when stopped."""
        for event in self._worker.probe(Probe()):
            self._progress.say(getattr(event, "why", "") or "measuring passes")
            if self.stopped():
                self._engine.stop()
        self._measured = self._worker.measured
        once = trial.schedule(self._chosen, temperatures, 1)
        pass_s = self._measured.t1_ms / 1e3 if self._measured else 0.05
        guess = pass_s * self._way.max_tokens
        self._rounds = rounds or trial.affordable(len(once), guess)
        jobs = trial.schedule(self._chosen, temperatures, self._rounds)
        self._progress.begin(len(jobs), guess)
        if self.stopped():
            return
        for answer in trial.measure(self._engine, jobs, self._way):
            self._runs.append(answer)
            self._progress.advance(answer.task.workload)
            if self.stopped():
                return

    def report(self) -> results.Report:
        self._progress.clear()  # what is printed next begins on its own line
        ready = self._engine.ready
        about = report.About(
            pair=self._name,
            model=ready.model,
            draft=ready.draft,
            way=self._way,
            machine=here.describe(ready),
            measured=self._worker.measured or self._measured,
            rounds=self._rounds,
        )
        return report.make(self._runs, about, interrupted=self.stopped())


def _bench(bench: _Bench, given: dict[str, Any]) -> int:
    temperatures = list(dict.fromkeys((0.0, given["temperature"])))
    try:
        bench.measure(temperatures, given["rounds"])
    except LocalspecError as error:
        partial = bench.report()
        if partial.rows and not given["as_json"]:  # with --json the one document is the error
            _print(partial, given)
        raise error
    _print(bench.report(), given)
    return 130 if bench.stopped() else 0


def _print(found: results.Report, given: dict[str, Any]) -> None:
    if given["as_json"]:
        click.echo(json.dumps(results.document(found)))
        return
    lines = bench_table.card(found) if given["markdown"] else bench_table.table(found)
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
        self._done = self._all = 0
        self._guess = 0.0
        self._began = self._last = time.monotonic()

    def begin(self, runs: int, seconds_each: float) -> None:
        self._all, self._guess = runs, seconds_each
        self._began = time.monotonic()
        self._tell(f"{runs} answers, {self._left()}", always=True)

    def advance(self, name: str) -> None:
        self._done += 1
        self._tell(f"{self._done} of {self._all} answers, {self._left()}   {name}")

    def say(self, what: str) -> None:
        if self._terminal:
            self._tell(what)

    def _left(self) -> str:
        each = (time.monotonic() - self._began) / self._done if self._done else self._guess
        seconds = each * (self._all - self._done)
        return (
            f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"
        )

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
