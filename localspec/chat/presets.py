"""Presets: named system prompts and settings, stored in config.toml as [presets.NAME]."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec import config
from localspec.chat.settings import (
    CHAT_SETTING_FIELDS,
    ChatSettings,
    parse_context_size,
)
from localspec.config import other_spellings, toml_file
from localspec.errors import NotFoundError, UsageError
from localspec.sanitize import sanitize


class Preset(Struct, frozen=True):
    """What `/preset NAME` sets; what it does not name, a chat keeps."""

    name: str
    values: Mapping[str, Any]
    """As in the file: `system`, `ctx`, and the settings that `/set` knows."""

    @property
    def system(self) -> str | None:
        """The system prompt; None: the preset has none, and the chat keeps its own."""
        system = self.values.get("system")
        return None if system is None else str(system)

    @property
    def setting_names(self) -> list[str]:
        """What the preset sets, as `/set` knows it."""
        return [key for key in self.values if key not in ("system", "ctx")]

    def apply(self, settings: ChatSettings) -> ChatSettings:
        """Return the settings with those of the preset. Raises UsageError."""
        for key, value in self.values.items():
            try:
                settings = _apply_value(settings, key, value)
            except UsageError as error:
                message = f"presets.{self.name}.{sanitize(key, multiline=False)}: {error.message}"
                raise UsageError(message, f"{error.hint} {config.EDIT_HINT}") from error
        return settings

    @property
    def summary(self) -> str:
        """One line: the settings, then the system prompt."""
        texts = [
            f"{key} {_format(value)}"
            for key, value in self.values.items()
            if key != "system"
        ]
        if self.system:
            texts.append(self.system)
        return sanitize(" · ".join(texts), multiline=False)


def _apply_value(settings: ChatSettings, key: str, value: object) -> ChatSettings:
    if key == "system":
        if not isinstance(value, str):
            raise UsageError("The system prompt must be a text in quotes.", "")
        return settings
    if "ctx" in (key, other_spellings.find_option_name(key)):
        return replace(settings, ctx=parse_context_size(str(value)))
    return settings.with_value(key, _format(value))


def _format(value: object) -> str:
    """A value of the file as one would type it after `/set NAME`.

    `true` becomes `on`, 0.80 becomes `0.8`, and a list of stop strings becomes JSON.
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def load() -> dict[str, Preset]:
    """By name, in the order of the file."""
    return {
        name: Preset(name, values) for name, values in config.resolve().presets.items()
    }


def find(name: str) -> Preset:
    """Raises NotFoundError."""
    presets = load()
    if name not in presets:
        shown = sanitize(name, multiline=False)[:40]
        hint = "Save one: /preset save NAME"
        if presets:
            hint = f"Presets: {', '.join(presets)}."
        raise NotFoundError(f"There is no preset {shown!r}.", hint)
    return presets[name]


def save(name: str, system: str, settings: ChatSettings) -> Preset:
    """Write the system prompt and what differs from the default settings.

    Raises LocalspecError.
    """
    if not re.fullmatch(r"[\w-]{1,40}", name):
        shown = sanitize(name, multiline=False)[:40]
        message = f"A preset cannot be called {shown!r}."
        raise UsageError(message, "Use letters, digits, - and _.")
    values: dict[str, Any] = {}
    if system:
        values["system"] = system
    defaults = ChatSettings()
    for option in CHAT_SETTING_FIELDS.values():
        value = settings.get(option)
        if value == defaults.get(option):
            continue
        if not isinstance(value, bool | int | float):
            value = option.value_type.format(value)
        values[option.name] = value
    if settings.ctx is not None:
        values["ctx"] = settings.ctx
    toml_file.set_value(f"presets.{name}", values)
    return Preset(name, values)


def remove(name: str) -> None:
    """Raises NotFoundError."""
    find(name)
    toml_file.set_value(f"presets.{name}", None)
