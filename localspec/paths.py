"""Paths of the program's own files and of the files it writes."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

PACKAGE = Path(__file__).resolve().parent


def package_data_dir() -> Path:
    """Files that ship with the package: the demo pair, and the starter's head."""
    return PACKAGE / "data"


def find_bundled(file: str) -> Path:
    """The model file with this name, in the folder that has it; else where a demo's would be."""
    starter = package_data_dir() / "starter" / file
    return starter if starter.exists() else package_data_dir() / "demo" / file


def catalog_file() -> Path:
    """models.yaml: beside the code in a wheel, at the repository root in an editable install."""
    inside = PACKAGE / "models.yaml"
    return inside if inside.exists() else PACKAGE.parent / "models.yaml"


def data_dir() -> Path:
    """Measurements, chats and logs; LOCALSPEC_DATA_DIR overrides the place."""
    override = os.environ.get("LOCALSPEC_DATA_DIR")
    return Path(override) if override else platformdirs.user_data_path("localspec", appauthor=False)


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
