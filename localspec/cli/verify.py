"""`localspec verify`: check that speculation does not change the output."""

from __future__ import annotations

from typing import Any

import click

from localspec.bench.lossless_check import LosslessMeasurement, VerifyEffort
from localspec.cli import global_options, measuring, options


@click.command("verify")
@click.option(
    "--seconds",
    type=global_options.FiniteRange(0),
    default=20.0,
    show_default=True,
    metavar="N",
    help="Time for each of the five parts; a slow computer takes longer.",
)
@click.option(
    "--tokens",
    type=click.IntRange(2),
    default=64,
    show_default=True,
    metavar="N",
    help="Tokens of an answer.",
)
@options.EXACT
@options.OVERLAP
@options.MEASURING
def command(pair: str | None, **given: Any) -> int:
    """Check that speculation does not change the output of PAIR.

    PAIR is a pair of the catalogue or any model that `run` accepts. The passes of its answers,
    greedy and with a seed, are repeated without drafting. Sampled tokens are tested against the
    model's own probabilities. Exit code 1 if a token is wrong.

    \b
    localspec verify demo
    localspec verify big.gguf --draft small.gguf --json
    """
    resolved = options.resolve_or_pull(pair, given["draft"])
    effort = VerifyEffort(given["seconds"], given["tokens"])
    measurement = LosslessMeasurement(effort)
    progress = measuring.measure_pair(resolved, measurement, given)
    if not measuring.print_measurement(measurement, progress, given):
        return 130
    return 1 if measurement.report.verdict == "divergent" else 0
