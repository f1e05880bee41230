"""Parses JSON objects into dataclasses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError if the line is not one."""
    body = json.loads(line)  # UnicodeDecodeError and JSONDecodeError are ValueErrors
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


def from_json(kind: Any, body: Mapping[str, Any]) -> Any:
    """Create a dataclass: lists become tuples, objects the dataclasses that the fields declare.

    Unknown fields are ignored. Raises ValueError if a field is missing or has the wrong type.
    """
    types = _field_types(kind)
    try:
        return kind(**{name: _convert(types[name], body[name]) for name in types if name in body})
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from error


@cache
def _field_types(kind: Any) -> dict[str, type[Any] | None]:
    """Per field the dataclass in its type annotation, if any."""
    return {name: _find_dataclass(hint) for name, hint in get_type_hints(kind).items()}


def _find_dataclass(hint: Any) -> type[Any] | None:
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    return next((kind for part in get_args(hint) if (kind := _find_dataclass(part))), None)


def _convert(dataclass_type: type[Any] | None, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_convert(dataclass_type, item) for item in value)
    if dataclass_type is None or value is None:
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"not an object: {value!r:.40}")
    return from_json(dataclass_type, value)
