"""Looks everywhere, and makes a finding of whatever fails while looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from localspec.doctor import chats, disk, engine, meanings, mends, models, network, terminal
from localspec.doctor.finding import Finding, private

AREAS: dict[str, Callable[[], Iterator[Finding]]] = {
    "engine": engine.findings,
    "devices": engine.devices,
    "disk": disk.findings,
    "chats": chats.findings,
    "network": network.findings,
    "terminal": terminal.findings,
    "models": models.findings,
}
"""Where is looked, in the order of telling."""


def examine() -> tuple[Finding, ...]:
    """Everything, made to be shown to others: no home folder, no names, no tokens."""
    return tuple(finding for area in AREAS for finding in look(area))


def look(area: str) -> Iterator[Finding]:
    """At one of AREAS; with what each finding means, and what can be done about it from here."""
    for found in _guarded(area):
        yield private(found)


def _guarded(area: str) -> Iterator[Finding]:
    try:
        for found in AREAS[area]():
            yield found if found.level == "ok" else _explained(found)
    except Exception as error:  # one area that breaks must not hide the others
        what = f"looking here failed: {type(error).__name__}: {error}"
        yield Finding("failed", area, "error", what, "Report this, with the whole output.")


def _explained(found: Finding) -> Finding:
    means = meanings.MEANINGS.get(found.id, "")
    return replace(found, means=means, action=mends.action(found))
