"""Where the program's own files lie, and those it writes."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

PACKAGE = Path(__file__).resolve().parent


def package_data_dir() -> Path:
    """Files that ship with the package: the demo pair."""
    return PACKAGE / "data"


def catalog_file() -> Path:
    """models.yaml: beside the code in a wheel, at the top of the repository when editable."""
    inside = PACKAGE / "models.yaml"
    return inside if inside.exists() else PACKAGE.parent / "models.yaml"


def data_dir() -> Path:
    """What this machine has shown, and logs; LOCALSPEC_DATA_DIR puts it elsewhere."""
    chosen = os.environ.get("LOCALSPEC_DATA_DIR")
    return Path(chosen) if chosen else platformdirs.user_data_path("localspec", appauthor=False)


def chats_file() -> Path:
    """The chats that are kept: in a folder of its own, which only its person may enter."""
    return data_dir() / "chats" / "chats.sqlite"


def config_file() -> Path:
    """config.toml; LOCALSPEC_CONFIG names another file."""
    chosen = os.environ.get("LOCALSPEC_CONFIG")
    folder = platformdirs.user_config_path("localspec", appauthor=False)
    return Path(chosen) if chosen else folder / "config.toml"


def user_catalog_file() -> Path:
    """A person's own models.yaml, beside config.toml."""
    return config_file().parent / "models.yaml"
