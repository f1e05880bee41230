"""User-facing errors: each has a message, a hint, a code for JSON and an exit code."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from typing import NamedTuple

_OPTION = re.compile(r"\{(?:([^{}|]*)\|)?(\w+)(?:=([^{}]*))?\}")


class OptionHint(NamedTuple):
    """An option that a hint suggests; as a `str` it is the command line's."""

    lead: str
    """The text before it; a front end without such an option shows neither."""
    name: str
    """As in Python, such as `gpu_layers`."""
    value: str
    """Empty for a flag, or if the option is only mentioned."""

    def __str__(self) -> str:
        return f"--{self.name.replace('_', '-')} {self.value}".rstrip()


class Hint(str):
    """A hint that names options.

    Options are written `{name}`, `{name=value}` or `{lead|name}`. As a `str` the hint is
    for the command line: "Use a smaller {ctx}." is "Use a smaller --ctx." there. Other
    front ends call `render_hint`.
    """

    template: str

    def __new__(cls, template: str) -> Hint:
        hint = super().__new__(cls, _render(template, str))
        hint.template = template
        return hint


def render_hint(hint: str, form: Callable[[OptionHint], str]) -> str:
    """The hint with a front end's words for options.

    `form` gives them; empty for an option that the front end does not have.
    """
    if not isinstance(hint, Hint):
        return hint
    return _render(hint.template, form)


def _render(template: str, form: Callable[[OptionHint], str]) -> str:
    def replace(match: re.Match[str]) -> str:
        option = OptionHint(match[1] or "", match[2], match[3] or "")
        words = form(option)
        return option.lead + words if words else ""

    return _OPTION.sub(replace, template)


class LocalspecError(Exception):
    """A failure that the user can act on."""

    code = "failure"
    """In JSON."""
    exit_code = 1
    detail: tuple[str, ...] = ()
    """Log lines, shown on request."""
    said: str = ""
    """The text that was generated before the failure."""
    param: str | None = None
    """The field of a request that is wrong, as its client names it."""

    def __init__(self, message: str, hint: str = "") -> None:
        """`message` is what happened, `hint` the next step."""
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LocalspecError):
    """A command, an option or a setting is wrong."""

    code = "usage"
    exit_code = 2


class NotFoundError(LocalspecError):
    code = "not-found"
    exit_code = 3


class DoesNotFitError(LocalspecError):
    code = "does-not-fit"
    exit_code = 4


class IncompatiblePairError(LocalspecError):
    code = "incompatible-pair"
    exit_code = 5


class DownloadError(LocalspecError):
    """The received part is kept: the next try resumes it."""

    code = "download"
    exit_code = 6


class ChecksumError(LocalspecError):
    code = "checksum"
    exit_code = 7


class StorageError(LocalspecError):
    code = "storage"
    exit_code = 8


class EngineError(LocalspecError):
    """llama.cpp is missing, failed, or produced invalid numbers."""

    code = "engine"
    exit_code = 9


class OfflineError(LocalspecError):
    """The hub is needed and cannot be reached, or offline mode is on."""

    code = "offline"
    exit_code = 10


class OutOfMemoryError(LocalspecError):
    code = "out-of-memory"
    exit_code = 11


class ModelFileError(LocalspecError):
    code = "model-file"
    exit_code = 12


class PromptTooLongError(LocalspecError):
    code = "prompt-too-long"
    exit_code = 13


class AccessDeniedError(LocalspecError):
    """A repository is gated, or a token is wrong."""

    code = "access-denied"
    exit_code = 14


class InUseError(LocalspecError):
    """Another localspec uses it, or a newer version wrote it."""

    code = "in-use"
    exit_code = 15


class GrammarError(LocalspecError):
    """A grammar or a JSON Schema is wrong."""

    code = "grammar"
    exit_code = 16


class DrafterPackageError(LocalspecError):
    """An installed package offers a drafter that cannot be used."""

    code = "drafter-package"
    exit_code = 17


class PictureError(LocalspecError):
    """A picture, or another file for a model that sees, cannot be used."""

    code = "picture"
    exit_code = 18


class AudioError(LocalspecError):
    """An audio file cannot be used, or the model does not hear."""

    code = "audio"
    exit_code = 21


class ToolServerError(LocalspecError):
    """An MCP server does not start, or cannot be reached."""

    code = "tool-server"
    exit_code = 19


def from_code(code: str, message: str, hint: str) -> LocalspecError:
    """Recreate an error that another process sent as its code, message and hint."""
    kinds = {kind.code: kind for kind in LocalspecError.__subclasses__()}
    return kinds.get(code, LocalspecError)(message, hint)


_BUG_HINT = "This is a bug. Set LOCALSPEC_DEBUG=1 to see the traceback."


def explain(error: Exception, *, bug_hint: str = _BUG_HINT) -> LocalspecError:
    """What any exception means to the user.

    Besides our own errors it is a missing package, an output or a file that cannot be
    used, or else a bug.
    """
    if isinstance(error, LocalspecError):
        return error
    if isinstance(error, ImportError):
        what = f"A package that localspec needs cannot be imported: {error}."
        hint = "Install localspec again, as it was installed."
        return LocalspecError(what, hint)
    if not isinstance(error, OSError):
        what = f"Internal error: {type(error).__name__}: {error}"
        return LocalspecError(what, bug_hint)
    reason = error.strerror or error
    if error.errno == errno.EBADF:
        what = "Standard output is closed."
        hint = "Redirect it to a file, or to /dev/null."
    elif error.filename is not None:
        what = f"{error.filename} cannot be used: {reason}."
        hint = "Check its permissions, and its disk."
    else:
        what = f"The output cannot be written: {reason}."
        hint = "Free disk space, or write to another disk."
    return StorageError(what, hint)
