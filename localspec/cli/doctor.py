"""`localspec doctor`: find problems and fix them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from msgspec import to_builtins

from localspec.cli import global_options, report_printer, terminal
from localspec.cli.terminal import ProgressLine, echo
from localspec.doctor import checks, llama_build
from localspec.doctor.findings import Finding, RepairAction
from localspec.doctor.repairs import RepairRunner
from localspec.errors import UsageError
from localspec.machine import type_speeds
from localspec.machine.type_speeds import TypeSpeed
from localspec.report import doctor as doctor_report
from localspec.report.lines import format_columns


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
        plain = global_options.is_plain()
        for line in doctor_report.format_findings(results, plain=plain):
            report_printer.echo_line(line)
    if fix and _fix(results, yes=yes):
        results = checks.run_checks()
        if not as_json:
            echo(f"Now: {doctor_report.summarize_problems(results)}.")
    if as_json:
        document = [doctor_report.finding_to_json(finding) for finding in results]
        terminal.echo_json({"findings": document})
    has_error = any(finding.level == "error" for finding in results)
    return 1 if has_error else 0


def _fix(results: Sequence[Finding], *, yes: bool) -> bool:
    """Run the repairs that the user confirms; return whether there was one.

    All questions come before the first repair, which may take minutes.
    """
    confirmed: list[RepairAction] = []
    has_action = False
    for finding in results:
        if finding.action is not None:
            has_action = True
            if _confirm(finding.what, finding.action, yes=yes):
                confirmed.append(finding.action)
    if not has_action:
        echo("There is nothing to fix automatically.", err=True)
    for action in confirmed:
        _run_repair(action)
    return bool(confirmed)


def _run_repair(action: RepairAction) -> None:
    runner = RepairRunner(action, lambda line: echo(f"  {line}", err=True))
    try:
        _, result = runner.run()
    except KeyboardInterrupt:
        runner.stop()
        raise
    echo(f"  {result}", err=True)


def _time_types(as_json: bool) -> int:
    progress = ProgressLine(quiet=as_json, interval=5.0)
    speeds: list[TypeSpeed] = []
    for speed in type_speeds.time_types():
        speeds.append(speed)
        progress.show(f"{speed.name} timed")
    progress.clear()
    if as_json:
        terminal.echo_json({"types": [to_builtins(speed) for speed in speeds]})
        return 0
    for line in _format_types(speeds):
        echo(line)
    return 0


_NOT_MEASURED = ("-",) * 5
"""The columns of a type whose times are disturbed."""


def _format_types(speeds: Sequence[TypeSpeed]) -> Iterator[str]:
    """A table: speeds for 1 B weights, and what a pass that checks a draft costs."""
    billion = type_speeds.TIMED_WEIGHTS / 1e9
    rows: list[tuple[str, ...]] = [("type", "write", "read", "v(2)", "v(4)", "v(8)")]
    for speed in speeds:
        if speed.is_disturbed:
            rows.append((speed.name, *_NOT_MEASURED))
            continue
        curve = speed.verify_curve
        write = f"{1e3 * billion / speed.write_ms:.0f}"
        read = f"{1e3 * billion / speed.read_ms:.0f}"
        costs = [f"{curve[n]:.2f}" for n in (2, 4, 8)]
        rows.append((speed.name, write, read, *costs))
    yield from format_columns(rows)
    yield (
        "write, read: tokens per second of a model with 1 B weights; "
        "v(n): cost of a pass of n tokens, in passes of one."
    )
    if any(speed.is_disturbed for speed in speeds):
        yield (
            "-: other programs used the CPUs meanwhile. Nothing was saved of these "
            "types; close the programs and measure again."
        )


def _confirm(what: str, action: RepairAction, *, yes: bool) -> bool:
    for line in ("", what, action.question):
        echo(line, err=True)
    return yes or click.confirm(f"{action.name}?", default=False, err=True)
