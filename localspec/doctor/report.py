"""Findings as a text that may be pasted into an issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from localspec.doctor.finding import Finding, Level

SIGNS: dict[Level, str] = {"ok": "  ", "notice": "- ", "warning": "! ", "error": "x "}
WORST_FIRST: tuple[Level, ...] = ("error", "warning", "notice")


def text(found: Sequence[Finding]) -> str:
    """By area, and what it comes to."""
    return "\n".join(_lines(found))


def _lines(found: Sequence[Finding]) -> Iterator[str]:
    for area in dict.fromkeys(one.area for one in found):
        yield area
        for one in (one for one in found if one.area == area):
            yield f"  {SIGNS[one.level]}{one.what}"
            if one.fix and one.level != "ok":
                yield f"      {one.fix}"
        yield ""
    counted = counts(found)
    yield f"{counted}; signs: x error, ! warning, - notice." if counted else verdict(found)


def verdict(found: Sequence[Finding]) -> str:
    """In a sentence."""
    return f"{counts(found)}." if counts(found) else "Nothing is wrong."


def counts(found: Sequence[Finding]) -> str:
    """1 error, 2 warnings; empty where all is well."""
    levels = [one.level for one in found]
    some = [(level, levels.count(level)) for level in WORST_FIRST if level in levels]
    return ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in some)
