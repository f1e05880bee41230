"""Why an engine process ended: cause and hint, from its exit code and last log lines."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from localspec import errors, extras
from localspec.engine_process import engine_log
from localspec.protocol.events import EngineExit, Notice
from localspec.sanitize import sanitize

SLOW_NOTICE = Notice(
    "info",
    "slow",
    "The engine is still computing the next tokens.",
    "Ctrl+C or Esc stops the answer and keeps its text.",
)
"""Shown once if a command makes no progress for long."""
COMPILING_NOTICE = replace(
    SLOW_NOTICE,
    message="The engine is still computing the next tokens. At the first use of a model the "
    "GPU's driver compiles its programs, which can take minutes.",
)
"""The same, if there is a GPU."""

_USE_LESS_MEMORY = errors.Hint(
    "Try a smaller {ctx}, fewer {gpu_layers}, a smaller quantisation, or {draft=none}."
)
_FREE_DISK_SPACE = "Free disk space or raise your disk quota, then run it again."
_REINSTALL = "Reinstall localspec: its files are of different versions."
_TRY_ANOTHER_FILE = errors.Hint(
    "Try another file, or {draft=none}; {verbose} shows the last log lines."
)

_FILE_CHANGED = "The model file changed or its disk went away while it was in use"


class LogCause(Struct, frozen=True):
    """A cause of an exit that the log shows."""

    how: str
    """`EngineExit.how`; empty: the signal or the exit code."""
    hint: str
    pattern: str
    """A regular expression for the log in lower case."""


_GPU_ERROR = "(cuda|rocm|musa) error"
"""One backend of llama.cpp is built for three vendors."""
_LOG_CAUSES = (
    LogCause(
        "oom-gpu",
        _USE_LESS_MEMORY,
        f"{_GPU_ERROR}: out of memory|cudamalloc failed|erroroutofdevicememory",
    ),
    LogCause(
        "oom-host",
        _USE_LESS_MEMORY,
        "bad_alloc|memoryerror|insufficient memory|outofhostmemory",
    ),
    LogCause(
        "assert",
        _TRY_ANOTHER_FILE,
        f"ggml_assert|ggml_abort|terminate called|fatal error|{_GPU_ERROR}",
    ),
    LogCause("", _FREE_DISK_SPACE, "no space left on device|disk quota exceeded"),
    LogCause(
        "",
        _REINSTALL,
        "modulenotfounderror: |importerror: |attributeerror: module 'llama_cpp",
    ),
)
"""The first that matches is the cause."""

_SIGNAL_HINTS = {
    "SIGKILL": _USE_LESS_MEMORY,
    "SIGILL": "It needs processor instructions that this computer lacks: reinstall "
    "llama-cpp-python so that it is built here.",
    "SIGBUS": f"{_FILE_CHANGED}: check the file.",
}

_NTSTATUS_SIGNALS = {
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000409: "SIGABRT",
    0xC0000017: "SIGKILL",
}
"""Windows exit codes (NTSTATUS) of the same causes."""


HANG = EngineExit(
    "hang",
    hint=errors.Hint(
        "Run it again; if it happens again, try {draft=none}, {threads=1} or {gpu_layers=0}."
    ),
)
PROTOCOL_ERROR = EngineExit("protocol", hint=_REINSTALL)
VERSION_MISMATCH = EngineExit(
    "protocol",
    hint="localspec was updated while it was running: quit and start it again.",
)
"""The engine is of another localspec version, installed while this one was running."""


def classify_exit(code: int | None, log: Sequence[str]) -> EngineExit:
    """The cause of an exit that localspec did not request.

    `code` is Popen's: -n for signal n.
    """
    name = _signal_name(code)
    how = f"signal {name}" if name else f"exit {code}"
    log_text = " ".join(log).lower()
    for cause in _LOG_CAUSES:
        is_known = cause.how != "" or code is not None
        if is_known and re.search(cause.pattern, log_text):
            return EngineExit(cause.how or how, tuple(log), cause.hint)
    if code is None:
        return replace(PROTOCOL_ERROR, log=tuple(log))
    if name == "SIGKILL":
        how = "oom-system"
    return EngineExit(how, tuple(log), _SIGNAL_HINTS.get(name, _TRY_ANOTHER_FILE))


def _signal_name(code: int | None) -> str:
    if code is None or code >= 0:
        return _NTSTATUS_SIGNALS.get(code or 0, "")
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"SIG{-code}"


def start_error(error: OSError) -> errors.EngineError:
    hints = {
        errno.EMFILE: "Too many open files: raise the limit with ulimit -n 1024.",
        errno.ENFILE: "Close other programs, and run it again.",
        errno.EAGAIN: "Close other programs, or raise the limit on processes (ulimit -u).",
        errno.ENOMEM: "Close other programs, and run it again.",
    }
    hint = hints.get(error.errno or 0, "Reinstall localspec.")
    return errors.EngineError(f"The engine cannot be started: {error.strerror}.", hint)


_CRASHES = ("signal SIGSEGV", "signal SIGABRT", "signal SIGFPE", "signal SIGILL")

FileStats = dict[str, tuple[int, int] | None]
"""Size and modification time by file name; None if the file is not accessible."""


def stat_files(*names: str | None) -> FileStats:
    stats: FileStats = {}
    for name in filter(None, names):
        try:
            stat = os.stat(name)
        except (OSError, ValueError):
            stats[name] = None
        else:
            stats[name] = stat.st_size, stat.st_mtime_ns
    return stats


def blame_changed_file(
    engine_exit: EngineExit, stats_at_load: Mapping[str, tuple[int, int] | None]
) -> EngineExit:
    """Name the model file that changed since loading, if that caused the crash."""
    if engine_exit.how == "signal SIGBUS":
        for name, now in stat_files(*stats_at_load).items():
            if now != stats_at_load[name]:
                what = "it is no longer accessible"
                if now:
                    what = f"it has {now[0]:,} bytes now"
                path = sanitize(name, multiline=False)
                return replace(engine_exit, hint=f"{_FILE_CHANGED}: {path}; {what}.")
    return engine_exit


def blame_projector(engine_exit: EngineExit, projector: str) -> EngineExit:
    """Name the projector if the engine crashed while it read a picture with it.

    Memory that ran out, and a process that somebody ended, are no fault of the file.
    """
    is_crash = engine_exit.how == "assert" or engine_exit.how in _CRASHES
    if not is_crash:
        return engine_exit
    name = sanitize(os.path.basename(projector), multiline=False)
    hint = errors.Hint(
        f"It read a picture with {name}, which may be damaged or of another model: use "
        "{image_model=FILE} with another, or {image_model=none}."
    )
    return replace(engine_exit, hint=hint)


def exit_error(engine_exit: EngineExit) -> errors.LocalspecError:
    """The error to raise for an exit: with the last line of the log that shows a cause."""
    pattern = "|".join(["error", *(cause.pattern for cause in _LOG_CAUSES)])
    lines = [line for line in engine_exit.log if re.search(pattern, line.lower())]
    last = f" Last log line: {lines[-1]}" if lines else ""
    kind: type[errors.LocalspecError] = errors.EngineError
    if engine_exit.how.startswith("oom-"):
        kind = errors.OutOfMemoryError
    elif engine_exit.hint == _FREE_DISK_SPACE:
        kind = errors.StorageError
    error = kind(
        f"The engine stopped: {describe_cause(engine_exit.how)}.{last}",
        engine_exit.hint,
    )
    error.detail = engine_exit.log
    log_file = engine_log.log_path()
    if log_file.exists():
        error.detail = (*engine_exit.log, f"Engine log: {log_file}")
    return error


def describe_cause(cause: str) -> str:
    """A cause (`EngineExit.how`) in words."""
    descriptions: dict[str, str] = {
        "oom-gpu": "the GPU ran out of memory",
        "oom-host": "this computer ran out of memory",
        "oom-system": "the system killed it, most likely because memory ran out",
        "assert": "llama.cpp aborted",
        "hang": "it stopped responding and was killed",
        "protocol": "it sent invalid output",
        **dict(extras.rows("EXIT_CAUSES")),
    }
    if cause in descriptions:
        return descriptions[cause]
    # `signal SIGSEGV`, or `exit 70`.
    words = cause.replace("signal", "it crashed with")
    return words.replace("exit", "it exited with code")
