"""The result of a check, its repair action, and the report as text."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from localspec.lazy_dataclass import dataclass
from localspec.machine import install_commands
from localspec.sanitize import sanitize
from localspec.units import count

Level = Literal["ok", "notice", "warning", "error"]


@dataclass(frozen=True, slots=True)
class CommandLine:
    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()
    """Added to the environment."""

    def __str__(self) -> str:
        """The line to type in a shell."""
        settings = [
            f"{name}={install_commands.quote_command([value])}" for name, value in self.environ
        ]
        return " ".join([*settings, install_commands.quote_command(self.argv)])


@dataclass(frozen=True, slots=True)
class RepairAction:
    """A repair that localspec can do, after the person confirms it."""

    name: str
    """One or two words, shown after a key: remove them."""
    question: str
    """States exactly what the action does."""
    run: Callable[[], str] | None = None
    """A quick action; returns a sentence about the result. Raises LocalspecError or OSError."""
    commands: tuple[CommandLine, ...] = ()
    """Run in sequence; may take minutes and replace files that a running engine has open."""


@dataclass(frozen=True, slots=True)
class Finding:
    id: str
    """Stable, for programs: cpu-only-build."""
    area: str
    """A key of checks.AREAS."""
    level: Level
    """`error`: localspec cannot work until this is fixed."""
    what: str
    fix: str = ""
    """One line: what to do or type."""
    explanation: str = ""
    """The consequence for the user; empty at level `ok`."""
    action: RepairAction | None = None


def redact(finding: Finding) -> Finding:
    """Removes the user name, the home folder and terminal control sequences."""
    return replace(finding, what=_redact_text(finding.what), fix=_redact_text(finding.fix))


def _redact_text(text: str) -> str:
    text = sanitize(text, multiline=False)
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (RuntimeError, OSError, KeyError, ImportError):  # no password database entry
        return text
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/\\]|\b|$)", "~", text)
    if user and user != "root":
        text = re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\]|\s|['\":.,]|$)", "<user>", text)
    return text


# --- The report as text, to paste into an issue.

LEVEL_SIGNS: dict[Level, str] = {"ok": "  ", "notice": "- ", "warning": "! ", "error": "x "}
WORST_FIRST: tuple[Level, ...] = ("error", "warning", "notice")


def format_report(findings: Sequence[Finding]) -> str:
    return "\n".join(_format_lines(findings))


def _format_lines(findings: Sequence[Finding]) -> Iterator[str]:
    for area in dict.fromkeys(finding.area for finding in findings):
        yield area
        for finding in findings:
            if finding.area != area:
                continue
            yield f"  {LEVEL_SIGNS[finding.level]}{finding.what}"
            if finding.fix and finding.level != "ok":
                yield f"      {finding.fix}"
        yield ""
    counts = format_counts(findings)
    yield f"{counts}; x error, ! warning, - notice." if counts else format_verdict(findings)


def format_verdict(findings: Sequence[Finding]) -> str:
    counts = format_counts(findings)
    return f"{counts}." if counts else "No problems found."


def format_counts(findings: Sequence[Finding]) -> str:
    """Such as "1 error, 2 warnings"; empty without problems."""
    levels = [finding.level for finding in findings]
    counts = [(level, levels.count(level)) for level in WORST_FIRST if level in levels]
    return ", ".join(count(n, level) for level, n in counts)
