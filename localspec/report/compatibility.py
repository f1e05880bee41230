"""The verdict on a target and its draft: sentences, a short label, and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localspec import draft_kinds
from localspec.models.pair_compatibility import CompatibilityResult
from localspec.models.pull_plan import PlannedPair
from localspec.report.lines import Line, Role, Span, make_line


def format_pair_verdict(match: PlannedPair) -> Iterator[Line]:
    """`Compatible: …` with the reason, then what else is to be known."""
    compatibility = match.compatibility
    role: Role = "success" if compatibility.is_compatible else "error"
    verdict = compatibility.title.capitalize()
    yield (Span(verdict, role), Span(f": {compatibility.detail}."))
    for warning in match.warnings:
        yield make_line(f"  {warning}", "warning")


def describe_compatibility(result: CompatibilityResult | None, draft_kind: str) -> str:
    """The verdict in a few words, such as `vocabularies match`.

    `result` is None before the headers of the files are compared.
    """
    title = draft_kinds.head_title(draft_kind)
    if result is None:
        subject = (
            f"{title} head: compared with its target"
            if title
            else "vocabularies: compared"
        )
        return f"{subject} before the download"
    if draft_kinds.of_verdict(result.verdict):  # the models share no vocabulary
        return result.summary
    if result.is_compatible:
        return f"{title} head fits its target" if title else "vocabularies match"
    problem = f"{title} head does not fit" if title else "vocabularies differ"
    return f"{problem}: {result.detail}"


def match_to_json(match: PlannedPair) -> dict[str, Any]:
    result = match.compatibility
    return {
        "target": match.target.resolved.name,
        "draft": match.draft.resolved.name,
        "verdict": result.verdict,
        "rule": result.rule,
        "detail": result.detail,
        "token": result.token,
        "warnings": list(match.warnings),
    }
