"""The report of `doctor`, made to be pasted into an issue; and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec import Struct

from localspec.doctor.findings import WORST_FIRST, Finding, Level
from localspec.report.lines import EMPTY_LINE, Line, Role, Span, make_line
from localspec.units import count


class LevelLook(Struct, frozen=True):
    sign: str
    role: Role


LEVELS: dict[Level, LevelLook] = {
    "error": LevelLook("✗", "error"),
    "warning": LevelLook("!", "warning"),
    "notice": LevelLook("·", "accent"),
    "ok": LevelLook("✓", "success"),
}
_NO_PROBLEMS = "No problems found"


def format_findings(
    findings: Sequence[Finding], *, plain: bool = False
) -> Iterator[Line]:
    """The findings of each area; `plain`: with words instead of signs."""
    for area, group in groupby(findings, lambda finding: finding.area):
        yield make_line(area, "heading")
        for finding in group:
            yield _format_finding(finding, plain=plain)
            if finding.fix and finding.level != "ok":
                yield make_line(f"      {finding.fix}")
        yield EMPTY_LINE
    counts = count_problems(findings)
    if counts and not plain:
        counts += "; ✗ error, ! warning, · notice"
    yield make_line(f"{counts or _NO_PROBLEMS}.")


def _format_finding(finding: Finding, *, plain: bool) -> Line:
    look = LEVELS[finding.level]
    if not plain:
        return (Span("  "), Span(look.sign, look.role), Span(f" {finding.what}"))
    if finding.level == "ok":
        return make_line(f"  {finding.what}")
    return make_line(f"  {finding.level}: {finding.what}")


def count_problems(findings: Sequence[Finding]) -> str:
    """Such as `1 error, 2 warnings`; empty without problems."""
    counts = Counter(finding.level for finding in findings)
    return ", ".join(
        count(counts[level], level) for level in WORST_FIRST if counts[level]
    )


def summarize_problems(findings: Sequence[Finding]) -> str:
    return count_problems(findings) or _NO_PROBLEMS


def finding_to_json(finding: Finding) -> dict[str, str | None]:
    action = finding.action.name if finding.action else None
    return {
        "id": finding.id,
        "area": finding.area,
        "level": finding.level,
        "what": finding.what,
        "fix": finding.fix,
        "means": finding.explanation,
        "action": action,
    }
