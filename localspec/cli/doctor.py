"""`localspec doctor`: what is wrong here, and how to mend it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

import click

from localspec.doctor import Finding, build, examination

_SIGNS = {"ok": "  ", "notice": "- ", "warning": "! ", "error": "x "}
_WORST_FIRST = ("error", "warning", "notice")


@click.command("doctor")
@click.option("--dismiss", metavar="FINDING", help="Do not say it at every start any more.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(dismiss: str | None, as_json: bool) -> int:
    """Look at the engine, devices, disk, settings, terminal and models.

    Nothing is changed and nobody is asked; the output shows no names and may be pasted into an
    issue. Exit code 1 where something keeps localspec from working.
    """
    if dismiss is not None:
        build.dismiss(dismiss)
    found = examination.examine()
    if as_json:
        click.echo(json.dumps({"schema": 1, "findings": [asdict(one) for one in found]}))
    else:
        for line in _lines(found):
            click.echo(line)
    return int(any(one.level == "error" for one in found))


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    for area in examination.AREAS:
        yield area
        for one in (one for one in found if one.area == area):
            yield f"  {_SIGNS[one.level]}{one.what}"
            if one.fix and one.level != "ok":
                yield f"      {one.fix}"
        yield ""
    yield _verdict(found)


def _verdict(found: Sequence[Finding]) -> str:
    levels = [one.level for one in found]
    counts = [(level, levels.count(level)) for level in _WORST_FIRST if level in levels]
    if not counts:
        return "Nothing is wrong."
    told = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts)
    return f"{told}; signs: x error, ! warning, - notice."
