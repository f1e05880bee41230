"""Completion of a typed command line: commands, their words, models, presets and paths."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from localspec.chat import presets
from localspec.chat.settings import value_choices
from localspec.chat.slash_commands import COMMANDS, COMMANDS_BY_NAME, SlashCommand
from localspec.errors import LocalspecError
from localspec.models import model_lookup
from localspec.sanitize import sanitize

_MAX_ENTRIES = 2000  # Entries of a folder that are looked at.


def complete(line: str) -> list[str]:
    if not line.startswith("/") or "\n" in line:
        return []
    name, space, rest = line[1:].partition(" ")
    if not space:
        return sorted(f"/{word}" for word in _complete_name(name.lower()))
    command = COMMANDS_BY_NAME.get(name.lower())
    arguments = _complete_argument(command, rest) if command else ()
    return [f"/{name} {argument}" for argument in arguments]


def _complete_name(prefix: str) -> Iterator[str]:
    """Aliases only of commands whose names do not match."""
    for command in COMMANDS:
        if command.name.startswith(prefix):
            yield command.name
        else:
            yield from (alias for alias in command.aliases if alias.startswith(prefix))


def _complete_argument(command: SlashCommand, rest: str) -> list[str]:
    if command.name == "set" and " " in rest:
        setting, _, value = rest.partition(" ")
        return [
            f"{setting} {word}"
            for word in value_choices(setting)
            if word.startswith(value)
        ]
    words = [word for word in command.choices if word.startswith(rest)]
    complete = _COMPLETERS.get(command.name)
    return words + complete(rest) if complete else words


def complete_path(typed: str, suffix: str = "") -> list[str]:
    """The folders, with a slash, and the files of this suffix whose paths begin with
    `typed`.
    """
    try:
        path = Path(os.path.expanduser(typed))
        folder, prefix = (path, "") if typed.endswith("/") else (path.parent, path.name)
        entries = sorted(folder.iterdir())[:_MAX_ENTRIES]
    except (OSError, RuntimeError, ValueError):
        return []
    start = typed[: len(typed) - len(prefix)]
    return [
        sanitize(
            f"{start}{entry.name}{'/' if os.path.isdir(entry) else ''}", multiline=False
        )
        for entry in entries
        if entry.name.startswith(prefix)
        and (prefix.startswith(".") or not entry.name.startswith("."))
        and (os.path.isdir(entry) or entry.suffix.lower() == suffix or not suffix)
    ]


def _complete_model(typed: str) -> list[str]:
    """Names that contain what is typed, those that begin with it first; or paths."""
    if typed.startswith(("/", "~", ".")):
        return complete_path(typed, ".gguf")
    names = _installed_names(int(time.monotonic() / 10))
    matches = [name for name in names if typed.lower() in name.lower()]
    return sorted(matches, key=lambda name: not name.lower().startswith(typed.lower()))


@functools.lru_cache(maxsize=1)
def _installed_names(_: int) -> Sequence[str]:
    """Cached for ten seconds: listing the files takes a while."""
    try:
        return [name for name, _ in model_lookup.list_installed()]
    except LocalspecError:  # a damaged models.yaml
        return ()


def _complete_preset(typed: str) -> list[str]:
    word, space, name = typed.rpartition(" ")
    return [
        f"{word}{space}{preset}" for preset in presets.load() if preset.startswith(name)
    ]


_COMPLETERS: Mapping[str, Callable[[str], list[str]]] = {
    "read": complete_path,
    "save": complete_path,
    "model": _complete_model,
    "regen": _complete_model,
    "draft": _complete_model,
    "preset": _complete_preset,
}
"""By command; besides the command's own words."""


def is_final(line: str) -> bool:
    """Whether the line ends in a new name, which need not be one of the completions."""
    return re.match(r"/(?:save|export|preset save) +\S", line) is not None


def usage(line: str) -> str:
    """The arguments and the help of a command whose name is complete; empty for other
    lines.
    """
    command = COMMANDS_BY_NAME.get(line[1:])
    return f"{command.argument}  {command.help}".strip() if command else ""


def takes_argument(line: str) -> bool:
    command = COMMANDS_BY_NAME.get(line[1:])
    return bool(command and command.argument)
