"""Values of a catalogue: YAML nodes, and readers that validate them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from localspec.lazy_dataclass import dataclass
from localspec.sanitize import sanitize

_HEX = re.compile(r"[0-9a-f]+\Z")
_COUNT = re.compile(r"([0-9]{1,15})\Z|([0-9]{1,4}(?:\.[0-9]{1,3})?)([BM])\Z")
_ROUNDED = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))? (GiB|MiB)\Z")
_MAX_TEXT_LENGTH = 300


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and the line where it begins."""

    value: str | list[YamlNode] | dict[str, YamlNode]
    line: int


class InvalidCatalogError(Exception):
    """The reason, and the line if it is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def read_text(node: YamlNode) -> str:
    if not isinstance(node.value, str):
        raise InvalidCatalogError("it must be text", node.line)
    if not node.value.strip():
        raise InvalidCatalogError("it is empty", node.line)
    if len(node.value) > _MAX_TEXT_LENGTH:
        raise InvalidCatalogError(f"it is longer than {_MAX_TEXT_LENGTH} characters", node.line)
    if sanitize(node.value, multiline=False) != node.value:
        raise InvalidCatalogError("it contains control characters", node.line)
    return node.value


def invalid_value(node: YamlNode, expected: str) -> InvalidCatalogError:
    return InvalidCatalogError(f"{quote(str(node.value))} is not {expected}", node.line)


def text_matching(test: Callable[[str], bool], expected: str) -> Callable[[YamlNode], str]:
    """A reader of texts that pass `test`; `expected` describes them in errors."""

    def read(node: YamlNode) -> str:
        text = read_text(node)
        if not test(text):
            raise invalid_value(node, expected)
        return text

    return read


def one_of(values: Collection[str]) -> Callable[[YamlNode], str]:
    return text_matching(values.__contains__, f"one of {', '.join(values)}")


def hex_digits(digits: int) -> Callable[[YamlNode], str]:
    return text_matching(
        lambda text: len(text) == digits and bool(_HEX.match(text)), f"{digits} hex digits"
    )


def integer_between(low: int, high: int) -> Callable[[YamlNode], int]:
    def read(node: YamlNode) -> int:
        text = read_text(node)
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise invalid_value(node, "a whole number")
        if not low <= int(text) <= high:
            raise invalid_value(node, f"between {low} and {high}")
        return int(text)

    return read


def read_count(node: YamlNode) -> int:
    """8190735360, 8.19B or 135M."""
    count = _COUNT.match(read_text(node))
    if not count:
        raise invalid_value(node, "a number like 8190735360, 8.19B or 135M")
    if count[1]:
        return int(count[1])
    return round(float(count[2]) * (10**9 if count[3] == "B" else 10**6))


def read_rounded_size(node: YamlNode) -> int:
    """The largest size in bytes that rounds to the text: 4.4 GiB is at most 4.45 GiB."""
    size = _ROUNDED.match(read_text(node))
    if not size:
        raise invalid_value(node, "a rounded size like 4.4 GiB or 378.3 MiB")
    digits = size[2] or ""
    upper_bound = int(size[1] + digits) + 0.5
    return int(upper_bound / 10 ** len(digits) * (2**30 if size[3] == "GiB" else 2**20))


def read_temperature(node: YamlNode) -> float:
    text = read_text(node)
    if not re.fullmatch(r"[0-2](\.[0-9]{1,3})?", text) or float(text) > 2:
        raise invalid_value(node, "a number from 0 to 2")
    return float(text)


def quote(text: str) -> str:
    shown = sanitize(text, multiline=False)
    return repr(shown if len(shown) <= 60 else shown[:59] + "…")


def read_table(node: YamlNode) -> dict[str, YamlNode]:
    if not isinstance(node.value, dict):
        raise InvalidCatalogError("an entry must be a table of keys and values", node.line)
    return node.value


def read_fields(
    node: YamlNode, readers: Mapping[str, Callable[[YamlNode], Any]], required: Collection[str]
) -> dict[str, Any]:
    """The values of a table by key.  Raises InvalidCatalogError with line, key and reason."""
    table = read_table(node)
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in readers:
            raise InvalidCatalogError(f"unknown key {quote(key)}", value.line)
        try:
            fields[key] = readers[key](value)
        except InvalidCatalogError as error:
            raise InvalidCatalogError(f"key {key}: {error.reason}", error.line) from None
    for key in required:
        if key not in table:
            raise InvalidCatalogError(f"key {key} is missing", node.line)
    return fields
