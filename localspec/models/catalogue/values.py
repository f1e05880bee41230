"""Single values of a catalogue, read from text within their limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

from localspec.clean import clean
from localspec.models.catalogue.node import Damaged, Node

_HEX = re.compile(r"[0-9a-f]+\Z")
_COUNT = re.compile(r"([0-9]{1,15})\Z|([0-9]{1,4}(?:\.[0-9]{1,3})?)([BM])\Z")
_ROUNDED = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))? (GiB|MiB)\Z")
_LONGEST = 300


def text(node: Node) -> str:
    if not isinstance(node.value, str):
        raise Damaged("it must be a text", node.line)
    if not node.value.strip():
        raise Damaged("it is empty", node.line)
    if len(node.value) > _LONGEST:
        raise Damaged(f"it is longer than {_LONGEST} characters", node.line)
    if clean(node.value, multiline=False) != node.value:
        raise Damaged("it holds characters that are not shown", node.line)
    return node.value


def refused(node: Node, what: str) -> Damaged:
    return Damaged(f"{shown(str(node.value))} is not {what}", node.line)


def matching(test: Callable[[str], bool], what: str) -> Callable[[Node], str]:
    def read(node: Node) -> str:
        said = text(node)
        if not test(said):
            raise refused(node, what)
        return said

    return read


def one_of(words: Collection[str]) -> Callable[[Node], str]:
    return matching(words.__contains__, f"one of {', '.join(words)}")


def hexadecimal(digits: int) -> Callable[[Node], str]:
    return matching(
        lambda said: len(said) == digits and bool(_HEX.match(said)), f"{digits} hex digits"
    )


def whole(low: int, high: int) -> Callable[[Node], int]:
    def read(node: Node) -> int:
        said = text(node)
        if not (said.isascii() and said.isdigit() and len(said) <= 15):
            raise refused(node, "a whole number")
        if not low <= int(said) <= high:
            raise refused(node, f"between {low} and {high}")
        return int(said)

    return read


def count(node: Node) -> int:
    """8190735360, 8.19B or 135M."""
    found = _COUNT.match(text(node))
    if not found:
        raise refused(node, "a number like 8190735360, 8.19B or 135M")
    if found[1]:
        return int(found[1])
    return round(float(found[2]) * (10**9 if found[3] == "B" else 10**6))


def rounded(node: Node) -> int:
    """4.4 GiB: at most 4.45 GiB, in bytes."""
    found = _ROUNDED.match(text(node))
    if not found:
        raise refused(node, "a rounded size like 4.4 GiB or 378.3 MiB")
    digits = found[2] or ""
    most = int(found[1] + digits) + 0.5
    return int(most / 10 ** len(digits) * (2**30 if found[3] == "GiB" else 2**20))


def temperature(node: Node) -> float:
    said = text(node)
    if not re.fullmatch(r"[0-2](\.[0-9]{1,3})?", said) or float(said) > 2:
        raise refused(node, "a number from 0 to 2")
    return float(said)


def shown(said: str) -> str:
    """For a message: short, and harmless in a terminal."""
    words = clean(said, multiline=False)
    return repr(words if len(words) <= 60 else words[:59] + "…")
