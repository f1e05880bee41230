"""One thing that was found out, in words that may be shown to anybody."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec.clean import clean
from localspec.machine import installing

Level = Literal["ok", "notice", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Command:
    """A program to run, as it is given to the system."""

    words: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()
    """What it is to be told besides."""

    def __str__(self) -> str:
        """As one would type it."""
        told = [f"{name}={installing.quoted([value])}" for name, value in self.environ]
        return " ".join([*told, installing.quoted(self.words)])


@dataclass(frozen=True, slots=True)
class Action:
    """What mends a finding from here, once a person has agreed to it."""

    name: str
    """In a word or two, after a key: remove them."""
    question: str
    """What exactly is going to happen."""
    do: Callable[[], str] | None = None
    """At once; what was done, in words.  Raises LocalspecError or OSError."""
    commands: tuple[Command, ...] = ()
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
    means: str = ""
    """What that does to whoever uses it; empty where all is well."""
    action: Action | None = None
    """What localspec can do itself."""


def private(finding: Finding) -> Finding:
    """Without this person's name and home, and harmless in a terminal."""
    return replace(finding, what=_private(finding.what), fix=_private(finding.fix))


def _private(text: str) -> str:
    text = clean(text, multiline=False)
    try:
        home, user = str(Path.home()), getpass.getuser()
    except (RuntimeError, OSError, KeyError, ImportError):  # a user without an entry
        return text
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/\\]|\b|$)", "~", text)
    if user and user != "root":
        text = re.sub(rf"(?<=[/\\]){re.escape(user)}(?=[/\\]|\s|['\":.,]|$)", "<user>", text)
    return text
