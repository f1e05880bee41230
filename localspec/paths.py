"""Paths of the program's own files and of the files it writes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from urllib.parse import unquote

import platformdirs

PACKAGE = Path(__file__).resolve().parent


def package_data_dir() -> Path:
    """Files that ship with the package: the demo pair, and the starter's head."""
    return PACKAGE / "data"


def find_bundled(file: str) -> Path:
    """The starter's model file with this name if it exists, else the demo's path."""
    starter = package_data_dir() / "starter" / file
    if starter.exists():
        return starter
    return package_data_dir() / "demo" / file


def catalog_file() -> Path:
    """models.yaml, which a wheel has beside the code.

    In an editable install it is at the root of the repository.
    """
    inside = PACKAGE / "models.yaml"
    if inside.exists():
        return inside
    return PACKAGE.parent / "models.yaml"


def data_dir() -> Path:
    """Measurements, chats and logs; LOCALSPEC_DATA_DIR overrides the place."""
    override = os.environ.get("LOCALSPEC_DATA_DIR")
    if override:
        return Path(override)
    return platformdirs.user_data_path("localspec", appauthor=False)


def chats_file() -> Path:
    """The saved chats, in a folder of their own that only its owner may enter."""
    return data_dir() / "chats" / "chats.sqlite"


def config_file() -> Path:
    """config.toml, or the file that LOCALSPEC_CONFIG names."""
    override = os.environ.get("LOCALSPEC_CONFIG")
    if override:
        return Path(override)
    folder = platformdirs.user_config_path("localspec", appauthor=False)
    return folder / "config.toml"


def user_catalog_file() -> Path:
    """The user's own models.yaml, beside config.toml."""
    return config_file().parent / "models.yaml"


def parse_typed_path(text: str) -> str:
    """A path as typed, or as a terminal inserts a dropped file.

    That is quoted, escaped, or a file:// address. `~` stays. A path that exists as it
    is typed is taken so.
    """
    text = text.strip()
    if os.path.exists(os.path.expanduser(text)):
        return text
    if text.startswith("file://"):
        path = unquote(text.removeprefix("file://").removeprefix("localhost"))
        return path.lstrip("/") if os.name == "nt" else path
    try:
        words = shlex.split(text, posix=os.name == "posix")
    except ValueError:  # a quotation mark without another: it belongs to the name
        return text
    if len(words) != 1:
        return text
    word = words[0].strip('"')
    return text if word == text else parse_typed_path(word)
