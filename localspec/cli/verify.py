"""`localspec verify`: check that speculation does not change the output."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from localspec import launch
from localspec.bench import verify_report
from localspec.bench.lossless_check import VerifyEffort, check_lossless
from localspec.bench.verify_report import VerifyProgress, VerifyReport
from localspec.cli import global_options, options
from localspec.cli.progress_line import ProgressLine
from localspec.sanitize import sanitize


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

    PAIR is a pair of the catalogue or any model that `run` accepts. Its answers are compared with
    those of plain decoding, greedy and with the same seed. Sampled tokens are tested against the
    model's own probabilities. Exit code 1 if a difference is more than rounding.

    \b
    localspec verify demo
    localspec verify big.gguf --draft small.gguf --json
    """
    choice = options.resolve_or_pull(pair, given["draft"])
    load_request = options.build_load_request(choice, given | {"spec": "auto"})
    engine = launch.start_engine(load_request, notify=options.make_notice_printer(given["quiet"]))
    report, progress = VerifyReport(), ProgressLine(quiet=given["quiet"], interval=math.inf)
    part = ""
    effort = VerifyEffort(given["seconds"], given["tokens"])
    try:
        for finding in check_lossless(
            engine, has_draft_model=engine.ready.draft is not None, effort=effort
        ):
            report.add(finding)
            if isinstance(finding, VerifyProgress):
                progress.show(f"{finding.message} …", is_step=finding.part != part)
                part = finding.part
        report.is_complete = True
    except KeyboardInterrupt:
        pass  # the results so far are printed below
    finally:
        progress.clear()
        engine.close()
    if given["as_json"]:
        click.echo(json.dumps(verify_report.report_to_json(report, engine.ready)))
    else:
        for line in verify_report.format_report(report, engine.ready):
            click.echo(sanitize(line))
    if not report.is_complete:
        return 130
    return 1 if report.verdict == "divergent" else 0
