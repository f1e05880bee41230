"""Runs every check: they change nothing and open no socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from localspec.doctor import engine_checks, environment_checks, repairs, storage_checks
from localspec.doctor.findings import Finding, problem, redact

AREAS: dict[str, Callable[[], Iterator[Finding]]] = {
    "engine": engine_checks.check_engine,
    "devices": engine_checks.check_devices,
    "disk": storage_checks.check_disk,
    "chats": storage_checks.check_chats,
    "network": environment_checks.check_network,
    "terminal": environment_checks.check_terminal,
    "models": storage_checks.check_models,
}
"""The checks of each area, in the order of the report."""


def run_checks() -> tuple[Finding, ...]:
    """All findings, safe to share: no home folder, no user name, no tokens."""
    return tuple(finding for area in AREAS for finding in check_area(area))


def check_area(area: str) -> Iterator[Finding]:
    """Runs one of AREAS, and adds the repair of each problem; an exception becomes a finding."""
    try:
        for finding in AREAS[area]():
            yield redact(replace(finding, action=repairs.find_repair(finding.id)))
    except Exception as error:  # one area that breaks must not hide the others
        what = f"this check failed: {type(error).__name__}: {error}"
        yield redact(problem(area, "failed", what, "Report this, with the whole output."))
