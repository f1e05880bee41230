"""The result of a check, and its repair action."""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from localspec.machine import llama_cpp_builds
from localspec.sanitize import sanitize

Level = Literal["ok", "notice", "warning", "error"]
WORST_FIRST: tuple[Level, ...] = ("error", "warning", "notice")

PROBLEMS: dict[Level, dict[str, str]] = {
    "error": {
        "engine-missing": "No model can run. Downloaded models are not affected.",
        "engine-fails": "No model can run until llama.cpp starts.",
        "library-missing": "No model can run: this llama.cpp build needs missing libraries.",
        "illegal-instruction": "No model can run: the build is not for this CPU.",
        "other-cpu": "The engine may crash as soon as it computes.",
        "config-damaged": "localspec does not start with a config file it cannot read.",
        "environment-wrong": "localspec does not start while this variable is set so.",
        "catalogue-damaged": "Only the built-in pairs are offered; your own are missing.",
        "chats-damaged": "New chats may not be saved, and old ones may not open.",
        "failed": "All other checks still ran.",
    },
    "warning": {
        "cpu-only-build": "The GPU is idle: answers are several times slower than they could be.",
        "devices-unknown": "localspec cannot estimate whether a model fits.",
        "drafter-package": "Its drafter is refused; other drafters work.",
        "little-memory": "Only the smallest models fit.",
        "cache-refused": "Nothing can be downloaded.",
        "data-refused": "Chats, per-model settings and logs are lost when localspec exits.",
        "data-file": "What localspec keeps in this file is lost when it exits.",
        "little-room": "Most downloads would not fit on the disk.",
        "models-folder": "Models in that folder are not found.",
        "config-unknown": "",
        "chats-newer": "New chats are not saved.",
        "endpoint-wrong": "Nothing can be downloaded.",
        "no-unicode": "Bars and symbols are drawn in ASCII; non-Latin text is not shown.",
        "unreadable": "This model cannot be opened.",
        "tool-settings": "This server of tools is not used.",
        "tool-server": "Its tools cannot be called.",
    },
    "notice": {
        "slow-build": "Everything works, but slower than this CPU allows.",
        "no-heads": "Draft heads are refused; other drafts work.",
        "gpu": "The estimate of what fits in GPU memory is less certain.",
        "no-cuda-graphs": "Answers of small models and mixtures take longer than they could.",
        "no-links": "Updating a model takes its full size again.",
        "leftovers": "They use disk space. Downloading the same file again resumes them.",
        "offline": "Installed models run; nothing is downloaded.",
        "endpoint": "Downloads come from that mirror.",
        "small": "Parts of the screen are hidden.",
        "dumb": "The full-screen app cannot run.",
        "old-console": "Some keys may not work.",
        "slow-type": "Answers would come sooner from a copy in another type.",
        "unsupported": "This model is listed, but refused when opened.",
        "not-looked-at": "One of them may be damaged; opening it would show that.",
    },
}
"""Level -> id of a finding -> its consequence for the user, in one sentence.

It is empty where `what` says it already.
"""


class CommandLine(Struct, frozen=True):
    argv: tuple[str, ...]
    environ: tuple[tuple[str, str], ...] = ()  # Added to the environment.

    def __str__(self) -> str:
        """The line to type in a shell."""
        words = []
        for name, value in self.environ:
            words.append(f"{name}={llama_cpp_builds.quote_command([value])}")
        words.append(llama_cpp_builds.quote_command(self.argv))
        return " ".join(words)


class RepairAction(Struct, frozen=True):
    """A repair that localspec can do, after the person confirms it."""

    name: str  # One or two words, shown after a key: remove them.
    question: str  # States exactly what the action does.
    run: Callable[[], str] | None = None
    """A quick action; returns a sentence about the result.

    It may raise LocalspecError or OSError.
    """
    commands: tuple[CommandLine, ...] = ()
    """These run in sequence.

    They may take minutes, and replace files that a running engine has open.
    """


class Finding(Struct, frozen=True):
    id: str  # Stable, for programs: cpu-only-build.
    area: str  # A key of checks.AREAS; empty until `check_area` sets it.
    level: Level  # `error`: localspec cannot work until this is fixed.
    what: str
    fix: str = ""  # One line: what to do or type.
    explanation: str = ""  # The consequence for the user; empty at level `ok`.
    action: RepairAction | None = None


def ok(id_: str, what: str, fix: str = "") -> Finding:
    return Finding(id=id_, area="", level="ok", what=what, fix=fix)


def problem(id_: str, what: str, fix: str = "") -> Finding:
    """A finding with the level and the explanation that PROBLEMS has for its id."""
    (level,) = [level for level in WORST_FIRST if id_ in PROBLEMS[level]]
    return Finding(
        id=id_,
        area="",
        level=level,
        what=what,
        fix=fix,
        explanation=PROBLEMS[level][id_],
    )


def redact(finding: Finding) -> Finding:
    """Remove the user name, the home folder and terminal control sequences."""
    what = _redact_text(finding.what)
    fix = _redact_text(finding.fix)
    return replace(finding, what=what, fix=fix)


def _redact_text(text: str) -> str:
    """For user ann, `/home/ann/x /media/ann/y` becomes `~/x /media/<user>/y`."""
    text = sanitize(text, multiline=False)
    try:
        home = str(Path.home())
        user = getpass.getuser()
    except (RuntimeError, OSError, KeyError, ImportError):
        # The user has no entry in the password database.
        return text
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/\\]|\b|$)", "~", text)
    if user and user != "root":
        as_folder = rf"(?<=[/\\]){re.escape(user)}(?=[/\\]|\s|['\":.,]|$)"
        text = re.sub(as_folder, "<user>", text)
    return text
