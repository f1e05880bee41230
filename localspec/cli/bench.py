"""`localspec bench`: measure a pair on this computer, plain and speculative."""

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
from localspec.bench import paired_runs, report_text, results, workloads
from localspec.bench.benchmark import (
    BenchEvent,
    BenchFinished,
    BenchRequest,
    BenchStarted,
    CostProbeProgress,
    RunFinished,
    run_benchmark,
)
from localspec.bench.report_text import (
    format_identical,
    format_machine,
    format_rate,
    format_summary,
    format_temperature,
    format_tokens_per_pass,
)
from localspec.bench.results import BenchReport, WorkloadResult
from localspec.cli import completion, global_options, options, speculation_text
from localspec.sanitize import sanitize
from localspec.units import milliseconds, percent

_PROGRESS_INTERVAL = 30.0
"""Seconds between progress lines if stderr is not a terminal."""


@click.command("bench")
@click.argument("pair", required=False, shell_complete=completion.complete_model_or_pair)
@click.option(
    "--workload", multiple=True, metavar="NAME", help="Run only this workload; repeatable."
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="Repetitions of each prompt.  [default: 1 to 3, by speed]",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(2),
    default=64,
    show_default=True,
    metavar="N",
    help="Max tokens of an answer.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.8,
    show_default=True,
    metavar="X",
    help="Second temperature to measure, after 0.",
)
@click.option("--draft", default="auto", metavar="REF|auto|none", help="Draft model.")
@options.MACHINE
@click.option("--markdown", is_flag=True, help="Print a Markdown report to share.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@click.option("-v", "--verbose", is_flag=True, help="After an error, print the last log lines.")
def command(pair: str | None, **given: Any) -> int:
    """Measure the speed of PAIR, plain and speculative.

    PAIR is a pair of the catalogue or any model that `run` accepts. Every prompt is answered
    alternately without and with speculation, at temperature 0 and at --temperature.

    \b
    localspec bench demo
    localspec bench big.gguf --draft small.gguf --workload code --markdown
    """
    chosen = workloads.load(given["workload"])
    choice = options.resolve_or_pull(pair, given["draft"])
    settings = paired_runs.BenchSettings(given["max_tokens"], choice.spec, choice.spec_reason)
    temperatures = tuple(dict.fromkeys((0.0, given["temperature"])))
    request = BenchRequest(pair or "demo", tuple(chosen), temperatures, settings, given["rounds"])
    progress = _BenchProgressLine(quiet=given["quiet"])
    progress.show_message("loading")
    engine = launch.start_engine(options.build_load_request(choice, given | {"spec": "auto"}))
    try:
        with _stop_on_interrupt(engine) as is_stopped:
            finished = _run_to_end(engine, request, is_stopped, progress)
            progress.clear()
            return _show_result(finished, given, was_stopped=is_stopped())
    finally:
        progress.clear()
        engine.close()


def _run_to_end(
    engine: launch.MeasuredEngine,
    request: BenchRequest,
    should_stop: Callable[[], bool],
    progress: _BenchProgressLine,
) -> BenchFinished:
    for event in run_benchmark(engine, request, should_stop):
        if isinstance(event, BenchFinished):
            return event
        progress.show_event(event)
    raise AssertionError("no BenchFinished event")


def _show_result(finished: BenchFinished, given: dict[str, Any], *, was_stopped: bool) -> int:
    if finished.error is None or (finished.report.rows and not given["as_json"]):
        _print_report(finished.report, given)  # with --json the error is the document
    if finished.error is not None:
        raise finished.error
    return 130 if was_stopped else 0


def _print_report(report: results.BenchReport, given: dict[str, Any]) -> None:
    if given["as_json"]:
        click.echo(json.dumps(results.report_to_json(report)))
        return
    lines = report_text.format_markdown(report) if given["markdown"] else format_bench_table(report)
    for line in lines:
        click.echo(to_ascii(line))


@contextmanager
def _stop_on_interrupt(engine: launch.MeasuredEngine) -> Iterator[Callable[[], bool]]:
    """Ctrl+C stops the current answer and the benchmark; a second Ctrl+C quits at once."""
    is_stopped = False

    def stop(*_: int | FrameType | None) -> None:
        nonlocal is_stopped
        is_stopped = True
        engine.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield lambda: is_stopped
    finally:
        signal.signal(signal.SIGINT, before)


class _BenchProgressLine:
    """Progress on stderr: a redrawn line on a terminal, else a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._redraws = global_options.can_redraw()
        self._shown = False
        self._last_write = time.monotonic()

    def show_event(self, event: BenchEvent) -> None:
        if isinstance(event, CostProbeProgress):
            self.show_message(event.why or "measuring passes")
        elif isinstance(event, BenchStarted):
            answers, seconds = event.estimate.answers, event.estimate.seconds
            self._write(f"{answers} answers, {_format_time_left(seconds)}", always=True)
        elif isinstance(event, RunFinished):
            left = _format_time_left(event.seconds_left)
            self._write(
                f"{event.done} of {event.total} answers, {left}   {event.run.task.workload}"
            )

    def show_message(self, message: str) -> None:
        if self._redraws:
            self._write(message)

    def _write(self, text: str, *, always: bool = False) -> None:
        now = time.monotonic()
        if self._quiet or not (
            self._redraws or always or now - self._last_write > _PROGRESS_INTERVAL
        ):
            return
        self._last_write, self._shown = now, True
        if self._redraws:
            click.echo(f"\r{text[:79]:<79}", nl=False, err=True)
        else:
            click.echo(f"localspec: {text}", err=True)

    def clear(self) -> None:
        if self._shown and self._redraws:
            click.echo("\r" + " " * 79 + "\r", nl=False, err=True)
            self._shown = False


def _format_time_left(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"


_BAR_WIDTH = 14
_ASCII_MAP = str.maketrans("×–·", "x-,")
_BAR_BLOCKS = " ▏▎▍▌▋▊▉"


def format_bench_table(report: BenchReport) -> Iterator[str]:
    """The report as a table of at most 80 columns."""
    yield from _format_header(report)
    highest = max((row.speedup.max for row in report.rows if row.speedup), default=1.0)
    temperature: float | None = None
    for row in report.rows:
        if row.temperature != temperature:
            temperature = row.temperature
            yield ""
            yield _format_titles(temperature)
        yield _format_workload(row, max(highest, 1.5))
    yield ""
    yield from format_summary(report)


def _format_header(report: BenchReport) -> Iterator[str]:
    draft = f" with {report.draft}" if report.draft else ", no draft model"
    yield sanitize(f"{report.pair}: {report.model}{draft}", multiline=False)
    for line in format_machine(report):
        yield sanitize(line, multiline=False)
    if report.why:
        yield sanitize(f"ON, {report.why}", multiline=False)
    if report.t1_ms is not None:
        curve = report.verify_curve
        width = "8" if "8" in curve else max(curve, default="", key=int)
        parts = [f"one pass {milliseconds(report.t1_ms)}"]
        if width and width != "1":
            parts.append(f"verifying {width} tokens costs {curve[width]:.1f} passes")
        if report.c is not None:
            parts.append(f"a draft token {report.c:.2f}")
        yield " · ".join(parts)


def _format_titles(temperature: float) -> str:
    name = format_temperature(temperature)
    return f"{name:<15} plain  spec tok/s{'':18}{'low–high':<8} accept tok/pass same"


def _format_workload(row: WorkloadResult, scale: float) -> str:
    speed = low_high = ""
    if row.speedup is not None:
        speed = f"{row.speedup.median:5.2f}× {_speedup_bar(row.speedup.median, scale)}"
        low_high = f"{row.speedup.min:.2f}–{row.speedup.max:.2f}"
    return (
        f"{row.name:<10} {' ' if row.counted else '*'}    "
        f"{format_rate(row.plain_tps):>5} {format_rate(row.spec_tps):>5}  "
        f"{speed:<{_BAR_WIDTH + 7}} {low_high:<9} "
        f"{percent(row.acceptance_rate):>5} {format_tokens_per_pass(row):>8} "
        f"{format_identical(row):>4}"
    )


def to_ascii(line: str) -> str:
    """The line in ASCII if stdout cannot encode Unicode."""
    return (
        line.translate(_ASCII_MAP)
        if speculation_text.token_glyphs() is not speculation_text.TOKEN_GLYPHS
        else line
    )


def _speedup_bar(value: float, scale: float) -> str:
    """A bar with a tick at 1.0, the speed of plain decoding."""
    plain, filled = round(_BAR_WIDTH / scale), value / scale * _BAR_WIDTH
    if speculation_text.token_glyphs() is not speculation_text.TOKEN_GLYPHS:
        bar, tick = "#" * round(filled), "|"
    else:
        eighths = round(filled * 8)
        bar, tick = "█" * (eighths // 8) + _BAR_BLOCKS[eighths % 8].strip(), "┊"
    bar = f"{bar:<{_BAR_WIDTH}}"[:_BAR_WIDTH]
    return bar[:plain] + tick + bar[plain + 1 :] if bar[plain : plain + 1] == " " else bar
