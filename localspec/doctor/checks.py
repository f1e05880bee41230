"""Runs every check; an exception inside a check becomes a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from localspec.doctor import engine_checks, environment_checks, repairs, storage_checks
from localspec.doctor.findings import Finding, redact

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

EXPLANATIONS = {
    "engine-missing": "No model can run. Downloaded models are not affected.",
    "engine-fails": "No model can run until llama.cpp starts.",
    "library-missing": "No model can run: this llama.cpp build needs libraries that are missing.",
    "illegal-instruction": "No model can run: the build uses instructions this CPU does not have.",
    "other-cpu": "The engine may crash as soon as it computes.",
    "slow-build": "Everything works, but slower than this CPU allows.",
    "cpu-only-build": "The GPU is idle: answers are several times slower than they could be.",
    "no-heads": "EAGLE-3, MTP, DFlash and DSpark heads are refused; other drafts work.",
    "crash-loops": "They will probably crash again; loading one shows a warning first.",
    "gpu": "The estimate of what fits in GPU memory is less certain.",
    "devices-unknown": "localspec cannot estimate whether a model fits.",
    "little-memory": "Only the smallest models fit.",
    "cache-refused": "Nothing can be downloaded.",
    "data-refused": "Chats, per-model settings and logs are lost when localspec exits.",
    "little-room": "Most downloads would not fit on the disk.",
    "no-links": "Updating a model takes its full size again.",
    "leftovers": "They use disk space. Downloading the same file again resumes them.",
    "models-folder": "Models in that folder are not found.",
    "config-damaged": "localspec does not start with a config file it cannot read.",
    "environment-wrong": "localspec does not start while this variable is set so.",
    "catalogue-damaged": "Only the built-in pairs are offered; your own are missing.",
    "chats-damaged": "New chats may not be saved, and old ones may not open.",
    "chats-newer": "New chats are not saved.",
    "offline": "Installed models run; nothing is downloaded.",
    "endpoint": "Downloads come from that mirror.",
    "endpoint-wrong": "Nothing can be downloaded.",
    "small": "Parts of the screen are hidden.",
    "no-unicode": "Bars and symbols are drawn in ASCII; non-Latin text is not shown.",
    "dumb": "The full-screen app cannot run.",
    "old-console": "Some keys may not work.",
    "unreadable": "This model cannot be opened.",
    "unsupported": "This model is listed, but refused when opened.",
    "not-looked-at": "One of them may be damaged; opening it would show that.",
    "failed": "All other checks still ran.",
}
"""By finding id: the consequence for the user, in one sentence."""


def run_checks() -> tuple[Finding, ...]:
    """All findings, safe to share: no home folder, no user name, no tokens."""
    return tuple(finding for area in AREAS for finding in check_area(area))


def check_area(area: str) -> Iterator[Finding]:
    """Runs one of AREAS; adds an explanation and a repair action to each problem."""
    for finding in _run_area(area):
        yield redact(finding)


def _run_area(area: str) -> Iterator[Finding]:
    try:
        for finding in AREAS[area]():
            yield finding if finding.level == "ok" else _add_explanation(finding)
    except Exception as error:  # one area that breaks must not hide the others
        what = f"this check failed: {type(error).__name__}: {error}"
        yield Finding("failed", area, "error", what, "Report this, with the whole output.")


def _add_explanation(finding: Finding) -> Finding:
    explanation = EXPLANATIONS.get(finding.id, "")
    return replace(finding, explanation=explanation, action=repairs.find_repair(finding))
