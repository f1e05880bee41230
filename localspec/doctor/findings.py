"""One thing that was found out, in words that may be shown to anybody."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec.machine import install_commands
from localspec.sanitize import sanitize

Level = Literal["ok", "notice", "warning", "error"]


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A program to run, as it is given to the system."""

    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()
    """What it is to be told besides."""

    def __str__(self) -> str:
        """As one would type it."""
        told = [f"{name}={install_commands.quote_command([value])}" for name, value in self.environ]
        return " ".join([*told, install_commands.quote_command(self.argv)])


@dataclass(frozen=True, slots=True)
class RepairAction:
    """What mends a finding from here, once a person has agreed to it."""

    name: str
    """In a word or two, after a key: remove them."""
    question: str
    """What exactly is going to happen."""
    run: Callable[[], str] | None = None
    """At once; what was done, in words.  Raises LocalspecError or OSError."""
    commands: tuple[CommandLine, ...] = ()
    """One after another, which may take minutes; they replace what an engine has open."""


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    """Stable, for programs: cpu-only-build."""
    area: str
    """engine, devices, disk, network, terminal, models."""
    level: Level
    """`error`: localspec cannot work as it is."""
    what: str
    fix: str = ""
    """One line: what to do or to type."""
    explanation: str = ""
    """What that does to whoever uses it; empty where all is well."""
    action: RepairAction | None = None
    """What localspec can do itself."""


def redact(finding: Finding) -> Finding:
    """Without this person's name and home, and harmless in a terminal."""
    return replace(finding, what=_redact_text(finding.what), fix=_redact_text(finding.fix))


def _redact_text(text: str) -> str:
    text = sanitize(text, multiline=False)
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (RuntimeError, OSError, KeyError, ImportError):  # a user without an entry
        return text
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/\\]|\b|$)", "~", text)
    if user and user != "root":
        text = re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\]|\s|['\":.,]|$)", "<user>", text)
    return text


# --- Findings as a text that may be pasted into an issue.

LEVEL_SIGNS: dict[Level, str] = {"ok": "  ", "notice": "- ", "warning": "! ", "error": "x "}
WORST_FIRST: tuple[Level, ...] = ("error", "warning", "notice")


def format_report(findings: Sequence[Finding]) -> str:
    """By area, and what it comes to."""
    return "\n".join(_format_lines(findings))


def _format_lines(findings: Sequence[Finding]) -> Iterator[str]:
    for area in dict.fromkeys(one.area for one in findings):
        yield area
        for one in (one for one in findings if one.area == area):
            yield f"  {LEVEL_SIGNS[one.level]}{one.what}"
            if one.fix and one.level != "ok":
                yield f"      {one.fix}"
        yield ""
    counted = format_counts(findings)
    yield (
        f"{counted}; signs: x error, ! warning, - notice." if counted else format_verdict(findings)
    )


def format_verdict(findings: Sequence[Finding]) -> str:
    """In a sentence."""
    return f"{format_counts(findings)}." if format_counts(findings) else "Nothing is wrong."


def format_counts(findings: Sequence[Finding]) -> str:
    """1 error, 2 warnings; empty where all is well."""
    levels = [one.level for one in findings]
    some = [(level, levels.count(level)) for level in WORST_FIRST if level in levels]
    return ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in some)
