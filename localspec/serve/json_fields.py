"""JSON of requests and answers: errors name the field that is wrong; one encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Scope

from localspec.serve.api_error import ApiError, invalid

_LINE_ENDS = str.maketrans(
    {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises ApiError if it is none."""
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except RecursionError:
        raise ApiError(400, "The JSON is nested too deeply.") from None
    except (
        ValueError
    ) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
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

    def __init__(
        self, values: Mapping[str, Any], prefix: str = "", names: Mapping[str, str] = {}
    ) -> None:
        self.values, self._prefix, self._names = values, prefix, names

    def renamed(self, names: Mapping[str, str], **changes: Any) -> JsonFields:
        """With changed values; `names` are what the client calls them, for errors."""
        return JsonFields({**self.values, **changes}, self._prefix, names)

    def get(self, name: str) -> Any:
        return self.values.get(name)

    def param(self, name: str) -> str:
        return f"{self._prefix}{self._names.get(name, name)}"

    def text(self, name: str) -> str:
        return to_unicode(self._get(name, str, "it is not a string") or "")

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        value: str | None = self._get(
            name, str, problem := f"it is none of {', '.join(choices)}"
        )
        if value is not None and value not in choices:
            raise invalid(self.param(name), problem)
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._get(name, bool, "it is not true or false")
        return default if value is None else bool(value)

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self._get(name, (int, float), "it is not a number")
        if value is not None and not low <= value <= high:
            raise invalid(self.param(name), f"it is not between {low:g} and {high:g}")
        return None if value is None else float(value)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self._get(name, (int, float), problem := "it is not a whole number")
        if isinstance(value, float) and not value.is_integer():
            raise invalid(self.param(name), problem)
        if value is not None and not low <= value <= high:
            raise invalid(self.param(name), f"it is not between {low} and {high}")
        return None if value is None else int(value)

    def fields(self, name: str) -> JsonFields:
        """The object of a field; an empty one if it is absent."""
        value = self._get(name, dict, "it is not an object")
        return JsonFields(value or {}, f"{self.param(name)}.")

    def items(self, name: str, limit: int) -> list[Any]:
        value: list[Any] = self._get(name, list, "it is not an array") or []
        if len(value) > limit:
            raise invalid(self.param(name), f"it has more than {limit:,} items")
        return value

    def _get(self, name: str, kind: type | tuple[type, ...], problem: str) -> Any:
        value = self.get(name)
        is_wrong = not isinstance(value, kind) or (
            isinstance(value, bool) and kind is not bool
        )
        if value is not None and is_wrong:
            raise invalid(self.param(name), problem)
        return value


def to_fields(value: Any, param: str) -> JsonFields:
    """The fields of an object within the request. Raises ApiError if it is none."""
    if not isinstance(value, dict):
        raise invalid(param, "it is not an object")
    return JsonFields(value, f"{param}.")


def to_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot."""
    return (
        text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
    )


def encode_json(body: Any) -> str:
    """In valid UTF-8 whatever the texts hold, and nothing in it ends a line for any
    client.
    """
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return to_unicode(text).translate(_LINE_ENDS)


class JsonResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        return encode_json(content).encode()


def to_event(body: dict[str, Any], name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {encode_json(body)}\n\n".encode()


def error_response(error: ApiError, scope: Scope) -> JsonResponse:
    """In the form of the API that the request is for."""
    is_anthropic = (
        b"anthropic-version" in dict(scope["headers"]) or "/messages" in scope["path"]
    )
    body = error.to_anthropic() if is_anthropic else error.to_json()
    return JsonResponse(body, error.status, headers=error.headers)
