"""The user's configuration: config.toml, environment variables and command-line options."""

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

EDIT_HINT = "Fix it: localspec config edit"


@dataclass(frozen=True, slots=True)
class Config:
    """The effective values, by attribute."""

    theme: str = THEMES[0]
    ascii: bool = False
    key_bindings: Mapping[str, str] = field(default_factory=dict)
    """The user's keys, by the action ids that /keys shows."""
    download_limit: float | None = None
    """MB/s for all downloads together."""
    private_chats: bool = False
    """Whether chats are not saved: `[chats] keep = false`."""
    overflow: Literal["ask", "stop", "drop", "summarise"] = "ask"
    """Default for chats that exceed their context."""
    show_thinking: bool = False
    temperature: float | None = None
    """None: the catalogue's value for the pair."""
    spec: str = "auto"
    pair: str | None = None
    """The pair that `run` opens without arguments."""
    models_folder: Path | None = None
    offline: bool = False

    @classmethod
    def from_effective(cls, effective: EffectiveConfig) -> Config:
        get = effective.get
        folder = get("models.folder")
        return cls(
            theme=get("screen.theme"),
            ascii=get("screen.ascii"),
            key_bindings=dict(effective.key_bindings),
            download_limit=get("downloads.limit"),
            private_chats=not get("chats.keep"),
            overflow=get("chats.overflow"),
            show_thinking=get("chats.show_thinking"),
            temperature=get("answers.temperature"),
            spec=get("answers.spec"),
            pair=get("run.pair"),
            models_folder=Path(folder) if folder else None,
            offline=get("network.offline"),
        )


def load() -> Config:
    """Load the configuration. Raises UsageError with the line of the first error."""
    return Config.from_effective(resolve_strict())


def resolve_strict() -> EffectiveConfig:
    """Like `resolve`, for commands: they must not run with a wrong setting.

    Raises UsageError with the first error.
    """
    effective = resolve()
    if effective.errors:
        error = effective.errors[0]
        raise UsageError(
            error, EDIT_HINT if str(paths.config_file()) in error else "Change or unset it."
        )
    return effective


def load_lenient() -> Config:
    """Load the configuration, ignoring errors: invalid values fall back to safe ones."""
    return Config.from_effective(resolve())
