"""Paths of the program's own files and of the files it writes."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import platformdirs

PACKAGE = Path(__file__).resolve().parent


def package_data_dir() -> Path:
    """Files that ship with the package: the demo pair, and the starter's head."""
    return PACKAGE / "data"


def find_bundled(file: str) -> Path:
    """The model file with this name, in the folder that has it; else where a demo's
    would be.
    """
    starter = package_data_dir() / "starter" / file
    return starter if starter.exists() else package_data_dir() / "demo" / file


def catalog_file() -> Path:
    """models.yaml: beside the code in a wheel, at the repository root in an editable
    install.
    """
    inside = PACKAGE / "models.yaml"
    return inside if inside.exists() else PACKAGE.parent / "models.yaml"


def data_dir() -> Path:
    """Measurements, chats and logs; LOCALSPEC_DATA_DIR overrides the place."""
    override = os.environ.get("LOCALSPEC_DATA_DIR")
    return (
        Path(override)
        if override
        else platformdirs.user_data_path("localspec", appauthor=False)
    )


def chats_file() -> Path:
    """The saved chats, in a folder of their own that only its owner may enter."""
    return data_dir() / "chats" / "chats.sqlite"


def config_file() -> Path:
    """config.toml, or the file that LOCALSPEC_CONFIG names."""
    override = os.environ.get("LOCALSPEC_CONFIG")
    folder = platformdirs.user_config_path("localspec", appauthor=False)
    return Path(override) if override else folder / "config.toml"


def user_catalog_file() -> Path:
    """The user's own models.yaml, beside config.toml."""
    return config_file().parent / "models.yaml"


def parse_typed_path(text: str) -> str:
    """A path as typed, or as a terminal inserts a dropped file: quoted, escaped, a
    file:// address.

    `~` stays. A path that exists as it is typed is taken so.
    """
    text = text.strip()
    if os.path.exists(os.path.expanduser(text)):
        return text
    if text.startswith("file://"):
        path = unquote(text.removeprefix("file://").removeprefix("localhost"))
        return path.lstrip("/") if os.name == "nt" else path
    with suppress(ValueError):  # a quotation mark is missing: it belongs to the name
        words = [
            word.strip('"') for word in shlex.split(text, posix=os.name == "posix")
        ]
        if len(words) == 1 and words[0] != text:
            return parse_typed_path(words[0])
    return text
