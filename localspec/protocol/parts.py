"""Dataclasses from the JSON objects that they were written as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints


def opened(line: bytes) -> dict[str, Any]:
    """The JSON object of a line.  Raises ValueError where there is none."""
    body = json.loads(line)  # UnicodeDecodeError and JSONDecodeError are ValueErrors
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


def made(kind: type[Any], body: Mapping[str, Any]) -> Any:
    """Lists become tuples and objects the dataclasses that the fields name; others are ignored.

    Raises ValueError where a field is missing or an object is not what it should be.
    """
    parts = _KNOWN.get(kind) or _KNOWN.setdefault(kind, _parts(kind))
    try:
        return kind(**{name: _value(parts[name], body[name]) for name in parts if name in body})
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from error


_KNOWN: dict[type[Any], dict[str, type[Any] | None]] = {}


def _parts(kind: type[Any]) -> dict[str, type[Any] | None]:
    """The fields of a dataclass, each with the dataclass that it holds or is a tuple of."""
    return {name: _part(hint) for name, hint in get_type_hints(kind).items()}


def _part(hint: Any) -> type[Any] | None:
    if is_dataclass(hint):
        return hint if isinstance(hint, type) else None
    return next((found for part in get_args(hint) if (found := _part(part))), None)


def _value(part: type[Any] | None, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(part, item) for item in value)
    if part is None or value is None:
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"not an object: {value!r:.40}")
    return made(part, value)
