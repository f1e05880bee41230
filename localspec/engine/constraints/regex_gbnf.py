"""Regular expressions to GBNF, for the text of a JSON string; what GBNF cannot say is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from re import _parser as parser  # type: ignore[attr-defined]  # the parser of `re`
from typing import Any

from localspec.errors import GrammarError

_Ranges = list[tuple[int, int]]
"""Code points, both ends included."""

_END = 0x10FFFF
_CATEGORIES: dict[str, _Ranges] = {
    "DIGIT": [(0x30, 0x39)],
    "WORD": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
    "SPACE": [(0x09, 0x0D), (0x20, 0x20)],
}
_ESCAPED: _Ranges = [(0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)]
"""Not written as themselves in a JSON string."""
_ANY_CHARACTERS = "char*"
"""The rule for one character of a JSON string, repeated."""


def pattern_to_gbnf(pattern: str) -> str:
    """An expression for what may stand between the quotes. Raises GrammarError."""
    try:
        nodes = list(parser.parse(pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise GrammarError(f"The pattern {pattern[:60]!r} is not valid: {error}.") from error
    parts: list[str] = []
    if nodes and _is_anchor(nodes[0], "AT_BEGINNING"):
        nodes = nodes[1:]
    else:
        parts.append(_ANY_CHARACTERS)
    is_open = not (nodes and _is_anchor(nodes[-1], "AT_END"))
    parts += [_convert(node, pattern) for node in (nodes if is_open else nodes[:-1])]
    return " ".join([*parts, *([_ANY_CHARACTERS] if is_open else [])]) or '""'


def _is_anchor(node: tuple[Any, Any], name: str) -> bool:
    return str(node[0]) == "AT" and str(node[1]) == name


def _convert(node: tuple[Any, Any], pattern: str) -> str:
    name, value = str(node[0]), node[1]
    if name in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        return _characters(_ranges(name, value))
    if name in ("MAX_REPEAT", "MIN_REPEAT"):
        low, high, inner = value
        is_open = high == parser.MAXREPEAT
        if low > 2000 or (high > 2000 and not is_open):
            raise GrammarError("A pattern can repeat a part up to 2,000 times.")
        limit = "" if is_open else high
        return f"({_sequence(inner, pattern)}){{{low},{limit}}}"
    if name == "BRANCH":
        return f"({' | '.join(_sequence(branch, pattern) for branch in value[1])})"
    if name == "SUBPATTERN" and value[1] == value[2] == 0:
        return f"({_sequence(value[3], pattern)})"
    raise GrammarError(
        f"The pattern {pattern[:60]!r} uses something that is not supported.",
        "Supported are characters, classes, groups, alternatives, repetitions, ^ at the start "
        "and $ at the end.",
    )


def _sequence(nodes: Iterable[tuple[Any, Any]], pattern: str) -> str:
    return " ".join(_convert(node, pattern) for node in nodes) or '""'


def _ranges(name: str, value: Any) -> _Ranges:
    if name == "LITERAL":
        return [(value, value)]
    if name == "NOT_LITERAL":
        return _complement([(value, value)])
    if name == "ANY":
        return _complement([(0x0A, 0x0A)])
    found: _Ranges = []
    is_negated = False
    for kind, item in value:
        if str(kind) == "NEGATE":
            is_negated = True
        elif str(kind) == "LITERAL":
            found.append((item, item))
        elif str(kind) == "RANGE":
            found.append((item[0], item[1]))
        else:
            category = str(item).removeprefix("CATEGORY_")
            inside = _CATEGORIES[category.removeprefix("NOT_")]
            found += _complement(inside) if category.startswith("NOT_") else inside
    return _complement(found) if is_negated else _without(found, [])


def _characters(ranges: _Ranges) -> str:
    """An expression for one of these characters as a JSON string writes it."""
    plain = _without(ranges, _ESCAPED)
    choices = [f"[{''.join(_gbnf_range(*span) for span in plain)}]"] if plain else []
    for low, high in ranges:
        for code in (0x08, 0x09, 0x0A, 0x0C, 0x0D, 0x22, 0x5C):
            if low <= code <= high:
                written = json.dumps(chr(code))[1:-1].replace("\\", "\\\\").replace('"', '\\"')
                choices.append(f'"{written}"')
    if not choices:
        raise GrammarError("A character class of a pattern is empty.")
    return choices[0] if len(choices) == 1 else f"({' | '.join(dict.fromkeys(choices))})"


def _gbnf_range(low: int, high: int) -> str:
    first = f"\\U{low:08X}"
    return first if low == high else f"{first}-\\U{high:08X}"


def _complement(ranges: Sequence[tuple[int, int]]) -> _Ranges:
    return _without([(0, _END)], ranges)


def _without(ranges: Iterable[tuple[int, int]], removed: Sequence[tuple[int, int]]) -> _Ranges:
    left = list(ranges)
    for low, high in removed:
        left = [
            part
            for a, b in left
            for part in ((a, min(b, low - 1)), (max(a, high + 1), b))
            if part[0] <= part[1]
        ]
    return left
