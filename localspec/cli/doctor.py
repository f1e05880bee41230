"""`localspec doctor`: what is wrong here, and how to mend it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from localspec.cli import pull
from localspec.doctor import Finding, checks, findings, llama_build
from localspec.doctor.command_runner import CommandRunner
from localspec.doctor.findings import RepairAction
from localspec.errors import LocalspecError, UsageError


@click.command("doctor")
@click.option("--dismiss", metavar="FINDING", help="Do not say it at every start any more.")
@click.option("--fix", is_flag=True, help="Mend what can be mended from here, each when you agree.")
@click.option("-y", "--yes", is_flag=True, help="With --fix: do not ask.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(dismiss: str | None, fix: bool, yes: bool, as_json: bool) -> int:
    """Look at the engine, devices, disk, chats, settings, terminal and models.

    Without --fix nothing is changed and nobody is asked; the output shows no names and may be
    pasted into an issue. Exit code 1 where something keeps localspec from working.
    """
    if dismiss is not None:
        llama_build.dismiss(dismiss)
    if fix and not yes and (as_json or not pull.can_prompt_user()):
        raise UsageError("Nobody can be asked here.", "Say it beforehand: --fix -y")
    found = checks.run_checks()
    if not as_json:
        click.echo(findings.format_report(found))
    if fix and _repair(found, yes):
        found = checks.run_checks()
        if not as_json:
            click.echo(f"Now: {findings.format_verdict(found)}")
    if as_json:
        click.echo(json.dumps({"schema": 1, "findings": [_finding_to_json(one) for one in found]}))
    return int(any(one.level == "error" for one in found))


def _finding_to_json(finding: Finding) -> dict[str, Any]:
    told = {
        "id": finding.id,
        "area": finding.area,
        "level": finding.level,
        "what": finding.what,
        "fix": finding.fix,
    }
    return told | {
        "means": finding.explanation,
        "action": finding.action.name if finding.action else None,
    }


def _repair(found: Sequence[Finding], yes: bool) -> int:
    """How many of them were gone about."""
    able = [(one, one.action) for one in found if one.action is not None]
    if not able:
        click.echo("There is nothing that could be mended from here.", err=True)
    done = 0
    for one, action in able:
        click.echo(f"\n{one.what}", err=True)
        click.echo(action.question, err=True)
        if yes or click.confirm(f"{action.name}?", default=False, err=True):
            _run_action(action)
            done += 1
    return done


def _run_action(action: RepairAction) -> None:
    """What fails is told, and the next is gone about."""

    def say(line: str) -> None:
        click.echo(f"  {line}", err=True)

    if action.commands:
        errand = CommandRunner(action.commands, say)
        try:
            code = errand.run()
        except KeyboardInterrupt:
            errand.stop()
            raise
        say(f"It failed with exit code {code}." if code else "Done.")
    if action.run is not None:
        try:
            say(action.run())
        except LocalspecError as error:
            say(f"{error.message} {error.hint}")
        except OSError as error:
            say(f"That failed: {error.strerror or error}")
