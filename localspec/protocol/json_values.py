"""Values of JSON become typed Structs; an error names the field and its value."""

from __future__ import annotations

import json
import re
import reprlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

_T = TypeVar("_T")
Number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float
"""A number that is written as it was read: msgspec makes 2 of a `float` field 2.0."""
_PLACE = re.compile(r" - at (`key` in )?`\$(.*)`$")
"""The end of msgspec's messages: the place of a value, or of a key."""
_STEP = re.compile(r"\[(\d+|\.\.\.)\]|\.(\w+)")
_ANY_KEY = "..."
_NOT_A_CHOICE = "Invalid enum value"
"""How msgspec's message begins for a word that a `Literal` does not have."""
_MAX_PROBLEM_CHARS = 200  # A problem may quote a name of any length.


class JsonError(ValueError):
    """A JSON value that does not have the declared type or range.

    `path` is the place in the document, such as `models[3].shape.layers`; it is empty
    for the document itself.
    """

    def __init__(self, path: str, problem: str) -> None:
        message = f"{path}: {problem}" if path else problem
        super().__init__(message)
        self.path = path
        self.problem = problem


def parse_object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError if the line is not one."""
    body = json.loads(line)  # UnicodeDecodeError and JSONDecodeError are ValueErrors
    if not isinstance(body, dict):
        raise ValueError("not an object")
    return body


def from_json(kind: type[_T], body: Any, *, strict: bool = True) -> _T:
    """Convert a value of JSON to a type. Unknown fields of objects are ignored.

    The keys of an object are texts in JSON; a type may declare them as numbers. If not
    `strict`, texts are also read as the numbers and booleans that a type declares.

    JSON is parsed by the standard library and not by msgspec, because texts of users
    may have lone surrogates, which msgspec does not decode, and measurements may be NaN.
    Raises JsonError.
    """
    try:
        return msgspec.convert(body, kind, strict=strict, str_keys=True)
    except msgspec.ValidationError as error:
        raise _explain(str(error), body, kind, strict) from None
    except UnicodeEncodeError:
        raise JsonError("", "a name or a number has a lone surrogate") from None


def to_plain(value: Any) -> Any:
    """A Struct and what is in it as values of JSON, for the standard encoder.

    It writes lone surrogates and NaN; msgspec's does not. Raises TypeError.
    """
    return msgspec.to_builtins(value, enc_hook=_to_base_type)


def _to_base_type(value: object) -> str | float:
    """msgspec takes no subclasses: a hint is a `str`, a number of numpy a `float`."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _explain(message: str, body: Any, kind: Any, strict: bool) -> JsonError:
    """Add the value to msgspec's message, and its key, for which msgspec has `[...]`.

    For {"curve": {"1": 1.0, "4": "x"}} msgspec says "Expected `float`, got `str` - at
    `$.curve[...]`", and this says "curve.4: Expected `float`, got `str`: 'x'".
    """

    def is_right(body: Any) -> bool:
        try:
            msgspec.convert(body, kind, strict=strict, str_keys=True)
        except msgspec.ValidationError as error:
            return str(error) != message
        return True

    place = _PLACE.search(message)
    if place is None:
        return JsonError("", _add_value(message, body))
    problem = message[: place.start()]
    steps: list[str | int] = []
    for index, name in _STEP.findall(place[2]):
        if name:
            steps.append(name)
        elif index != _ANY_KEY:
            steps.append(int(index))
        else:
            steps.append(_find_key(body, steps, is_right))
    path = _join_steps(steps)
    is_about_key = place[1] is not None
    value = _find_key(body, steps, is_right) if is_about_key else _get(body, steps)
    if problem.startswith(_NOT_A_CHOICE):
        choices = _find_choices(kind, steps)
        if choices:
            expected = ", ".join(map(repr, choices))
            problem = f"Expected one of {expected}, got {reprlib.repr(value)}"
            return JsonError(path, problem)
    return JsonError(path, _add_value(problem, value))


def _find_choices(kind: Any, steps: Sequence[str | int]) -> tuple[object, ...]:
    """The words that a type allows at a place of its document, as it declares them.

    Empty if several types are possible on the way there.
    """
    from msgspec import inspect  # noqa: PLC0415  only for an error; it takes 5 ms

    info: Any = inspect.type_info(kind)
    for step in steps:
        info = _without_null(info)
        if isinstance(info, inspect.StructType | inspect.TypedDictType):
            by_name = {field.encode_name: field.type for field in info.fields}
            info = by_name.get(str(step))
        elif isinstance(info, inspect.DictType):
            info = info.value_type
        elif isinstance(info, inspect.TupleType):
            info = info.item_types[int(step)]
        elif isinstance(info, inspect.VarTupleType | inspect.ListType):
            info = info.item_type
        else:
            return ()
    info = _without_null(info)
    return info.values if isinstance(info, inspect.LiteralType) else ()


def _without_null(info: Any) -> Any:
    """The type that may also be null, and what constrains it, without both."""
    from msgspec import inspect  # noqa: PLC0415  as above

    while isinstance(info, inspect.Metadata):
        info = info.type
    if not isinstance(info, inspect.UnionType):
        return info
    types = [each for each in info.types if not isinstance(each, inspect.NoneType)]
    return types[0] if len(types) == 1 else info


def _add_value(problem: str, value: Any) -> str:
    problem = problem[:_MAX_PROBLEM_CHARS]
    shown = reprlib.repr(value)  # Short, whatever its size and depth.
    if isinstance(value, str) and shown in problem:
        return problem
    return f"{problem}: {shown}"


def _find_key(
    body: Any, steps: Sequence[str | int], is_right: Callable[[Any], bool]
) -> str:
    """The key of the first item that is wrong, in the object at `steps`.

    Objects are converted in order. So the shortest beginning of the object that is
    wrong in the same way ends with the wrong item.
    """
    items = list(_get(body, steps).items())

    def is_wrong(n_items: int) -> bool:
        return not is_right(_replace_at(body, steps, dict(items[:n_items])))

    n_items = bisect_left(range(len(items)), True, key=is_wrong)
    key: str = items[n_items - 1][0]
    return key


def _get(body: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        body = body[step]
    return body


def _replace_at(body: Any, steps: Sequence[str | int], value: Any) -> Any:
    """A copy of the document with another value at `steps`."""
    if not steps:
        return value
    copy: Any = list(body) if isinstance(body, list | tuple) else dict(body)
    copy[steps[0]] = _replace_at(body[steps[0]], steps[1:], value)
    return copy


def _join_steps(steps: Sequence[str | int]) -> str:
    """`models`, 3 and `shape` become `models[3].shape`."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step:.60}"
    return path.removeprefix(".")
