"""`oneOf` in JSON Schemas: exact where its alternatives exclude each other, and refused elsewhere.

llguidance reads it as `anyOf`, which is the same where no value satisfies two alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from localspec.errors import GrammarError

_SCHEMAS = ("items", "additionalProperties", "additionalItems", "contains", "not")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_TABLES = ("properties", "$defs", "definitions", "patternProperties")
_MAX_ALTERNATIVES = 256
_MAX_REFERENCES, _MAX_DEPTH = 8, 2  # One after another; of properties that tell them apart.


def check(root: Any) -> None:
    """Raise GrammarError if two alternatives of a `oneOf` may be satisfied at once."""
    for schema in _walk(root):
        given = schema.get("oneOf")
        given = given if isinstance(given, list) else []
        for one, other in combinations(given, 2):
            if len(given) > _MAX_ALTERNATIVES or not _exclude(one, other, root, 0):
                raise GrammarError(
                    "The JSON Schema cannot be used: alternatives of oneOf overlap.",
                    "Use anyOf, or alternatives that differ in type or in a required property.",
                )


def _walk(schema: Any) -> Iterator[Mapping[str, Any]]:
    """A schema and all within it."""
    if not isinstance(schema, dict):
        return
    yield schema
    parts = [schema.get(key) for key in _SCHEMAS]
    for key in _LISTS:
        parts += value if isinstance(value := schema.get(key), list) else []
    for key in _TABLES:
        parts += value.values() if isinstance(value := schema.get(key), dict) else []
    for part in parts:
        yield from _walk(part)


def _exclude(one: Any, other: Any, root: Any, depth: int) -> bool:
    """Whether no value satisfies both. False also means: not known."""
    one, other = _resolve(one, root), _resolve(other, root)
    if not isinstance(one, dict) or not isinstance(other, dict) or depth > _MAX_DEPTH:
        return one is False or other is False
    values, other_values = _values(one), _values(other)
    if values is not None and other_values is not None:
        return values.isdisjoint(other_values)
    types, other_types = _types(one), _types(other)
    if types and other_types and types.isdisjoint(other_types):
        return True
    if types != {"object"} or other_types != {"object"}:
        return False
    properties, other_properties = one.get("properties", {}), other.get("properties", {})
    both = set(one.get("required", ())) & set(other.get("required", ()))
    return any(
        name in properties
        and name in other_properties
        and _exclude(properties[name], other_properties[name], root, depth + 1)
        for name in both
    )


def _resolve(schema: Any, root: Any) -> Any:
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, dict) or not isinstance(ref := schema.get("$ref"), str):
            break
        schema = root
        for part in ref.removeprefix("#").split("/")[1:]:
            schema = schema.get(part) if isinstance(schema, dict) else None
    return schema


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    if "const" in schema:
        return {json.dumps(schema["const"], sort_keys=True)}
    given = schema.get("enum")
    return {json.dumps(value, sort_keys=True) for value in given} if given else None


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Empty if it may be any; an integer is a number."""
    values = _values(schema)
    if values is not None:
        given: Any = [_TYPE_NAMES[type(json.loads(value))] for value in values]
    else:
        given = schema.get("type", "object" if "properties" in schema else ())
    names = {given} if isinstance(given, str) else set(given)
    return {"number" if name == "integer" else name for name in names}


_TYPE_NAMES = {
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}
