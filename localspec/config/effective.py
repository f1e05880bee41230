"""Effective settings and their origins: command line, environment, config.toml or
default.
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
    resolver = _SettingResolver(
        file, os.environ if environ is None else environ, flags or {}
    )
    settings = {key: resolver.resolve(option) for key, option in SETTINGS.items()}
    key_bindings = resolver.read_key_bindings()
    presets = resolver.read_presets()
    warnings = tuple(_unknown_keys(file, key_ids))
    return EffectiveConfig(
        file, settings, key_bindings, presets, tuple(resolver.errors), warnings
    )


class _SettingResolver:
    def __init__(
        self, file: ConfigFile, environ: Mapping[str, str], flags: Mapping[str, str]
    ) -> None:
        self._file, self._environ, self._flags = file, environ, flags
        self.errors = [file.error] if file.error else []

    def resolve(self, option: Option) -> EffectiveSetting:
        variable, safe_value = option.env_var, option.setting.safe_value
        text = self._environ.get(variable, "")
        if not text.strip():
            return self._resolve_from_file(option)
        given = self._environ.get(f"{OPTION_PREFIX}{variable}", variable)
        source = self._flags.get(variable, given)
        origin: Origin = "environment" if source == variable else "command line"
        try:
            return EffectiveSetting(
                option, option.value_type.parse(text), origin, source
            )
        except (ValueError, UsageError):
            expects = option.value_type.expects
            self.errors.append(
                f"{source} must be {expects}, not {_format_short(text)}."
            )
        if safe_value is None:
            return self._resolve_from_file(option)
        return EffectiveSetting(option, safe_value, origin, source)

    def _resolve_from_file(self, option: Option) -> EffectiveSetting:
        file, safe_value = self._file, option.setting.safe_value
        table_name, _, name = option.key.partition(".")
        default = EffectiveSetting(option, option.default)
        problem = "is damaged"
        if file.error:
            if safe_value is None or (file.text and name not in file.text):
                return default
            # The unreadable file may have set the value.
        else:
            table = file.document.get(table_name, {})
            if not isinstance(table, Mapping) or name not in table:
                return default
            try:
                value = option.value_type.from_toml(table[name])
                return EffectiveSetting(option, value, "config.toml", file.path.name)
            except (ValueError, TypeError, UsageError):
                expects, shown = option.value_type.expects, _format_short(table[name])
                self._add_error(
                    f"{option.key} must be {expects}, not {shown}.", option.key
                )
            if safe_value is None:
                return default
            problem = "has an error"
        return EffectiveSetting(
            option, safe_value, "config.toml", f"{file.path.name} {problem}"
        )

    def _add_error(self, message: str, key: str) -> None:
        self.errors.append(self._file.locate(message, key))

    def read_presets(self) -> dict[str, Mapping[str, Any]]:
        presets = self._file.document.get("presets", {})
        tables = presets if isinstance(presets, Mapping) else {}
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                self._add_error(
                    f"presets.{name} must be a table: [presets.{name}]", "presets"
                )
        return {
            name: table for name, table in tables.items() if isinstance(table, Mapping)
        }

    def read_key_bindings(self) -> dict[str, str]:
        """Read [keys]. An unquoted id with a dot is a nested table in TOML."""
        document = self._file.document
        for table in TABLES:
            if table in document and not isinstance(document[table], Mapping):
                self._add_error(f"{table} must be a table: [{table}]", table)
        keys = document.get("keys", {})
        bindings: dict[str, str] = {}
        for id_, value in (
            toml_file.iterate_values(keys) if isinstance(keys, Mapping) else ()
        ):
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
        id_ = key.removeprefix("keys.") if key.startswith("keys.") else None
        if key in SETTINGS or key in TABLES or key.startswith("presets."):
            continue
        if id_ is not None and (not key_ids or id_ in key_ids):
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
    return (
        text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[: _MAX_SHOWN_LENGTH - 1]}…"
    )
