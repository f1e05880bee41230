"""`localspec verify`: check that speculation does not change the output."""

from __future__ import annotations

import json
from typing import Any

import click

from localspec import launch
from localspec.bench import verify_report
from localspec.bench.lossless_check import VerifyEffort, check_lossless
from localspec.bench.verify_report import VerifyProgress, VerifyReport
from localspec.cli import completion, global_options, options
from localspec.sanitize import sanitize


@click.command("verify")
@click.argument("pair", required=False, shell_complete=completion.complete_model_or_pair)
@click.option("--draft", default="auto", metavar="REF|auto|none", help="Draft model.")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
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
@options.MACHINE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@click.option("-v", "--verbose", is_flag=True, help="After an error, print the last log lines.")
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
    engine = launch.start_engine(options.build_load_request(choice, given | {"spec": "auto"}))
    report, progress = VerifyReport(), _VerifyProgressLine(given["quiet"])
    effort = VerifyEffort(given["seconds"], given["tokens"])
    try:
        for finding in check_lossless(
            engine, has_draft_model=engine.ready.draft is not None, effort=effort
        ):
            report.add(finding)
            if isinstance(finding, VerifyProgress):
                progress.show(finding)
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


class _VerifyProgressLine:
    """Progress on stderr: a redrawn line on a terminal, else one line per part."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._redraws = global_options.can_redraw()
        self._part = ""

    def show(self, progress: VerifyProgress) -> None:
        if self._quiet:
            return
        if self._redraws:
            click.echo(f"\r\x1b[Klocalspec: {progress.message} …", err=True, nl=False)
        elif progress.part != self._part:
            click.echo(f"localspec: {progress.message} …", err=True)
        self._part = progress.part

    def clear(self) -> None:
        if self._redraws and self._part:
            click.echo("\r\x1b[K", err=True, nl=False)
