"""Errors of the HTTP API: their status, and the error object in the form of each API."""

from __future__ import annotations

from typing import Any

from localspec.errors import (
    AudioError,
    GrammarError,
    LocalspecError,
    OptionHint,
    PictureError,
    PromptTooLongError,
    UsageError,
    render_hint,
)

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
_ANTHROPIC_TYPES = _TYPES | {
    413: "request_too_large",
    500: "api_error",
    503: "overloaded_error",
}
_FIELDS = {
    "max_tokens": "max_tokens",
    "spec": "localspec.spec",
    "verify": "localspec.verify",
}
"""Option -> field of a request; other options are those of `localspec serve`."""


class ApiError(LocalspecError):
    """A refused or failed HTTP request."""

    code = "api-request"

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        name: str | None = None,
        kind: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        """`param` is the field that is wrong, `name` OpenAI's `code`.

        `kind` is OpenAI's `type`, where that of the status is too general.
        """
        super().__init__(message)
        self.status = status
        self.param = param
        self.name = name
        self.kind = kind or _TYPES.get(status, "invalid_request_error")
        self.headers = headers or {}
        self.details: dict[str, int] = {}  # Further fields of the error object.

    def to_anthropic(self) -> dict[str, Any]:
        """The error object of Anthropic's API, where the message alone names the field."""
        # Tools are flat there, so their fields have shorter names.
        message = self.message.replace("].function.", "].")
        if self.details:
            # Agents know this error by these words.
            n = self.details["n_prompt_tokens"]
            n_ctx = self.details["n_ctx"]
            message = f"prompt is too long: {n} tokens > {n_ctx} maximum. {message}"
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def to_json(self) -> dict[str, Any]:
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.name,
        }
        return {"error": error | self.details}


class ClientLeftError(ApiError):
    """The client closed the connection, or takes no bytes of its answer.

    Nobody sees this error.
    """

    def __init__(self) -> None:
        super().__init__(408, "The client has left.")


def invalid(param: str, problem: str) -> ApiError:
    """A field of the request is wrong."""
    return ApiError(400, f"{param}: {problem}", param=param)


def unsupported(param: str, problem: str) -> ApiError:
    return ApiError(
        400, f"{param}: {problem}", param=param, name="unsupported_parameter"
    )


def context_exceeded(n_prompt: int, n_ctx: int) -> ApiError:
    error = prompt_too_long(f"{n_prompt:,} tokens", n_ctx)
    error.details = {"n_prompt_tokens": n_prompt, "n_ctx": n_ctx}
    return error


def prompt_too_long(size: str, n_ctx: int, param: str | None = None) -> ApiError:
    # Clients know this error by its words: OpenAI's (litellm, and so aider) or
    # llama-server's.
    return _too_long(
        f"This model's maximum context length is {n_ctx:,} tokens here: the prompt of {size} "
        "exceeds the available context size. Shorten it, or start the server with a larger --ctx.",
        param,
    )


def _too_long(message: str, param: str | None = None) -> ApiError:
    return ApiError(
        400,
        message,
        param=param,
        name="context_length_exceeded",
        kind="exceed_context_size_error",
    )


def loading() -> ApiError:
    return ApiError(
        503, "Loading the model.", name="loading", headers={"Retry-After": "1"}
    )


def shutting_down() -> ApiError:
    return ApiError(503, "The server is shutting down.", name="shutting_down")


def from_engine(error: Exception, *, may_retry: bool = True) -> ApiError:
    """The answer to a request that an error of any kind has ended.

    `may_retry`: whether the same request may succeed after the engine is loaded again.
    """
    if isinstance(error, ApiError):
        return error
    if not isinstance(error, LocalspecError):
        return ApiError(
            500, f"Internal error: {type(error).__name__}", name="internal_error"
        )
    message = f"{error.message} {render_hint(error.hint, _name_field)}".strip()
    if isinstance(error, UsageError):
        return ApiError(400, message, param=error.param)
    if isinstance(error, PictureError):
        return ApiError(400, message, name="invalid_image")
    if isinstance(error, AudioError):
        return ApiError(400, message, name="invalid_audio")
    if isinstance(error, GrammarError):
        return ApiError(400, message, name="invalid_grammar")
    if isinstance(error, PromptTooLongError):
        return _too_long(message)
    should_retry = "true" if may_retry else "false"
    headers = {"x-should-retry": should_retry}
    return ApiError(500, message, name=error.code, headers=headers)


def _name_field(option: OptionHint) -> str:
    """The option as a field of a request, if it is one."""
    field = _FIELDS.get(option.name)
    if field is None:
        return str(option)
    return f"{field}: {option.value}"
