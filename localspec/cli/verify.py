"""`localspec verify`: check here that speculating changes nothing."""

from __future__ import annotations

import json
from typing import Any

import click

from localspec import launch
from localspec.bench import findings
from localspec.bench.losslessness import Effort, check
from localspec.bench.verdict import Doing, Report
from localspec.clean import clean
from localspec.cli import choosing, completing, options, places


@click.command("verify")
@click.argument("pair", required=False, shell_complete=completing.models)
@click.option("--draft", default="auto", metavar="REF|auto|none", help="The draft model.")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=20.0,
    show_default=True,
    help="For each of the five parts; a slow machine takes longer.",
)
@click.option("--tokens", type=click.IntRange(2), default=64, show_default=True, help="An answer.")
@options.MACHINE
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="With an error, the engine's last words.")
def command(pair: str | None, **given: Any) -> int:
    """Check that speculating changes nothing for PAIR, or any model as `run` takes it.

    Answers are compared with plain decoding's, greedy and with the same seed; sampled tokens are
    tested against the model's own probabilities.  Ends with 1 where they differ for no good reason.

    \b
    localspec verify demo
    localspec verify big.gguf --draft small.gguf --json
    """
    choice = choosing.choose(pair, given["draft"])
    engine = launch.start(options.wish(choice, given | {"spec": "auto"}))
    report, progress = Report(), _Progress(given["quiet"])
    effort = Effort(given["seconds"], given["tokens"])
    try:
        for finding in check(engine, draft=engine.ready.draft is not None, effort=effort):
            report.take(finding)
            if isinstance(finding, Doing):
                progress.say(finding)
        report.whole = True
    except KeyboardInterrupt:
        pass  # what there is by now is shown below
    finally:
        progress.clear()
        engine.close()
    if given["as_json"]:
        click.echo(json.dumps(findings.document(report, engine.ready)))
    else:
        for line in findings.lines(report, engine.ready):
            click.echo(clean(line))
    if not report.whole:
        return 130
    return 1 if report.verdict == "divergent" else 0


class _Progress:
    """One line of standard error that changes; where that is no terminal, one for each part."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = places.redraws()
        self._part = ""

    def say(self, doing: Doing) -> None:
        if self._quiet:
            return
        if self._live:
            click.echo(f"\r\x1b[Klocalspec: {doing.what} …", err=True, nl=False)
        elif doing.part != self._part:
            click.echo(f"localspec: {doing.what} …", err=True)
        self._part = doing.part

    def clear(self) -> None:
        if self._live and self._part:
            click.echo("\r\x1b[K", err=True, nl=False)
