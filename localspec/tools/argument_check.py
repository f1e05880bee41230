"""Checks a call's arguments by the JSON Schema of its tool.

Only what a model usually gets wrong is checked: types, missing and unknown names, and
values that are none of a list. The tool itself checks the rest. A schema comes from a
server, so no pattern of it is tried and no reference followed, and the work is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_STEPS = 5_000
"""Values and parts of the schema that are compared for one call."""
_MAX_DEPTH = 20
_MAX_SHOWN = 200
"""Characters of a name, or of a list of names, in a message."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def find_problem(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Why the arguments do not suit the schema, in a sentence; empty if they do.

    With {"properties": {"line": {"type": "integer"}}, "required": ["path"]}, the
    arguments {"line": "2"} give "path is missing", because that is found first.
    """
    return _SchemaCheck().check(schema, dict(arguments), place="", depth=0)


class _SchemaCheck:
    """Compares one value; the limit of work is that of all its parts."""

    def __init__(self) -> None:
        self._n_steps = 0

    def check(self, schema: Any, value: Any, *, place: str, depth: int) -> str:
        """The first problem; empty if there is none, or the limit is reached."""
        self._n_steps += 1
        is_too_much = self._n_steps > _MAX_STEPS or depth > _MAX_DEPTH
        if is_too_much or not isinstance(schema, Mapping):
            return ""
        problem = _check_value(schema, value, place or "the arguments")
        if problem:
            return problem
        if isinstance(value, dict):
            return self._check_object(schema, value, place=place, depth=depth)
        items = schema.get("items")
        if isinstance(value, list) and isinstance(items, Mapping):
            for i, item in enumerate(value):
                problem = self.check(
                    items, item, place=f"{place}[{i}]", depth=depth + 1
                )
                if problem:
                    return problem
        return ""

    def _check_object(
        self,
        schema: Mapping[str, Any],
        value: dict[str, Any],
        *,
        place: str,
        depth: int,
    ) -> str:
        required = schema.get("required")
        if isinstance(required, list):
            for name in required:
                if isinstance(name, str) and name not in value:
                    return f"{_join(place, name)} is missing"
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            properties = {}
        is_closed = schema.get("additionalProperties") is False
        for name, item in value.items():
            if name in properties:
                problem = self.check(
                    properties[name], item, place=_join(place, name), depth=depth + 1
                )
                if problem:
                    return problem
            elif is_closed and "patternProperties" not in schema:
                known = ", ".join(map(str, properties))[:_MAX_SHOWN] or "none"
                return f"{_join(place, name)} is unknown; there are: {known}"
        return ""


def _check_value(schema: Mapping[str, Any], value: Any, place: str) -> str:
    names = _list_types(schema.get("type"))
    if names and not any(_has_type(value, name) for name in names):
        return f"{place} must be of the type {' or '.join(names)}"
    allowed = schema.get("enum")
    if isinstance(allowed, list) and value not in allowed:
        shown = ", ".join(map(str, allowed))[:_MAX_SHOWN]
        return f"{place} must be one of: {shown}"
    return ""


def _list_types(declared: Any) -> list[str]:
    """The types that a schema names; none if one of them is unknown."""
    given = [declared]
    if isinstance(declared, list):
        given = declared
    names = [name for name in given if isinstance(name, str) and name in _TYPES]
    if len(names) < len(given):
        return []
    return names


def _has_type(value: Any, name: str) -> bool:
    """Whether a value has a type, as JSON Schema defines it.

    True is no integer, and 3.0 is one.
    """
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _join(place: str, name: str) -> str:
    """`filter.name` for a part of `filter`; a name at the top stands alone."""
    shown = name[:_MAX_SHOWN]
    if not place:
        return shown
    return f"{place}.{shown}"
