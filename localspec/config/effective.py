"""What holds, and why: command line, environment, config.toml, or as it comes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from localspec import paths
from localspec.config import toml_file
from localspec.config.schema import SETTINGS, TABLES, SettingDefinition, find_nearest_key
from localspec.config.toml_file import ConfigDiagnostic, ConfigFile
from localspec.sanitize import sanitize

Origin = Literal["command line", "environment", "config.toml", "default"]

_MAX_SHOWN_LENGTH = 40


@dataclass(frozen=True, slots=True)
class EffectiveSetting:
    """A value as it holds now."""

    definition: SettingDefinition
    current: Any
    origin: Origin = "default"
    origin_text: str = "as it comes"
    """In words: the option, the variable, or the file."""

    @property
    def is_overridden(self) -> bool:
        """Whether what the file says does not count at the moment."""
        return self.origin in ("command line", "environment")


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """Everything at once.  A value that is wrong holds as it comes, or carefully."""

    file: ConfigFile
    settings: Mapping[str, EffectiveSetting]
    key_bindings: Mapping[str, str] = field(default_factory=dict)
    """A person's own keys by their ids."""
    errors: tuple[str, ...] = ()
    """What must be mended, with file, line and column, or the variable."""
    warnings: tuple[str, ...] = ()
    """What nobody knows, with what was probably meant."""

    def get(self, key: str) -> Any:
        return self.settings[key].current


def resolve(
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    key_ids: frozenset[str] = frozenset(),
) -> EffectiveConfig:
    """Read the file and the environment.  Never raises.

    `flags`: options of the command line by the variables they have set.  `ids`: those of the keys
    that can be changed; none: nobody looks whether they exist.
    """
    contents = toml_file.read(paths.config_file())
    finder = _SettingResolver(contents, os.environ if environ is None else environ, flags or {})
    held = {key: finder.resolve(value) for key, value in SETTINGS.items()}
    keys = finder.read_key_bindings()
    warnings = tuple(_unknown_keys(contents, key_ids))
    return EffectiveConfig(contents, held, keys, tuple(finder.errors), warnings)


class _SettingResolver:
    """Collects what is wrong on the way."""

    def __init__(
        self, config_file: ConfigFile, environ: Mapping[str, str], flags: Mapping[str, str]
    ) -> None:
        self._file, self._environ, self._flags = config_file, environ, flags
        damage = config_file.error
        self.errors = [damage.format(config_file.path)] if damage else []

    def resolve(self, value: SettingDefinition) -> EffectiveSetting:
        """The first of those who say something."""
        said = self._environ.get(value.env_var, "")
        if said.strip():
            where = self._flags.get(value.env_var, value.env_var)
            origin: Origin = "environment" if where == value.env_var else "command line"
            try:
                return EffectiveSetting(value, value.value_type.parse(said), origin, where)
            except ValueError:
                self.errors.append(
                    f"{where} must be {value.value_type.expects}, not {_format_short(said)}."
                )
            if value.safe_value is not None:
                return EffectiveSetting(value, value.safe_value, origin, where)
        return self._resolve_from_file(value)

    def _resolve_from_file(self, value: SettingDefinition) -> EffectiveSetting:
        name = self._file.path.name
        if self._file.error is not None:
            return self._resolve_unreadable(value, name)
        table = self._file.document.get(value.table, {})
        if not isinstance(table, Mapping) or value.name not in table:
            return EffectiveSetting(value, value.default)
        found = table[value.name]
        try:
            return EffectiveSetting(value, value.value_type.validate(found), "config.toml", name)
        except ValueError:
            what = f"{value.key} must be {value.value_type.expects}, not {_format_short(found)}."
            self._add_error(what, value.key)
            if value.safe_value is None:
                return EffectiveSetting(value, value.default)
            return EffectiveSetting(value, value.safe_value, "config.toml", f"{name} is wrong")

    def _resolve_unreadable(self, value: SettingDefinition, name: str) -> EffectiveSetting:
        """Of a file that cannot be read: as it comes, unless privacy may have been meant."""
        text = self._file.text
        if value.safe_value is None or (text and value.name not in text):
            return EffectiveSetting(value, value.default)
        return EffectiveSetting(value, value.safe_value, "config.toml", f"{name} is damaged")

    def _add_error(self, message: str, key: str) -> None:
        self.errors.append(
            ConfigDiagnostic(message, self._file.find_line(key)).format(self._file.path)
        )

    def read_key_bindings(self) -> dict[str, str]:
        """[keys], in which a dot without quotes makes a table of its own."""
        document = self._file.document
        for table in TABLES:
            if table in document and not isinstance(document[table], Mapping):
                self._add_error(f"{table} must be a table: [{table}]", table)
        own = document.get("keys", {})
        found: dict[str, str] = {}
        for id_, value in toml_file.iterate_values(own) if isinstance(own, Mapping) else ():
            if isinstance(value, str) and value.strip():
                found[id_] = ",".join(part.strip() for part in value.split(","))
            elif not isinstance(value, Mapping):
                what = (
                    f"keys.{id_} must be the name of a key, in quotes, not {_format_short(value)}."
                )
                self._add_error(what, f"keys.{id_}")
        return found


def _unknown_keys(config_file: ConfigFile, key_ids: frozenset[str]) -> Iterator[str]:
    """Keys that nobody reads; a later localspec may, so they are left where they are."""
    for key, _ in toml_file.iterate_values(config_file.document):
        own = key.removeprefix("keys.")
        known = key in SETTINGS or key in TABLES
        if known or (own != key and (not key_ids or own in key_ids)):
            continue
        near = find_nearest_key(key, key_ids)
        hint = f"did you mean {near}?" if near else "it is left alone."
        shown = sanitize(key, multiline=False)[:_MAX_SHOWN_LENGTH]
        yield ConfigDiagnostic(f"there is no {shown}; {hint}", config_file.find_line(key)).format(
            config_file.path
        )


def _format_short(value: object) -> str:
    """What came, as the file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = sanitize(text, multiline=False)
    return text if len(text) <= _MAX_SHOWN_LENGTH else f"{text[: _MAX_SHOWN_LENGTH - 1]}…"
