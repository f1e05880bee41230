"""`localspec bench`: measure a pair on this computer, plain and speculative."""

from __future__ import annotations

from typing import Any

import click

from localspec.bench import workloads
from localspec.bench.benchmark import Benchmark
from localspec.bench.workloads import BenchRequest
from localspec.cli import global_options, measuring, options


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
    resolved = options.resolve_or_pull(pair, given["draft"])
    request = BenchRequest(
        pair or "demo",
        tuple(chosen),
        tuple(dict.fromkeys((0.0, given["temperature"]))),
        given["max_tokens"],
        resolved.spec,
        resolved.spec_reason,
        given["rounds"],
    )
    measurement = Benchmark(request, as_markdown=given["markdown"])
    progress = measuring.measure_pair(resolved, measurement, given)
    return 0 if measuring.print_measurement(measurement, progress, given) else 130
