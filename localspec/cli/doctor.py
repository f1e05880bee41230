"""`localspec doctor`: find problems and fix them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from localspec.cli import global_options, pull
from localspec.doctor import Finding, checks, findings, llama_build
from localspec.doctor.command_runner import CommandRunner
from localspec.doctor.findings import RepairAction
from localspec.errors import LocalspecError, UsageError


@click.command("doctor")
@click.option(
    "--dismiss",
    type=click.Choice([llama_build.CPU_ONLY]),
    metavar="FINDING",
    help="Do not show FINDING at start again.",
)
@click.option("--fix", is_flag=True, help="Fix what can be fixed; asks before each fix.")
@click.option("-y", "--yes", is_flag=True, help="With --fix: do not ask.")
@global_options.JSON
def command(dismiss: str | None, fix: bool, yes: bool, as_json: bool) -> int:
    """Check the engine, devices, disk, chats, settings, terminal and models.

    Changes nothing without --fix. The output contains no personal names and can be pasted into
    an issue. Exit code 1 if a problem keeps localspec from working.
    """
    if dismiss is not None:
        llama_build.dismiss(dismiss)
    if fix and not yes and (as_json or not pull.can_prompt_user()):
        raise UsageError("Cannot ask: not a terminal.", "To fix without asking: --fix -y")
    results = checks.run_checks()
    if not as_json:
        click.echo(findings.format_report(results))
    if fix and _repair(results, yes):
        results = checks.run_checks()
        if not as_json:
            click.echo(f"Now: {findings.format_verdict(results)}")
    if as_json:
        rows = [_finding_to_json(finding) for finding in results]
        click.echo(json.dumps({"schema": 1, "findings": rows}))
    return int(any(finding.level == "error" for finding in results))


def _finding_to_json(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "area": finding.area,
        "level": finding.level,
        "what": finding.what,
        "fix": finding.fix,
        "means": finding.explanation,
        "action": finding.action.name if finding.action else None,
    }


def _repair(results: Sequence[Finding], yes: bool) -> int:
    """Run the repairs that the user confirms; returns their number."""
    repairable = [(finding, finding.action) for finding in results if finding.action is not None]
    if not repairable:
        click.echo("There is nothing to fix automatically.", err=True)
    n_run = 0
    for finding, action in repairable:
        click.echo(f"\n{finding.what}", err=True)
        click.echo(action.question, err=True)
        if yes or click.confirm(f"{action.name}?", default=False, err=True):
            _run_action(action)
            n_run += 1
    return n_run


def _run_action(action: RepairAction) -> None:
    """Run a repair; a failure is printed, not raised."""

    def print_line(line: str) -> None:
        click.echo(f"  {line}", err=True)

    if action.commands:
        runner = CommandRunner(action.commands, print_line)
        try:
            code = runner.run()
        except KeyboardInterrupt:
            runner.stop()
            raise
        print_line(f"Failed with exit code {code}." if code else "Done.")
    if action.run is not None:
        try:
            print_line(action.run())
        except LocalspecError as error:
            print_line(f"{error.message} {error.hint}")
        except OSError as error:
            print_line(f"Failed: {error.strerror or error}")
