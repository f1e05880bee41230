"""User-facing errors: each has a message, a hint, a code for JSON and an exit code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

_OPTION = re.compile(r"\{(?:([^{}|]*)\|)?(\w+)(?:=([^{}]*))?\}")


class OptionHint(NamedTuple):
    """An option that a hint suggests; as a `str` it is the command line's."""

    lead: (
        str  # Text before it, which goes with it where a front end has no such option.
    )
    name: str  # As in Python, such as `gpu_layers`.
    value: str  # Empty for a flag, or if the option is only mentioned.

    def __str__(self) -> str:
        return f"--{self.name.replace('_', '-')} {self.value}".rstrip()


class Hint(str):
    """A hint that names options. As a `str` it is for the command line; others
    `render_hint`.

    Options are written `{name}`, `{name=value}` or `{lead|name}`, such as "Use a
    smaller {ctx}."
    """

    template: str

    def __new__(cls, template: str) -> Hint:
        hint = super().__new__(cls, _render(template, str))
        hint.template = template
        return hint


def render_hint(hint: str, form: Callable[[OptionHint], str]) -> str:
    """`form` gives the words for an option; none for one that the front end does not
    have.
    """
    return _render(hint.template, form) if isinstance(hint, Hint) else hint


def _render(template: str, form: Callable[[OptionHint], str]) -> str:
    def replace(match: re.Match[str]) -> str:
        option = OptionHint(match[1] or "", match[2], match[3] or "")
        words = form(option)
        return option.lead + words if words else ""

    return _OPTION.sub(replace, template)


class LocalspecError(Exception):
    """A failure that the user can act on: `message` is what happened, `hint` the next
    step.
    """

    code = "failure"  # In JSON.
    exit_code = 1
    detail: tuple[str, ...] = ()  # Log lines, shown on request.
    said: str = ""  # The text that was generated before the failure.

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LocalspecError):  # A command, an option or a setting.
    code, exit_code = "usage", 2


class NotFoundError(LocalspecError):
    code, exit_code = "not-found", 3


class DoesNotFitError(LocalspecError):
    code, exit_code = "does-not-fit", 4


class IncompatiblePairError(LocalspecError):
    code, exit_code = "incompatible-pair", 5


class StorageError(LocalspecError):
    code, exit_code = "storage", 8


# llama.cpp is missing, failed, or produced invalid numbers.
class EngineError(LocalspecError):
    code, exit_code = "engine", 9


class OutOfMemoryError(LocalspecError):
    code, exit_code = "out-of-memory", 11


class ModelFileError(LocalspecError):
    code, exit_code = "model-file", 12


class PromptTooLongError(LocalspecError):
    code, exit_code = "prompt-too-long", 13


class GrammarError(LocalspecError):  # Or a JSON Schema.
    code, exit_code = "grammar", 16


# The received part is kept: the next try resumes it.
class DownloadError(LocalspecError):
    code, exit_code = "download", 6


class ChecksumError(LocalspecError):
    code, exit_code = "checksum", 7


class OfflineError(LocalspecError):  # The hub is needed and unreachable, or off.
    code, exit_code = "offline", 10


class AccessDeniedError(LocalspecError):  # A gated repository, or a wrong token.
    code, exit_code = "access-denied", 14


# By another localspec, or written by a newer version.
class InUseError(LocalspecError):
    code, exit_code = "in-use", 15


def from_code(code: str, message: str, hint: str) -> LocalspecError:
    """Recreate an error that another process sent as its code, message and hint."""
    kinds = {kind.code: kind for kind in LocalspecError.__subclasses__()}
    return kinds.get(code, LocalspecError)(message, hint)
