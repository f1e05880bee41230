"""Looks everywhere, and makes a finding of whatever fails while looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from localspec.doctor import disk, engine, models, network, terminal
from localspec.doctor.finding import Finding, private

AREAS: dict[str, Callable[[], Iterator[Finding]]] = {
    "engine": engine.findings,
    "devices": engine.devices,
    "disk": disk.findings,
    "network": network.findings,
    "terminal": terminal.findings,
    "models": models.findings,
}
"""Where is looked, in the order of telling."""


def examine() -> tuple[Finding, ...]:
    """Everything, made to be shown to others: no home folder, no names, no tokens."""
    return tuple(private(finding) for area in AREAS for finding in _guarded(area))


def _guarded(area: str) -> Iterator[Finding]:
    try:
        yield from AREAS[area]()
    except Exception as error:
        what = f"looking here failed: {type(error).__name__}: {error}"
        yield Finding("failed", area, "error", what, "Report this, with the whole output.")
