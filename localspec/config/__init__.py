"""What a person wants otherwise than it comes: config.toml, and what goes before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from localspec import paths
from localspec.config.table import THEMES, VALUES, Value
from localspec.config.view import Held, View, look
from localspec.errors import UsageError

__all__ = ["VALUES", "Config", "Held", "Value", "View", "look", "read", "so_far", "sound"]

MEND = "Mend it: localspec config edit"


@dataclass(frozen=True, slots=True)
class Config:
    """What holds, by name, for whoever uses it."""

    theme: str = THEMES[0]
    ascii: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    """A person's own keys by their ids, as /keys shows them."""
    download_limit: float | None = None
    """MB a second that all downloads of the app may take together."""
    private: bool = False
    """Whether no chat is kept: `[chats] keep = false`."""
    overflow: Literal["ask", "stop", "drop", "summarise"] = "ask"
    """What to do where a chat outgrows its context, unless a chat is set otherwise."""
    show_thinking: bool = False
    temperature: float | None = None
    """None: the pair's own."""
    spec: str = "auto"
    pair: str | None = None
    """What `run` opens where nobody names one."""
    models_folder: Path | None = None
    offline: bool = False

    @classmethod
    def of(cls, view: View) -> Config:
        now = view.now
        folder = now("models.folder")
        return cls(
            theme=now("screen.theme"),
            ascii=now("screen.ascii"),
            keys=dict(view.keys),
            download_limit=now("downloads.limit"),
            private=not now("chats.keep"),
            overflow=now("chats.overflow"),
            show_thinking=now("chats.show_thinking"),
            temperature=now("answers.temperature"),
            spec=now("answers.spec"),
            pair=now("run.pair"),
            models_folder=Path(folder) if folder else None,
            offline=now("network.offline"),
        )


def read() -> Config:
    """What holds.  Raises UsageError where file or value are wrong, with the line."""
    return Config.of(sound())


def sound() -> View:
    """As `look`, for commands, which had better not begin with something else than was meant.

    Raises UsageError as `read` does.
    """
    view = look()
    if view.faults:
        said = view.faults[0]
        raise UsageError(said, MEND if str(paths.config()) in said else "Change or unset it.")
    return view


def so_far() -> Config:
    """What holds, as far as it can be read: for what must go on whatever stands in the file."""
    return Config.of(look())
