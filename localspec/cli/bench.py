"""`localspec bench`: measure a pair on this computer, plain and speculative."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from localspec import launch
from localspec.bench import report_text, workloads
from localspec.bench.benchmark import (
    BenchEstimate,
    BenchEvent,
    BenchFinished,
    CostProbeProgress,
    RunFinished,
    run_benchmark,
)
from localspec.bench.paired_runs import BenchRequest
from localspec.bench.report_text import (
    format_identical,
    format_machine,
    format_rate,
    format_summary,
    format_temperature,
    format_tokens_per_pass,
)
from localspec.bench.results import BenchReport, WorkloadResult, report_to_json
from localspec.cli import global_options, options, speculation_text
from localspec.cli.interrupts import stop_on_interrupt
from localspec.cli.progress_line import ProgressLine
from localspec.sanitize import sanitize
from localspec.units import milliseconds, percent

_PROGRESS_INTERVAL = 30.0
"""Seconds between progress lines if stderr is not a terminal."""


@click.command("bench")
@click.option(
    "--workload",
    multiple=True,
    metavar="NAME",
    callback=global_options.reject_empty,
    help="Run only this workload; repeatable.",
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
    type=global_options.FiniteRange(0),
    default=0.8,
    show_default=True,
    metavar="X",
    help="Second temperature to measure, after 0.",
)
@options.EXACT
@options.OVERLAP
@options.MEASURING
@click.option("--markdown", is_flag=True, help="Print a Markdown report to share.")
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
    request = BenchRequest(
        pair or "demo",
        tuple(chosen),
        tuple(dict.fromkeys((0.0, given["temperature"]))),
        given["max_tokens"],
        choice.spec,
        choice.spec_reason,
        given["rounds"],
    )
    progress = ProgressLine(quiet=given["quiet"], interval=_PROGRESS_INTERVAL)
    progress.show("loading")
    load_request = options.build_load_request(choice, given | {"spec": "auto"})
    engine = launch.start_engine(load_request, notify=options.make_notice_printer(given["quiet"]))
    try:
        with stop_on_interrupt(engine.stop) as is_stopped:
            for event in run_benchmark(engine, request, is_stopped):
                _show_progress(progress, event)
            assert isinstance(event, BenchFinished), "the last event"
            progress.clear()
            _print_report(event, given)
            return 130 if is_stopped() else 0
    finally:
        progress.clear()
        engine.close()


def _print_report(finished: BenchFinished, given: dict[str, Any]) -> None:
    """Raises the error of an incomplete benchmark; with --json the error is the document."""
    report, error = finished.report, finished.error
    if given["as_json"]:
        lines = [] if error else [json.dumps(report_to_json(report))]
    elif error is not None and not report.rows:
        lines = []
    elif given["markdown"]:
        lines = [to_ascii(line) for line in report_text.format_markdown(report)]
    else:
        lines = [to_ascii(line) for line in format_bench_table(report)]
    for line in lines:
        click.echo(line)
    if error is not None:
        raise error


def _show_progress(line: ProgressLine, event: BenchEvent) -> None:
    if isinstance(event, CostProbeProgress):
        line.show(event.why or "measuring passes")
    elif isinstance(event, BenchEstimate):
        line.show(f"{event.answers} answers, {_format_time_left(event.seconds)}", is_step=True)
    elif isinstance(event, RunFinished):
        left = _format_time_left(event.seconds_left)
        line.show(f"{event.done} of {event.total} answers, {left}   {event.run.task.workload}")


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
