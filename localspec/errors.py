"""Everything that can go wrong for a person, each with what to do next."""

from __future__ import annotations


class LocalspecError(Exception):
    """A failure that a person can act on: what happened, and the next step."""

    detail: tuple[str, ...] = ()
    """Log lines, for whoever asks."""
    said: str = ""
    """The part of an answer that came before."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LocalspecError):
    """The command or a setting makes no sense."""


class NotFoundError(LocalspecError):
    """No such file or catalogue entry."""


class DoesNotFitError(LocalspecError):
    """The settings would need more memory than there is."""


class IncompatiblePairError(LocalspecError):
    """The draft cannot speculate for this target."""


class StorageError(LocalspecError):
    """A file may not be read or written."""


class EngineError(LocalspecError):
    """llama.cpp is missing, failed, or produced invalid numbers."""


class OutOfMemoryError(LocalspecError):
    """Memory ran out."""


class ModelFileError(LocalspecError):
    """The model file cannot be used."""


class PromptTooLongError(LocalspecError):
    """The prompt does not leave room for an answer."""


class DownloadError(LocalspecError):
    """A download ended early; what came is kept, and the next try goes on from there."""


class ChecksumError(LocalspecError):
    """A file's bytes are not those that were published."""


class OfflineError(LocalspecError):
    """The hub is needed and cannot or may not be reached."""


class AccessDeniedError(LocalspecError):
    """The hub does not let this person have the file: a gate or a token."""


class InUseError(LocalspecError):
    """Data that another localspec is writing, or that a newer one has written."""


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
"""The one table from cause to the code in JSON and the exit code (`contracts`: section 3)."""


def error_code(error: LocalspecError) -> str:
    return _codes_of(error)[0]


def exit_code(error: LocalspecError) -> int:
    return _codes_of(error)[1]


def _codes_of(error: LocalspecError) -> tuple[str, int]:
    known = (kind for kind in type(error).__mro__ if kind in _CODES)
    return _CODES.get(next(known, LocalspecError), ("failure", 1))


def from_code(code: str, message: str, hint: str) -> LocalspecError:
    """The error that another process described by its code."""
    kinds = {known: kind for kind, (known, _) in _CODES.items()}
    return kinds.get(code, LocalspecError)(message, hint)
