"""Paths of the program's own files and of the files it writes."""

from __future__ import annotations

import os
import shlex
from enum import StrEnum
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


class DataFile(StrEnum):
    """All files and folders of the data folder, by their paths in it.

    Whatever is read from one of them is checked first: any may be damaged, missing, or
    something else. `tests/test_own_files.py` damages each.
    """

    # Databases. Only the owner may enter the folder of the chats.
    CHATS = "chats/chats.sqlite"
    SEARCH_INDEX = "chats/words.sqlite"
    MEASUREMENTS = "measured.sqlite"
    # Lists and tables that `data_files` reads.
    OPENED_PAIRS = "recent.json"
    LAST_RUN = "last.json"
    PINNED_CHATS = "pinned.json"
    DOWNLOADS = "downloads.json"
    CHECKSUMS = "verified.json"
    TYPE_SPEEDS = "cpu-types.json"
    DISMISSED = "dismissed.json"
    SUGGESTED_CONVERSIONS = "suggested-conversions.json"
    USED_COPIES = "used-copies.json"
    APPROVALS = "tool-approvals.json"
    # Text that only people read, and files that only exist.
    ENGINE_LOG = "engine.log"
    OLDER_ENGINE_LOG = "engine.log.1"
    CRASH_LOG = "crash.log"
    WELCOMED = "welcomed"
    REPAIR_LOCK = "chats/repair.lock"
    CONVERSION_LOCK = "conversion.lock"
    USED_ANOTHER_MODEL = "used-another-model"
    # Folders.
    CHAT_LOCKS = "chats/open"
    HEADERS = "headers"
    CONVERTED = "converted"
    RPC_LIBRARIES = "rpc"

    @property
    def path(self) -> Path:
        return data_dir() / self.value

    @property
    def is_folder(self) -> bool:
        return self in _DATA_FOLDERS


_DATA_FOLDERS = (
    DataFile.CHAT_LOCKS,
    DataFile.HEADERS,
    DataFile.CONVERTED,
    DataFile.RPC_LIBRARIES,
)


def chats_file() -> Path:
    """The saved chats."""
    return DataFile.CHATS.path


def config_file() -> Path:
    """config.toml, or the file that LOCALSPEC_CONFIG names."""
    override = os.environ.get("LOCALSPEC_CONFIG")
    if override:
        return Path(override)
    folder = platformdirs.user_config_path("localspec", appauthor=False)
    return folder / "config.toml"


def mcp_file() -> Path:
    """mcp.json, beside config.toml: MCP servers as other programs write them."""
    return config_file().parent / "mcp.json"


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
