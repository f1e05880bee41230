"""One thing that was found out, in words that may be shown to anybody."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from localspec.clean import clean

Level = Literal["ok", "notice", "warning", "error"]


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
