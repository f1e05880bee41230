"""Reads the fields of a JSON request, with an error that names the field if one is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from localspec.serve.api_error import ApiError, invalid


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises ApiError if it is none."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ApiError(400, "The JSON is nested too deeply.") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise ApiError(400, f"The body is not JSON in UTF-8: {error}"[:200]) from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body is not a JSON object.")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class JsonFields:
    """The fields of one object; null counts as absent.

    Every method raises ApiError with `param` if the field has another type or range.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "") -> None:
        self._values, self._prefix = values, prefix

    def replaced(self, **changes: Any) -> JsonFields:
        return JsonFields({**self._values, **changes}, self._prefix)

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def param(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def text(self, name: str, *, default: str = "") -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise invalid(self.param(name), "it is not a string")
        return to_unicode(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in choices:
            raise invalid(self.param(name), f"it is none of {', '.join(choices)}")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise invalid(self.param(name), "it is not true or false")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(self.param(name), "it is not a number")
        if not low <= value <= high:
            raise invalid(self.param(name), f"it is not between {low:g} and {high:g}")
        return float(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(self.param(name), "it is not a whole number")
        if not low <= value <= high:
            raise invalid(self.param(name), f"it is not between {low} and {high}")
        return value

    def fields(self, name: str) -> JsonFields:
        """The object of a field; an empty one if it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise invalid(self.param(name), "it is not an object")
        return JsonFields(value or {}, f"{self.param(name)}.")

    def items(self, name: str, limit: int) -> list[Any]:
        value = self.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise invalid(self.param(name), "it is not an array")
        if len(value) > limit:
            raise invalid(self.param(name), f"it has more than {limit:,} items")
        return value

    def token_ids(self, name: str, limit: int) -> tuple[int, ...]:
        return check_token_ids(self.items(name, limit), self.param(name))

    @property
    def is_empty(self) -> bool:
        return not self._values


def check_token_ids(values: list[Any], param: str) -> tuple[int, ...]:
    if not all(type(value) is int and 0 <= value < 2**31 for value in values):
        raise invalid(param, "it is not an array of token ids")
    return tuple(values)


def to_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
