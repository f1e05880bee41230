"""`localspec bench` and `localspec verify`; runs a measurement and prints its report."""

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
from localspec.errors import LocalspecError
from localspec.launch import ResolvedPair
from localspec.launch.pair import draft_kind
from localspec.models import model_lookup
from localspec.report import bench as bench_report
from localspec.report.lines import Line, make_line
from localspec.report.measurement import format_measurement

_PROGRESS_INTERVAL = 30.0  # Seconds between progress lines if stderr is not a terminal.

Progress = Generator[MeasurementProgress, None, None]


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
    chosen = workloads.load(given["workload"])
    pair, resolved = _resolve_pair(pair, given)
    temperatures = dict.fromkeys((0.0, given["temperature"]))
    request = BenchRequest(
        pair,
        tuple(chosen),
        tuple(temperatures),
        given["max_tokens"],
        resolved.spec,
        resolved.spec_reason,
        given["rounds"],
    )
    measurement = Benchmark(request)

    def format_report() -> Iterable[Line]:
        report = measurement.report
        if given["row"]:
            draft = draft_kind(resolved) or "ngram"
            row = bench_report.format_published_row(report, resolved.target, draft)
            return [make_line(row)]
        if given["markdown"]:
            return map(make_line, bench_report.format_markdown(report))
        return format_measurement(measurement)

    progress = _measure_pair(resolved, measurement, given)
    is_done = print_measurement(measurement, progress, format_report, given)
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
    _, resolved = _resolve_pair(pair, given)
    measurement = LosslessMeasurement(VerifyEffort(given["seconds"], given["tokens"]))
    progress = _measure_pair(resolved, measurement, given)
    format_report = partial(format_measurement, measurement)
    if not print_measurement(measurement, progress, format_report, given):
        return 130
    return 1 if measurement.report.verdict == "divergent" else 0


def _resolve_pair(pair: str | None, given: dict[str, Any]) -> tuple[str, ResolvedPair]:
    """The pair, with its name; the default pair if none is named."""
    name = pair or model_lookup.default_pair_id()
    if pair is None and not given["quiet"]:
        terminal.notify(f"Measuring {name}, the default pair.")
    return name, options.resolve_or_pull(name, given["draft"])


def _measure_pair(
    pair: ResolvedPair,
    measurement: Benchmark | LosslessMeasurement,
    given: dict[str, Any],
) -> Progress:
    yield MeasurementProgress("loading")
    # With the draft in any case: whether it pays is what is measured.
    load_request = options.build_load_request(pair, given | {"spec": "model"})
    engine = launch.start_engine(
        load_request, notify=options.make_notice_printer(given["quiet"])
    )
    try:
        yield from measurement.run(engine)
    finally:
        engine.close()


def print_measurement(
    measurement: Measurement,
    progress: Progress,
    format_report: Callable[[], Iterable[Line]],
    given: dict[str, Any],
) -> bool:
    """Run a measurement and print its report; return False if Ctrl+C has ended it.

    An error that ends it is raised after the results so far are printed; with --json it
    is the document instead.
    """
    line = terminal.ProgressLine(quiet=given["quiet"], interval=_PROGRESS_INTERVAL)
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
    if error is None and given["as_json"]:
        terminal.echo_json(measurement.to_json())
    elif error is None or (measurement.has_results and not given["as_json"]):
        for report_line in format_report():
            report_printer.echo_line(report_line)
    if error is not None:
        raise error
    return not is_interrupted
