"""`localspec doctor`: find problems and fix them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from msgspec import to_builtins

from localspec.cli import global_options, terminal
from localspec.cli.terminal import ProgressLine, echo
from localspec.doctor import checks, findings, llama_build
from localspec.doctor.findings import Finding, RepairAction
from localspec.doctor.repairs import RepairRunner
from localspec.errors import UsageError
from localspec.machine import type_speeds
from localspec.machine.type_speeds import TypeSpeed


@click.command("doctor")
@click.option(
    "--dismiss",
    type=click.Choice([llama_build.CPU_ONLY]),
    metavar="FINDING",
    help="Do not show FINDING at start again.",
)
@global_options.flag("--cpu", about="Time each weight type on this CPU, about 10 s.")
@global_options.flag("--fix", about="Fix what can be fixed; asks before each fix.")
@global_options.flag("-y", "--yes", about="With --fix: do not ask.")
@global_options.JSON
def command(dismiss: str | None, cpu: bool, fix: bool, yes: bool, as_json: bool) -> int:
    """Check the engine, devices, disk, chats, settings, terminal and models.

    Changes nothing without --fix, which removes incomplete downloads, repairs damaged
    chats and reinstalls llama.cpp. The output contains no personal names and can be
    pasted into an issue. Exit code 1 if a problem keeps localspec from working.
    """
    if cpu:
        return _time_types(as_json)
    if dismiss is not None:
        llama_build.dismiss()
    if fix and not yes and (as_json or not terminal.can_prompt_user()):
        raise UsageError(
            "Cannot ask: not a terminal.", "To fix without asking: --fix -y"
        )
    results = checks.run_checks()
    if not as_json:
        terminal.echo_text(findings.format_report(results))
    actions = [(each.what, each.action) for each in results if each.action is not None]
    if fix and not actions:
        echo("There is nothing to fix automatically.", err=True)
    if _fix(
        [action for what, action in actions if fix and _confirm(what, action, yes)]
    ):
        results = checks.run_checks()
        if not as_json:
            echo(f"Now: {findings.format_counts(results) or 'No problems found'}.")
    if as_json:
        terminal.echo_json({"findings": [_to_json(finding) for finding in results]})
    return int(any(finding.level == "error" for finding in results))


def _fix(confirmed: Sequence[RepairAction]) -> bool:
    """Whether there was anything to fix."""
    for action in confirmed:
        runner = RepairRunner(action, lambda line: echo(f"  {line}", err=True))
        try:
            echo(f"  {runner.run()[1]}", err=True)
        except KeyboardInterrupt:
            runner.stop()
            raise
    return bool(confirmed)


def _time_types(as_json: bool) -> int:
    progress, speeds = ProgressLine(quiet=as_json, interval=5.0), []
    for speed in type_speeds.time_types():
        speeds.append(speed)
        progress.show(f"{speed.name} timed")
    progress.clear()
    if as_json:
        terminal.echo_json({"types": [to_builtins(speed) for speed in speeds]})
    for line in () if as_json else _format_types(speeds):
        echo(line)
    return 0


def _format_types(speeds: Sequence[TypeSpeed]) -> Iterator[str]:
    """A table: speeds for 1 B weights, and what a pass that checks a draft costs."""
    billion = type_speeds.TIMED_WEIGHTS / 1e9
    rows: list[tuple[str, ...]] = [("type", "write", "read", "v(2)", "v(4)", "v(8)")]
    for speed in speeds:
        curve = speed.verify_curve
        per_second = (1e3 * billion / ms for ms in (speed.write_ms, speed.read_ms))
        costs = (f"{curve[n]:.2f}" for n in (2, 4, 8))
        rows.append((speed.name, *(f"{value:.0f}" for value in per_second), *costs))
    yield from terminal.format_columns(rows)
    yield (
        "write, read: tokens per second of a model with 1 B weights; "
        "v(n): cost of a pass of n tokens, in passes of one."
    )


def _confirm(what: str, action: RepairAction, yes: bool) -> bool:
    for line in ("", what, action.question):
        echo(line, err=True)
    return yes or click.confirm(f"{action.name}?", default=False, err=True)


def _to_json(finding: Finding) -> dict[str, str | None]:
    return {
        "id": finding.id,
        "area": finding.area,
        "level": finding.level,
        "what": finding.what,
        "fix": finding.fix,
        "means": finding.explanation,
        "action": finding.action.name if finding.action else None,
    }
