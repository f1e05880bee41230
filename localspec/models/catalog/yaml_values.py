"""Single values of a catalogue, read from text within their limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from localspec.sanitize import sanitize

_HEX = re.compile(r"[0-9a-f]+\Z")
_COUNT = re.compile(r"([0-9]{1,15})\Z|([0-9]{1,4}(?:\.[0-9]{1,3})?)([BM])\Z")
_ROUNDED = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))? (GiB|MiB)\Z")
_MAX_TEXT_LENGTH = 300


def read_text(node: YamlNode) -> str:
    if not isinstance(node.value, str):
        raise InvalidCatalogError("it must be a text", node.line)
    if not node.value.strip():
        raise InvalidCatalogError("it is empty", node.line)
    if len(node.value) > _MAX_TEXT_LENGTH:
        raise InvalidCatalogError(f"it is longer than {_MAX_TEXT_LENGTH} characters", node.line)
    if sanitize(node.value, multiline=False) != node.value:
        raise InvalidCatalogError("it holds characters that are not shown", node.line)
    return node.value


def invalid_value(node: YamlNode, what: str) -> InvalidCatalogError:
    return InvalidCatalogError(f"{quote(str(node.value))} is not {what}", node.line)


def text_matching(test: Callable[[str], bool], what: str) -> Callable[[YamlNode], str]:
    def read(node: YamlNode) -> str:
        said = read_text(node)
        if not test(said):
            raise invalid_value(node, what)
        return said

    return read


def one_of(words: Collection[str]) -> Callable[[YamlNode], str]:
    return text_matching(words.__contains__, f"one of {', '.join(words)}")


def hex_digits(digits: int) -> Callable[[YamlNode], str]:
    return text_matching(
        lambda said: len(said) == digits and bool(_HEX.match(said)), f"{digits} hex digits"
    )


def integer_between(low: int, high: int) -> Callable[[YamlNode], int]:
    def read(node: YamlNode) -> int:
        said = read_text(node)
        if not (said.isascii() and said.isdigit() and len(said) <= 15):
            raise invalid_value(node, "a whole number")
        if not low <= int(said) <= high:
            raise invalid_value(node, f"between {low} and {high}")
        return int(said)

    return read


def read_count(node: YamlNode) -> int:
    """8190735360, 8.19B or 135M."""
    found = _COUNT.match(read_text(node))
    if not found:
        raise invalid_value(node, "a number like 8190735360, 8.19B or 135M")
    if found[1]:
        return int(found[1])
    return round(float(found[2]) * (10**9 if found[3] == "B" else 10**6))


def read_rounded_size(node: YamlNode) -> int:
    """4.4 GiB: at most 4.45 GiB, in bytes."""
    found = _ROUNDED.match(read_text(node))
    if not found:
        raise invalid_value(node, "a rounded size like 4.4 GiB or 378.3 MiB")
    digits = found[2] or ""
    most = int(found[1] + digits) + 0.5
    return int(most / 10 ** len(digits) * (2**30 if found[3] == "GiB" else 2**20))


def read_temperature(node: YamlNode) -> float:
    said = read_text(node)
    if not re.fullmatch(r"[0-2](\.[0-9]{1,3})?", said) or float(said) > 2:
        raise invalid_value(node, "a number from 0 to 2")
    return float(said)


def quote(text: str) -> str:
    """For a message: short, and harmless in a terminal."""
    words = sanitize(text, multiline=False)
    return repr(words if len(words) <= 60 else words[:59] + "…")


# --- A value of a YAML file with its line, and what can be wrong with one.  Needs no YAML library.


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and the line it begins in."""

    value: str | list[YamlNode] | dict[str, YamlNode]
    line: int


class InvalidCatalogError(Exception):
    """The text cannot be read: why, and the line where that is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


# --- A table of keys and values, each read by what its key wants.


def read_table(node: YamlNode) -> dict[str, YamlNode]:
    """Raises Damaged: the node is no table."""
    if not isinstance(node.value, dict):
        raise InvalidCatalogError("an entry must be a table of keys and values", node.line)
    return node.value


def read_fields(
    node: YamlNode, readers: Mapping[str, Callable[[YamlNode], Any]], required: Collection[str]
) -> dict[str, Any]:
    """The values by key.  Raises Damaged with line, key and reason."""
    table = read_table(node)
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in readers:
            raise InvalidCatalogError(f"key {quote(key)}: there is no such key", value.line)
        try:
            found[key] = readers[key](value)
        except InvalidCatalogError as error:
            raise InvalidCatalogError(f"key {key}: {error.reason}", error.line) from None
    for key in required:
        if key not in table:
            raise InvalidCatalogError(f"key {key}: it is missing", node.line)
    return found
