"""The value of every setting, and its origin.

The command line overrides the environment, which overrides config.toml, which overrides
the default. The command line sets the variable of the environment, so that child
processes have the same settings; a second variable (`OPTION_PREFIX`) names the option.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from localspec import paths
from localspec.config import toml_file
from localspec.config.option_types import Option
from localspec.config.options import SETTINGS, TABLES, find_nearest_key
from localspec.config.toml_file import ConfigFile
from localspec.errors import UsageError
from localspec.sanitize import sanitize

Origin = Literal["command line", "environment", "config.toml", "default"]

OPTION_PREFIX = "LOCALSPEC_OPTION_"
"""Before a variable's name: which command-line option set that variable."""
_MAX_SHOWN_LENGTH = 40
_FREE_TABLES = ("presets.", "tools.servers")
"""Beginnings of keys whose names a person chooses, and which others check."""


class EffectiveSetting(Struct, frozen=True):
    option: Option
    current: Any
    origin: Origin = "default"
    # The option, the variable, the file name, or `default`.
    origin_text: str = "default"

    @property
    def is_overridden(self) -> bool:
        """Whether the command line or the environment overrides the file."""
        return self.origin in ("command line", "environment")


class EffectiveConfig(Struct, frozen=True):
    """All settings. Invalid values fall back to the default, or to the safer option."""

    file: ConfigFile
    settings: Mapping[str, EffectiveSetting]
    # The user's keys, by action id.
    key_bindings: Mapping[str, str] = field(default_factory=dict)
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The tables of [presets], by name; their values are not checked here."""
    errors: tuple[str, ...] = ()
    """Invalid values, each with file, line and column, or with the variable."""
    # Unknown keys, each with the most similar known key.
    warnings: tuple[str, ...] = ()

    def get(self, key: str) -> Any:
        """The value of a setting; its type is that of the definition."""
        return self.settings[key].current


def resolve(
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    key_ids: Collection[str] = (),
) -> EffectiveConfig:
    """Read the file and the environment.  Never raises.

    `flags` maps environment variables to the command-line options that set them.
    `key_ids` are the known action ids of [keys]; without any, they are not checked.
    """
    file = toml_file.read(paths.config_file())
    if environ is None:
        environ = os.environ
    resolver = _SettingResolver(file, environ, flags or {})
    # All of these add to the resolver's errors.
    settings = {key: resolver.resolve(option) for key, option in SETTINGS.items()}
    key_bindings = resolver.read_key_bindings()
    presets = resolver.read_presets()
    return EffectiveConfig(
        file=file,
        settings=settings,
        key_bindings=key_bindings,
        presets=presets,
        errors=tuple(resolver.errors),
        warnings=tuple(_unknown_keys(file, key_ids)),
    )


class _SettingResolver:
    """Reads the environment and the file, and collects their errors.

    An invalid value falls back to what would hold without it. For settings of privacy
    that would be the wrong side: `HF_HUB_OFFLINE=yess` must not go online. They have a
    `safe_value`, which is used instead.
    """

    def __init__(
        self, file: ConfigFile, environ: Mapping[str, str], flags: Mapping[str, str]
    ) -> None:
        self._file = file
        self._environ = environ
        self._flags = flags
        self.errors = [file.error] if file.error else []

    def resolve(self, option: Option) -> EffectiveSetting:
        variable = option.env_var
        text = self._environ.get(variable, "")
        if not text.strip():
            return self._resolve_from_file(option)
        set_by = self._environ.get(f"{OPTION_PREFIX}{variable}", variable)
        source = self._flags.get(variable, set_by)
        origin: Origin = "environment" if source == variable else "command line"
        try:
            value = option.value_type.parse(text)
        except (ValueError, UsageError):
            expects = option.value_type.expects
            self.errors.append(
                f"{source} must be {expects}, not {_format_short(text)}."
            )
            value = option.setting.safe_value
            if value is None:
                return self._resolve_from_file(option)
        return EffectiveSetting(option, value, origin, source)

    def _resolve_from_file(self, option: Option) -> EffectiveSetting:
        file = self._file
        default = EffectiveSetting(option, option.default)
        table_name, _, name = option.key.partition(".")
        if file.error:
            may_set_it = not file.text or name in file.text
            if may_set_it and option.setting.safe_value is not None:
                return self._make_safe(option, "is damaged")
            return default
        table = file.document.get(table_name, {})
        if not isinstance(table, Mapping) or name not in table:
            return default
        try:
            value = option.value_type.from_toml(table[name])
        except (ValueError, TypeError, UsageError):
            expects = option.value_type.expects
            shown = _format_short(table[name])
            self._add_error(f"{option.key} must be {expects}, not {shown}.", option.key)
            if option.setting.safe_value is None:
                return default
            return self._make_safe(option, "has an error")
        return EffectiveSetting(option, value, "config.toml", file.path.name)

    def _make_safe(self, option: Option, problem: str) -> EffectiveSetting:
        origin_text = f"{self._file.path.name} {problem}"
        value = option.setting.safe_value
        return EffectiveSetting(option, value, "config.toml", origin_text)

    def _add_error(self, message: str, key: str) -> None:
        self.errors.append(self._file.locate(message, key))

    def read_presets(self) -> dict[str, Mapping[str, Any]]:
        """Read the tables of [presets]; `chat/presets.py` checks their values."""
        document = self._file.document.get("presets", {})
        presets: dict[str, Mapping[str, Any]] = {}
        if not isinstance(document, Mapping):
            return presets
        for name, table in document.items():
            if isinstance(table, Mapping):
                presets[name] = table
            else:
                message = f"presets.{name} must be a table: [presets.{name}]"
                self._add_error(message, "presets")
        return presets

    def read_key_bindings(self) -> dict[str, str]:
        """Read [keys]. An unquoted id with a dot is a nested table in TOML."""
        document = self._file.document
        for table in TABLES:
            if table in document and not isinstance(document[table], Mapping):
                self._add_error(f"{table} must be a table: [{table}]", table)
        bindings: dict[str, str] = {}
        keys = document.get("keys", {})
        if not isinstance(keys, Mapping):
            return bindings
        for id_, value in toml_file.iterate_values(keys):
            if isinstance(value, str) and value.strip():
                bindings[id_] = ",".join(part.strip() for part in value.split(","))
            elif not isinstance(value, Mapping):
                shown = _format_short(value)
                message = (
                    f"keys.{id_} must be the name of a key, in quotes, not {shown}."
                )
                self._add_error(message, f"keys.{id_}")
        return bindings


def _unknown_keys(file: ConfigFile, key_ids: Collection[str]) -> Iterator[str]:
    """Warn of each unknown key.

    The file keeps them: a newer localspec may use them.
    """
    for key, _ in toml_file.iterate_values(file.document):
        if key in SETTINGS or key in TABLES or key.startswith(_FREE_TABLES):
            continue
        if key.startswith("keys."):
            id_ = key.removeprefix("keys.")
            if not key_ids or id_ in key_ids:
                continue
        near = find_nearest_key(key, frozenset(key_ids))
        hint = f"did you mean {near}?" if near else "it is ignored."
        yield file.locate(f"unknown setting {key[:_MAX_SHOWN_LENGTH]}; {hint}", key)


def _format_short(value: object) -> str:
    """Format a wrong value as in the file, cut to one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = sanitize(text, multiline=False)
    if len(text) > _MAX_SHOWN_LENGTH:
        text = f"{text[: _MAX_SHOWN_LENGTH - 1]}…"
    return text
