"""`localspec bench` and `verify`: run a measurement and print its report."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from functools import partial
from typing import Any

import click

from localspec import launch
from localspec.bench import workloads
from localspec.bench.benchmark import Benchmark
from localspec.bench.lossless_check import LosslessMeasurement, VerifyEffort
from localspec.bench.measurement import Measurement, MeasurementProgress
from localspec.bench.workloads import BenchRequest
from localspec.cli import options, report_printer, terminal
from localspec.cli.global_options import FiniteRange, number_option, text_option
from localspec.cli.options import CommandArguments
from localspec.errors import LocalspecError
from localspec.launch import ResolvedPair
from localspec.launch.pair import draft_kind
from localspec.models import model_lookup
from localspec.report import bench as bench_report
from localspec.report.lines import Line, make_line
from localspec.report.measurement import format_measurement

_PROGRESS_INTERVAL = 30.0  # Seconds between progress lines if stderr is not a terminal.

Progress = Generator[MeasurementProgress, None, None]


class MeasuringArguments(CommandArguments, frozen=True, kw_only=True):
    """The arguments of a command that measures one pair, but PAIR."""

    draft: str
    anyway: bool
    as_json: bool
    quiet: bool


class BenchArguments(MeasuringArguments, frozen=True, kw_only=True):
    workload: tuple[str, ...]
    rounds: int | None
    max_tokens: int
    temperature: float
    markdown: bool
    row: bool


class VerifyArguments(MeasuringArguments, frozen=True, kw_only=True):
    seconds: float
    tokens: int


@click.command("bench")
@text_option("--workload", "NAME", "Run only this workload; repeatable.", multiple=True)
@number_option(
    "--rounds", "Repetitions of each prompt.  [default: 1 to 3, by speed]", 1, 1000
)
@number_option("--max-tokens", "Max tokens of an answer.", 2, default=64)
@number_option(
    "--temperature",
    "Second temperature to measure, after 0.",
    default=0.8,
    type=FiniteRange(0),
)
@options.EXACT
@options.EXTRA_SPECULATION
@options.MEASURING
@click.option("--markdown", is_flag=True, help="Print a Markdown report to share.")
@click.option(
    "--row", is_flag=True, help="Print one line of localspec/data/published.jsonl."
)
def bench_command(pair: str | None, **given: Any) -> int:
    """Measure the speed of PAIR, plain and speculative.

    PAIR is a pair of the catalogue or any model that `run` accepts. Every prompt is
    answered alternately without and with speculation, at temperature 0 and at
    --temperature.

    \b
    localspec bench demo
    localspec bench big.gguf --draft small.gguf --workload code --markdown
    """
    arguments = options.read_arguments(BenchArguments, given)
    chosen = workloads.load(arguments.workload)
    pair, resolved = _resolve_pair(pair, arguments)
    temperatures = dict.fromkeys((0.0, arguments.temperature))
    request = BenchRequest(
        pair,
        workloads=tuple(chosen),
        temperatures=tuple(temperatures),
        max_tokens=arguments.max_tokens,
        spec=resolved.spec,
        why=resolved.spec_reason,
        rounds=arguments.rounds,
    )
    measurement = Benchmark(request)

    def format_report() -> Iterable[Line]:
        report = measurement.report
        if arguments.row:
            draft = draft_kind(resolved) or "ngram"
            row = bench_report.format_published_row(report, resolved.target, draft)
            return [make_line(row)]
        if arguments.markdown:
            return map(make_line, bench_report.format_markdown(report))
        return format_measurement(measurement)

    is_done = print_measurement(
        measurement,
        _measure_pair(resolved, measurement, arguments),
        format_report,
        quiet=arguments.quiet,
        as_json=arguments.as_json,
    )
    return 0 if is_done else 130


@click.command("verify")
@number_option(
    "--seconds",
    "Time for each of the five parts; a slow computer takes longer.",
    default=20.0,
    type=FiniteRange(0),
)
@number_option("--tokens", "Tokens of an answer.", 2, default=64)
@options.EXACT
@options.EXTRA_SPECULATION
@options.MEASURING
def verify_command(pair: str | None, **given: Any) -> int:
    """Check that speculation does not change the output of PAIR.

    PAIR is a pair of the catalogue or any model that `run` accepts. The passes of its
    answers, greedy and with a seed, are repeated without drafting. Sampled tokens are
    tested against the model's own probabilities. Exit code 1 if a token is wrong.

    \b
    localspec verify demo
    localspec verify big.gguf --draft small.gguf --json
    """
    arguments = options.read_arguments(VerifyArguments, given)
    _, resolved = _resolve_pair(pair, arguments)
    effort = VerifyEffort(arguments.seconds, arguments.tokens)
    measurement = LosslessMeasurement(effort)
    is_done = print_measurement(
        measurement,
        _measure_pair(resolved, measurement, arguments),
        partial(format_measurement, measurement),
        quiet=arguments.quiet,
        as_json=arguments.as_json,
    )
    if not is_done:
        return 130
    return 1 if measurement.report.verdict == "divergent" else 0


def _resolve_pair(
    pair: str | None, arguments: MeasuringArguments
) -> tuple[str, ResolvedPair]:
    """The pair, with its name; the default pair if none is named."""
    name = pair or model_lookup.default_pair_id()
    if pair is None and not arguments.quiet:
        terminal.notify(f"Measuring {name}, the default pair.")
    return name, options.resolve_or_pull(name, arguments.draft)


def _measure_pair(
    pair: ResolvedPair,
    measurement: Benchmark | LosslessMeasurement,
    arguments: MeasuringArguments,
) -> Progress:
    yield MeasurementProgress("loading")
    values = dict(arguments.options)
    if isinstance(measurement, Benchmark) and values["image_model"] is None:
        values["image_model"] = launch.NO_PROJECTOR  # No workload has a picture.
    load_request = options.build_load_request(
        pair,
        values,
        spec="model",  # The draft is loaded in any case: what it gains is measured.
        anyway=arguments.anyway,
    )
    engine = launch.start_engine(
        load_request, notify=options.make_notice_printer(arguments.quiet)
    )
    try:
        yield from measurement.run(engine)
    finally:
        engine.close()


def print_measurement(
    measurement: Measurement,
    progress: Progress,
    format_report: Callable[[], Iterable[Line]],
    *,
    quiet: bool,
    as_json: bool,
) -> bool:
    """Run a measurement and print its report; return False if Ctrl+C has ended it.

    An error that ends it is raised after the results so far are printed; with --json it
    is the document instead.
    """
    line = terminal.ProgressLine(quiet=quiet, interval=_PROGRESS_INTERVAL)
    is_interrupted = False
    error = None
    try:
        with closing(progress):
            for step in progress:
                line.show(step.text, is_step=step.is_step)
    except KeyboardInterrupt:
        if not measurement.has_begun:
            raise
        is_interrupted = True
    except LocalspecError as failure:
        error = failure
    finally:
        line.clear()
    if as_json:
        if error is None:
            terminal.echo_json(measurement.to_json())
    elif error is None or measurement.has_results:
        for report_line in format_report():
            report_printer.echo_line(report_line)
    if error is not None:
        raise error
    return not is_interrupted
