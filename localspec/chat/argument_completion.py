"""Completions of an argument of a slash command: models, presets, values and paths."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from localspec.chat import presets
from localspec.chat.settings import value_choices
from localspec.errors import LocalspecError
from localspec.models import model_lookup
from localspec.models.audio_files import is_audio_name
from localspec.models.pictures import is_picture_name
from localspec.sanitize import sanitize
from localspec.tools import folder_tools, server_settings

_MAX_ENTRIES = 2000  # Entries of a folder that are looked at.
_NAMES_KEPT_SECONDS = 10


def complete_path(typed: str, suffix: str = "") -> list[str]:
    """The paths that begin with `typed`: folders, with a slash, and files of this suffix."""
    try:
        return list(_complete_path(typed, suffix))
    except (OSError, RuntimeError, ValueError):
        return []


def _complete_path(typed: str, suffix: str) -> Iterator[str]:
    path = Path(os.path.expanduser(typed))
    folder = path.parent
    prefix = path.name
    if typed.endswith("/"):
        folder = path
        prefix = ""
    typed_folder = typed[: len(typed) - len(prefix)]
    for entry in sorted(folder.iterdir())[:_MAX_ENTRIES]:
        if not entry.name.startswith(prefix):
            continue
        if entry.name.startswith(".") and not prefix.startswith("."):
            continue
        if os.path.isdir(entry):
            yield sanitize(f"{typed_folder}{entry.name}/", multiline=False)
        elif entry.suffix.lower() == suffix or not suffix:
            yield sanitize(f"{typed_folder}{entry.name}", multiline=False)


def complete_picture(typed: str) -> list[str]:
    """Folders, and files with the name of a picture."""
    paths = complete_path(typed)
    return [path for path in paths if path.endswith("/") or is_picture_name(path)]


def complete_audio(typed: str) -> list[str]:
    """Folders, and files with the name of audio."""
    paths = complete_path(typed)
    return [path for path in paths if path.endswith("/") or is_audio_name(path)]


def complete_folder(typed: str) -> list[str]:
    return [path for path in complete_path(typed) if path.endswith("/")]


def complete_tools(typed: str) -> list[str]:
    """The servers of tools, and the folder, behind a word such as `off`."""
    word, space, name = typed.partition(" ")
    if not space:
        return []
    servers = server_settings.read_servers().servers
    names = [folder_tools.PROVIDER, *(server.name for server in servers)]
    return [f"{word} {each}" for each in names if each.startswith(name)]


def complete_model(typed: str) -> list[str]:
    """Names that contain what is typed, those that begin with it first; or paths."""
    if typed.startswith(("/", "~", ".")):
        return complete_path(typed, ".gguf")
    typed = typed.lower()
    names = _installed_names(int(time.monotonic() / _NAMES_KEPT_SECONDS))
    matches = [name for name in names if typed in name.lower()]
    return sorted(matches, key=lambda name: not name.lower().startswith(typed))


@functools.lru_cache(maxsize=1)
def _installed_names(_period: int) -> Sequence[str]:
    """Listing the files takes a while, so it is done once a period."""
    try:
        return [name for name, _ in model_lookup.list_installed()]
    except LocalspecError:  # a damaged models.yaml
        return ()


def complete_preset(typed: str) -> list[str]:
    word, space, name = typed.rpartition(" ")
    names = [preset for preset in presets.load() if preset.startswith(name)]
    return [f"{word}{space}{preset}" for preset in names]


def complete_setting_value(typed: str) -> list[str]:
    """The values of a setting, once its name is typed."""
    setting, space, value = typed.partition(" ")
    if not space:
        return []
    words = [word for word in value_choices(setting) if word.startswith(value)]
    return [f"{setting} {word}" for word in words]


def complete_method(typed: str) -> list[str]:
    """The words of `--spec`."""
    return [word for word in value_choices("spec") if word.startswith(typed)]
