"""The file as it stands on the disk: its text, its tables, and where in it something is wrong."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localspec.clean import clean

_LARGEST = 1_000_000
_PLACE = re.compile(r"(.*) \(at line (\d+), column (\d+)\)", re.DOTALL)
_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where, as far as that is known."""

    what: str
    line: int = 0
    column: int = 0

    def told(self, path: Path) -> str:
        """`config.toml:3:9: what`, as editors and compilers write it."""
        place = "".join(f":{number}" for number in (self.line, self.column) if number)
        return clean(f"{path}{place}: {self.what}", multiline=False)


@dataclass(frozen=True, slots=True)
class Contents:
    """`damage` is set where the file cannot be read: then nothing may be written, either."""

    path: Path
    text: str = ""
    document: Mapping[str, Any] = field(default_factory=dict)
    there: bool = False
    damage: Fault | None = None

    def line(self, key: str) -> int:
        """Where a key is set; 0 where nobody can say."""
        return next((number for number, found in _keys(self.text) if found == key), 0)


def read(path: Path) -> Contents:
    """Never raises: what is wrong with the file is part of the answer."""
    try:
        if path.stat().st_size > _LARGEST:
            return Contents(path, there=True, damage=Fault("it is too large"))
        # Notepad begins a file with a mark that TOML does not know.
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        return Contents(path)
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        return Contents(path, there=True, damage=Fault("it is no UTF-8 text", line))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return Contents(path, there=True, damage=Fault(f"it cannot be read: {why}"))
    try:
        return Contents(path, text, tomllib.loads(text), there=True)
    except (ValueError, RecursionError) as error:
        return Contents(path, text, there=True, damage=_damage(str(error), text))


def _damage(said: str, text: str) -> Fault:
    """tomllib's words, with line and column out of them."""
    found = _PLACE.fullmatch(said)
    if found is not None:
        return Fault(found[1][:1].lower() + found[1][1:], int(found[2]), int(found[3]))
    what = said.replace(" (at end of document)", "")
    lines = text.splitlines() or [""]
    return Fault(f"{what[:1].lower()}{what[1:]}", len(lines), len(lines[-1]) + 1)


def leaves(document: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Every value with its dotted key."""
    for name, value in document.items():
        key = f"{table}.{name}" if table else name
        if isinstance(value, Mapping) and value:
            yield from leaves(value, key)
        else:
            yield key, value


def _keys(text: str) -> Iterator[tuple[int, str]]:
    """Lines that set something, with the key; of texts over several lines it may see too many."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.fullmatch(line)) is not None:
            table = f"{_plain(header[1])}."
            yield number, _plain(header[1])
        elif (found := _KEY.match(line)) is not None:
            yield number, table + _plain(found[1])


def _plain(key: str) -> str:
    """Without quotes, and without spaces around the dots."""
    return ".".join("".join(part) for part in _PART.findall(key))
