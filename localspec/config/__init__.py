"""What a person wants otherwise than it comes: config.toml, and what goes before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from localspec import paths
from localspec.config.effective import EffectiveConfig, EffectiveSetting, resolve
from localspec.config.schema import SETTINGS, THEMES, SettingDefinition
from localspec.errors import UsageError

__all__ = [
    "SETTINGS",
    "Config",
    "EffectiveConfig",
    "EffectiveSetting",
    "SettingDefinition",
    "load",
    "load_lenient",
    "resolve",
    "resolve_strict",
]

EDIT_HINT = "Mend it: localspec config edit"


@dataclass(frozen=True, slots=True)
class Config:
    """What holds, by name, for whoever uses it."""

    theme: str = THEMES[0]
    ascii: bool = False
    key_bindings: Mapping[str, str] = field(default_factory=dict)
    """A person's own keys by their ids, as /keys shows them."""
    download_limit: float | None = None
    """MB a second that all downloads of the app may take together."""
    private_chats: bool = False
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
    def from_effective(cls, effective: EffectiveConfig) -> Config:
        now = effective.get
        folder = now("models.folder")
        return cls(
            theme=now("screen.theme"),
            ascii=now("screen.ascii"),
            key_bindings=dict(effective.key_bindings),
            download_limit=now("downloads.limit"),
            private_chats=not now("chats.keep"),
            overflow=now("chats.overflow"),
            show_thinking=now("chats.show_thinking"),
            temperature=now("answers.temperature"),
            spec=now("answers.spec"),
            pair=now("run.pair"),
            models_folder=Path(folder) if folder else None,
            offline=now("network.offline"),
        )


def load() -> Config:
    """What holds.  Raises UsageError where file or value are wrong, with the line."""
    return Config.from_effective(resolve_strict())


def resolve_strict() -> EffectiveConfig:
    """As `look`, for commands, which had better not begin with something else than was meant.

    Raises UsageError as `read` does.
    """
    view = resolve()
    if view.errors:
        said = view.errors[0]
        raise UsageError(
            said, EDIT_HINT if str(paths.config_file()) in said else "Change or unset it."
        )
    return view


def load_lenient() -> Config:
    """What holds, as far as it can be read: for what must go on whatever stands in the file."""
    return Config.from_effective(resolve())
