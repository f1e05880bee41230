"""JSON of requests and answers: errors name the field that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from starlette.responses import JSONResponse
from starlette.types import Scope

from localspec.protocol.json_values import JsonError, from_json
from localspec.serve.api_error import ApiError, invalid
from localspec.serve.request_budget import check_values

_T = TypeVar("_T")
_LINE_ENDS = str.maketrans(
    {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
)


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request.

    Raises ApiError if it is none, or has more in it than `request_budget` allows.
    """
    try:
        value = json.loads(
            body.decode("utf-8-sig"),
            parse_constant=_refuse_constant,
            parse_float=_parse_float,
        )
    except RecursionError:
        raise ApiError(400, "The JSON is nested too deeply.") from None
    except ValueError as error:  # also UnicodeDecodeError and JSONDecodeError
        raise ApiError(400, f"The body is not JSON in UTF-8: {error}"[:200]) from None
    if not isinstance(value, dict):
        raise ApiError(400, "The body is not a JSON object.")
    check_values(value)
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parse_float(text: str) -> float:
    """Some languages write every number as a float: 8.0 is a whole number, too."""
    number = float(text)
    if number.is_integer():
        return int(number)
    return number


def convert_request(
    kind: type[_T], body: Any, place: str = "", names: Mapping[str, str] = {}
) -> _T:
    """The fields of a request, or of the object in it at `place`.

    `names` has what the client calls fields. Raises ApiError with `param`.
    """
    try:
        return from_json(kind, body)
    except JsonError as error:
        param = rename_param(error.path, names)
        if place and param:
            param = f"{place}.{param}"
        elif place:
            param = place
        if not param:
            raise ApiError(400, error.problem) from None
        raise invalid(param, error.problem) from None


def rename_param(path: str, names: Mapping[str, str]) -> str:
    """With `{"stop": "stop_sequences"}`: `stop[0]` becomes `stop_sequences[0]`."""
    first = path.partition(".")[0].partition("[")[0]
    return names.get(first, first) + path[len(first) :]


def encode_field(value: Any, param: str) -> str:
    """A part of a request, as JSON that a model can read. Raises ApiError.

    Letters stay letters: a model reads them better than their numbers.
    """
    try:
        return to_unicode(json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise invalid(param, "it is nested too deeply") from None


def to_unicode(text: str) -> str:
    """Replace lone surrogates, which JSON can hold and UTF-8 cannot."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def encode_json(body: Any) -> str:
    """JSON on one line, in valid UTF-8 whatever the texts hold.

    Some clients also split lines at U+0085, U+2028 and U+2029, so these are escaped.
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
    body = error.to_anthropic() if _is_for_anthropic(scope) else error.to_json()
    return JsonResponse(body, error.status, headers=error.headers)


def error_event(error: ApiError, scope: Scope) -> bytes:
    """As `error_response`, in a stream that has begun."""
    if _is_for_anthropic(scope):
        return to_event(error.to_anthropic(), "error")
    return to_event(error.to_json())


def _is_for_anthropic(scope: Scope) -> bool:
    has_version = b"anthropic-version" in dict(scope["headers"])
    return has_version or "/messages" in scope["path"]
