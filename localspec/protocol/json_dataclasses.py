"""Parses JSON objects into dataclasses and checks the type of every field."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from inspect import isclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

_Convert = Callable[[Any], Any]
"""Checks a JSON value and returns that of the field.

Raises ValueError with the reason.
"""
_TYPE_NAMES = {int: "a whole number", str: "a text", bool: "true or false"}


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError if the line is not one."""
    body = json.loads(line)  # UnicodeDecodeError and JSONDecodeError are ValueErrors
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


def from_json(kind: Any, body: Mapping[str, Any]) -> Any:
    """Create a dataclass: lists become tuples, objects the dataclasses that the fields
    declare.

    Unknown fields are ignored. Raises ValueError, with the path of the field, if a
    field is missing or its value does not have the declared type. A float field also
    takes a whole number, which stays one; NaN and infinity are floats. What is declared
    as `Any` is taken as it is.
    """
    if not isinstance(body, Mapping):
        raise ValueError(f"not an object: {_shorten(body)}")
    values: dict[str, Any] = {}
    for name, convert in _converters(kind).items():
        if name not in body:
            continue
        try:
            values[name] = convert(body[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    try:
        return kind(**values)
    except TypeError as error:  # a field without a default is missing
        raise ValueError(str(error)) from error


@cache
def _converters(kind: Any) -> dict[str, _Convert]:
    """The conversion of each field, by name."""
    return {name: _make_converter(hint) for name, hint in get_type_hints(kind).items()}


def _make_converter(hint: Any) -> _Convert:
    """The conversion to a type of an annotation.

    Raises TypeError if JSON has no such type.
    """
    origin = get_origin(hint)
    parts = get_args(hint)
    if hint is Any:
        return _keep
    if hint is float:
        return _convert_float
    if hint is types.NoneType:
        return _convert_null
    if hint in _TYPE_NAMES:
        return partial(_convert_scalar, hint)
    if origin is Literal:
        return partial(_convert_word, parts)
    if origin in (types.UnionType, Union):
        return partial(_convert_union, [_make_converter(part) for part in parts])
    if origin is tuple and len(parts) == 2 and parts[1] is Ellipsis:
        return partial(_convert_list, _make_converter(parts[0]))
    if origin is tuple:
        return partial(_convert_row, [_make_converter(part) for part in parts])
    if origin in (dict, Mapping):
        return partial(_convert_object, _make_converter(parts[1]))
    if isclass(hint) and issubclass(hint, Struct):
        return partial(from_json, hint)
    raise TypeError(f"JSON has no values of the type {hint!r}")


def _keep(value: Any) -> Any:
    return value


def _convert_null(value: Any) -> None:
    if value is not None:
        raise ValueError(f"not null: {_shorten(value)}")


def _convert_scalar(kind: type[int | str | bool], value: Any) -> Any:
    if type(value) is not kind:  # True is an int, but no number of a JSON file
        raise ValueError(f"not {_TYPE_NAMES[kind]}: {_shorten(value)}")
    return value


def _convert_float(value: Any) -> Any:
    """A whole number stays one, so that it is written as it was read."""
    if type(value) is float:
        return value
    if type(value) is not int:
        raise ValueError(f"not a number: {_shorten(value)}")
    try:
        float(value)
    except OverflowError:
        raise ValueError("a number that is too large") from None
    return value


def _convert_word(words: Sequence[Any], value: Any) -> Any:
    if value not in words:
        raise ValueError(f"not one of {', '.join(map(repr, words))}: {_shorten(value)}")
    return value


def _convert_union(converters: Sequence[_Convert], value: Any) -> Any:
    """The value as the first of the types that takes it."""
    problem: ValueError | None = None
    for convert in converters:
        try:
            return convert(value)
        except ValueError as error:
            if convert is not _convert_null:
                problem = error
    raise problem or ValueError(f"a value of another type: {_shorten(value)}")


def _convert_list(convert: _Convert, value: Any) -> tuple[Any, ...]:
    """A list of any length whose items have one type."""
    return tuple(map(convert, _check_list(value)))


def _convert_row(converters: Sequence[_Convert], value: Any) -> tuple[Any, ...]:
    """A list of a fixed length, whose items each have a type of their own."""
    items = _check_list(value)
    if len(items) != len(converters):
        raise ValueError(f"not a list of {len(converters)} values: {_shorten(value)}")
    return tuple(convert(item) for convert, item in zip(converters, items, strict=True))


def _check_list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"not a list: {_shorten(value)}")
    return value


def _convert_object(convert: _Convert, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"not an object: {_shorten(value)}")
    converted = {}
    for name, item in value.items():
        try:
            converted[name] = convert(item)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return converted


def _shorten(value: Any) -> str:
    return f"{value!r:.40}"
