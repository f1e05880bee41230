"""User-facing errors: each has a message, a hint, a code for JSON and an exit code."""

from __future__ import annotations


class LocalspecError(Exception):
    """A failure that the user can act on: `message` is what happened, `hint` the next step."""

    detail: tuple[str, ...] = ()
    """Log lines, shown on request."""
    said: str = ""
    """The text that was generated before the failure."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LocalspecError):
    """A command, an option or a setting is invalid."""


class NotFoundError(LocalspecError):
    """No such file or catalogue entry."""


class DoesNotFitError(LocalspecError):
    """The settings need more memory than is available."""


class IncompatiblePairError(LocalspecError):
    """The draft model cannot be used with this target."""


class StorageError(LocalspecError):
    """A file cannot be read or written."""


class EngineError(LocalspecError):
    """llama.cpp is missing, failed, or produced invalid numbers."""


class OutOfMemoryError(LocalspecError):
    """Memory ran out."""


class ModelFileError(LocalspecError):
    """The model file cannot be used."""


class PromptTooLongError(LocalspecError):
    """The prompt leaves no room for an answer in the context."""


class DownloadError(LocalspecError):
    """A download stopped early; the received part is kept, and the next try resumes it."""


class ChecksumError(LocalspecError):
    """A file differs from the published one."""


class OfflineError(LocalspecError):
    """The hub is needed, but it is unreachable or offline mode is on."""


class AccessDeniedError(LocalspecError):
    """The hub denies access: the repository is gated, or the token is missing or invalid."""


class InUseError(LocalspecError):
    """Another localspec is writing the data, or a newer version has written it."""


_CODES: dict[type[LocalspecError], tuple[str, int]] = {
    UsageError: ("usage", 2),
    NotFoundError: ("not-found", 3),
    DoesNotFitError: ("does-not-fit", 4),
    IncompatiblePairError: ("incompatible-pair", 5),
    DownloadError: ("download", 6),
    ChecksumError: ("checksum", 7),
    StorageError: ("storage", 8),
    EngineError: ("engine", 9),
    OfflineError: ("offline", 10),
    OutOfMemoryError: ("out-of-memory", 11),
    ModelFileError: ("model-file", 12),
    PromptTooLongError: ("prompt-too-long", 13),
    AccessDeniedError: ("access-denied", 14),
    InUseError: ("in-use", 15),
}
"""Code in JSON and exit code of each error (`contracts`: section 3)."""


def error_code(error: LocalspecError) -> str:
    return _codes_of(error)[0]


def exit_code(error: LocalspecError) -> int:
    return _codes_of(error)[1]


def _codes_of(error: LocalspecError) -> tuple[str, int]:
    listed = (kind for kind in type(error).__mro__ if kind in _CODES)
    return _CODES.get(next(listed, LocalspecError), ("failure", 1))


def from_code(code: str, message: str, hint: str) -> LocalspecError:
    """Recreate an error that another process sent as its code, message and hint."""
    kinds = {json_code: kind for kind, (json_code, _) in _CODES.items()}
    return kinds.get(code, LocalspecError)(message, hint)
