"""What a person wants otherwise than it comes: config.toml, read and never written here."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import Any, Literal

from localspec import paths
from localspec.clean import clean
from localspec.errors import UsageError

_LARGEST = 1_000_000


@dataclass(frozen=True, slots=True)
class Config:
    """The known parts; others are left alone."""

    theme: str | None = None
    ascii: bool = False
    keys: dict[str, str] = field(default_factory=dict)
    """A person's own keys by their ids, as /keys shows them."""
    download_limit: float | None = None
    """MB a second that all downloads of the app may take together."""
    private: bool = False
    """Whether no chat is kept: `[chats] keep = false`."""
    overflow: Literal["ask", "stop", "drop", "summarise"] = "ask"
    """What to do where a chat outgrows its context, unless a chat is set otherwise."""


def read() -> Config:
    """Of config.toml, or the defaults where there is none.

    Raises UsageError where the file is damaged, with the line.
    """
    path = paths.config()
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return _config(document)
    except FileNotFoundError:
        return Config()
    except (OSError, ValueError) as error:
        what = clean(f"{path} cannot be used: {error}", multiline=False)
        raise UsageError(what, "Mend or remove it.") from error


def _config(document: dict[str, Any]) -> Config:
    screen, keys = document.get("screen", {}), document.get("keys", {})
    downloads, chats = document.get("downloads", {}), document.get("chats", {})
    if not all(isinstance(table, dict) for table in (screen, keys, downloads, chats)):
        raise ValueError("[screen], [keys], [downloads] and [chats] must be tables")
    theme = screen.get("theme")
    if theme is not None and not isinstance(theme, str):
        raise ValueError("screen.theme must be a name in quotes")
    if not all(isinstance(value, str) for value in keys.values()):
        raise ValueError("[keys] must be names of keys in quotes")
    limit = downloads.get("limit")
    if limit is not None and not (isinstance(limit, int | float) and limit > 0):
        raise ValueError("downloads.limit must be a number of MB a second")
    keep, overflow = chats.get("keep", True), chats.get("overflow", "ask")
    if not isinstance(keep, bool):
        raise ValueError("chats.keep must be true or false")
    if overflow not in ("ask", "stop", "drop", "summarise"):
        raise ValueError('chats.overflow must be "ask", "stop", "drop" or "summarise"')
    return Config(theme, bool(screen.get("ascii", False)), dict(keys), limit, not keep, overflow)
