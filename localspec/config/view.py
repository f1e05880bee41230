"""What holds, and why: command line, environment, config.toml, or as it comes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from localspec import paths
from localspec.clean import clean
from localspec.config import file
from localspec.config.file import Contents, Fault
from localspec.config.table import TABLES, VALUES, Value, nearest

Origin = Literal["command line", "environment", "config.toml", "default"]

_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Held:
    """A value as it holds now."""

    value: Value
    now: Any
    origin: Origin = "default"
    where: str = "as it comes"
    """In words: the option, the variable, or the file."""

    @property
    def locked(self) -> bool:
        """Whether what the file says does not count at the moment."""
        return self.origin in ("command line", "environment")


@dataclass(frozen=True, slots=True)
class View:
    """Everything at once.  A value that is wrong holds as it comes, or carefully."""

    contents: Contents
    held: Mapping[str, Held]
    keys: Mapping[str, str] = field(default_factory=dict)
    """A person's own keys by their ids."""
    faults: tuple[str, ...] = ()
    """What must be mended, with file, line and column, or the variable."""
    warnings: tuple[str, ...] = ()
    """What nobody knows, with what was probably meant."""

    def now(self, key: str) -> Any:
        return self.held[key].now


def look(
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
    ids: frozenset[str] = frozenset(),
) -> View:
    """Read the file and the environment.  Never raises.

    `flags`: options of the command line by the variables they have set.  `ids`: those of the keys
    that can be changed; none: nobody looks whether they exist.
    """
    contents = file.read(paths.config())
    finder = _Finder(contents, os.environ if environ is None else environ, flags or {})
    held = {key: finder.held(value) for key, value in VALUES.items()}
    keys = finder.keys()
    warnings = tuple(_unknown(contents, ids))
    return View(contents, held, keys, tuple(finder.faults), warnings)


class _Finder:
    """Collects what is wrong on the way."""

    def __init__(
        self, contents: Contents, environ: Mapping[str, str], flags: Mapping[str, str]
    ) -> None:
        self._contents, self._environ, self._flags = contents, environ, flags
        damage = contents.damage
        self.faults = [damage.told(contents.path)] if damage else []

    def held(self, value: Value) -> Held:
        """The first of those who say something."""
        said = self._environ.get(value.variable, "")
        if said.strip():
            where = self._flags.get(value.variable, value.variable)
            origin: Origin = "environment" if where == value.variable else "command line"
            try:
                return Held(value, value.kind.typed(said), origin, where)
            except ValueError:
                self.faults.append(f"{where} must be {value.kind.expects}, not {_short(said)}.")
            if value.careful is not None:
                return Held(value, value.careful, origin, where)
        return self._of_file(value)

    def _of_file(self, value: Value) -> Held:
        name = self._contents.path.name
        if self._contents.damage is not None:
            return self._doubtful(value, name)
        table = self._contents.document.get(value.table, {})
        if not isinstance(table, Mapping) or value.name not in table:
            return Held(value, value.default)
        found = table[value.name]
        try:
            return Held(value, value.kind.check(found), "config.toml", name)
        except ValueError:
            what = f"{value.key} must be {value.kind.expects}, not {_short(found)}."
            self._complain(what, value.key)
            if value.careful is None:
                return Held(value, value.default)
            return Held(value, value.careful, "config.toml", f"{name} is wrong")

    def _doubtful(self, value: Value, name: str) -> Held:
        """Of a file that cannot be read: as it comes, unless privacy may have been meant."""
        text = self._contents.text
        if value.careful is None or (text and value.name not in text):
            return Held(value, value.default)
        return Held(value, value.careful, "config.toml", f"{name} is damaged")

    def _complain(self, what: str, key: str) -> None:
        self.faults.append(Fault(what, self._contents.line(key)).told(self._contents.path))

    def keys(self) -> dict[str, str]:
        """[keys], in which a dot without quotes makes a table of its own."""
        document = self._contents.document
        for table in TABLES:
            if table in document and not isinstance(document[table], Mapping):
                self._complain(f"{table} must be a table: [{table}]", table)
        own = document.get("keys", {})
        found: dict[str, str] = {}
        for id_, value in file.leaves(own) if isinstance(own, Mapping) else ():
            if isinstance(value, str) and value.strip():
                found[id_] = ",".join(part.strip() for part in value.split(","))
            elif not isinstance(value, Mapping):
                what = f"keys.{id_} must be the name of a key, in quotes, not {_short(value)}."
                self._complain(what, f"keys.{id_}")
        return found


def _unknown(contents: Contents, ids: frozenset[str]) -> Iterator[str]:
    """Keys that nobody reads; a later localspec may, so they are left where they are."""
    for key, _ in file.leaves(contents.document):
        own = key.removeprefix("keys.")
        known = key in VALUES or key in TABLES
        if known or (own != key and (not ids or own in ids)):
            continue
        near = nearest(key, ids)
        hint = f"did you mean {near}?" if near else "it is left alone."
        shown = clean(key, multiline=False)[:_LONGEST]
        yield Fault(f"there is no {shown}; {hint}", contents.line(key)).told(contents.path)


def _short(value: object) -> str:
    """What came, as the file would have it."""
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = clean(text, multiline=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
