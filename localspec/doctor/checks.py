"""Looks everywhere, and makes a finding of whatever fails while looking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from localspec.doctor import engine_checks, network_checks, repairs, storage_checks, terminal_checks
from localspec.doctor.findings import Finding, redact

AREAS: dict[str, Callable[[], Iterator[Finding]]] = {
    "engine": engine_checks.check_engine,
    "devices": engine_checks.check_devices,
    "disk": storage_checks.check_disk,
    "chats": storage_checks.check_chats,
    "network": network_checks.check_network,
    "terminal": terminal_checks.check_terminal,
    "models": storage_checks.check_models,
}
"""Where is looked, in the order of telling."""


def run_checks() -> tuple[Finding, ...]:
    """Everything, made to be shown to others: no home folder, no names, no tokens."""
    return tuple(finding for area in AREAS for finding in check_area(area))


def check_area(area: str) -> Iterator[Finding]:
    """At one of AREAS; with what each finding means, and what can be done about it from here."""
    for found in _run_area(area):
        yield redact(found)


def _run_area(area: str) -> Iterator[Finding]:
    try:
        for found in AREAS[area]():
            yield found if found.level == "ok" else _add_explanation(found)
    except Exception as error:  # one area that breaks must not hide the others
        what = f"looking here failed: {type(error).__name__}: {error}"
        yield Finding("failed", area, "error", what, "Report this, with the whole output.")


def _add_explanation(finding: Finding) -> Finding:
    means = EXPLANATIONS.get(finding.id, "")
    return replace(finding, explanation=means, action=repairs.find_repair(finding))


# --- What a finding does to whoever uses localspec, in a sentence.

EXPLANATIONS = {
    "engine-missing": "No model can run. What was downloaded stays.",
    "engine-fails": "No model can run until llama.cpp starts.",
    "library-missing": "No model can run: llama.cpp was built for libraries that are not here.",
    "illegal-instruction": "No model can run: the build uses what this processor has not.",
    "other-cpu": "The engine may die the moment that it computes.",
    "slow-build": "Everything works, some of it slower than this processor could.",
    "cpu-only-build": "The card is idle: answers come several times slower than they could.",
    "no-heads": "EAGLE-3, MTP, DFlash and DSpark heads are refused; other drafts work.",
    "crash-loops": "These are not started again by themselves after a crash.",
    "gpu": "How much fits the card is less certain.",
    "devices-unknown": "Whether a model fits cannot be foretold.",
    "little-memory": "Only the smallest models fit.",
    "cache-refused": "Nothing can be downloaded.",
    "data-refused": "Chats, settings of pairs and logs are lost when localspec ends.",
    "little-room": "Most downloads would not fit on the disk.",
    "no-links": "Updates of a model take its whole size again.",
    "leftovers": "They take room. A download that is asked for again goes on from them.",
    "models-folder": "Models there are not found.",
    "config-damaged": "localspec does not start, for it would not do what you had set.",
    "catalogue-damaged": "Only the built-in pairs are offered; yours are missing.",
    "chats-damaged": "New chats may not be kept, and old ones not be shown.",
    "chats-newer": "New chats are not kept.",
    "offline": "What is here runs; nothing is downloaded.",
    "endpoint": "Downloads come from that mirror.",
    "endpoint-wrong": "Nothing can be downloaded.",
    "small": "Some of the screen is folded away.",
    "no-unicode": "Bars and marks are drawn in plain letters, other scripts not at all.",
    "dumb": "The screens cannot be shown.",
    "old-console": "Some keys may do nothing.",
    "unreadable": "This model cannot be opened.",
    "unsupported": "This model is listed, and refused when it is opened.",
    "not-looked-at": "One of them may be damaged; opening it would tell.",
    "failed": "The rest was looked at all the same.",
}
"""By the finding's id."""
