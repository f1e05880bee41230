"""Crashes of the engine process: their causes and hints, and the record of crash loops."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any
from zlib import crc32

from localspec import data_files, errors, paths
from localspec.machine.rpc import preflight
from localspec.protocol.events import EngineExit, Notice
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize
from localspec.worker import engine_log

LOOP_LENGTH = 2
"""After this many consecutive crashes, loading a pair first shows a warning with the causes."""

_CRASH_FILE = "crashes.json"
_MAX_PAIRS = 50
_MAX_CRASHES_PER_PAIR = 5


def pair_key(command: LoadCommand) -> str:
    """A checksum of the settings and of the files' size and modification time."""
    values: list[Any] = [asdict(replace(command, measured=None))]
    for name in filter(None, (command.target, command.draft)):
        with suppress(OSError, ValueError):
            stat = os.stat(name)
            values.append([stat.st_size, stat.st_mtime_ns])
    return f"{crc32(json.dumps(values).encode()):08x}"


def record(key: str, cause: str) -> None:
    """Record a crash; `cause` as in `EngineExit.how`."""
    crashes = _read_crashes()
    crashes[key] = [*crashes.pop(key, []), cause][-_MAX_CRASHES_PER_PAIR:]  # newest pair last
    data_files.write_json(_CRASH_FILE, dict(list(crashes.items())[-_MAX_PAIRS:]))


def forget(key: str) -> None:
    """Delete a pair's crashes, after an answer without a crash."""
    crashes = _read_crashes()
    if crashes.pop(key, None):
        data_files.write_json(_CRASH_FILE, crashes)


def recent_causes(key: str) -> tuple[str, ...]:
    """Causes of a pair's consecutive crashes, the newest last."""
    return tuple(_read_crashes().get(key, ()))


def find_crash_loops() -> list[tuple[str, ...]]:
    """The causes of each pair in a crash loop."""
    return [tuple(causes) for causes in _read_crashes().values() if len(causes) >= LOOP_LENGTH]


def clear() -> None:
    """Delete all recorded crashes. Raises OSError if that fails."""
    (paths.data_dir() / _CRASH_FILE).unlink(missing_ok=True)


def crash_loop_notice(command: LoadCommand) -> Notice | None:
    """A warning before another start of a pair in a crash loop, else None."""
    causes = recent_causes(pair_key(command))
    if len(causes) < LOOP_LENGTH:
        return None
    descriptions = "; ".join(map(describe_cause, causes))
    message = f"This pair crashed the last {len(causes)} times: {descriptions}."
    return Notice("warning", "crash-loop", message, "Try a smaller --ctx, or --draft none.")


def _read_crashes() -> dict[str, list[str]]:
    crashes = data_files.read_json(_CRASH_FILE)
    if not isinstance(crashes, dict):
        return {}
    return {
        key: [cause for cause in causes if isinstance(cause, str)]
        for key, causes in crashes.items()
        if isinstance(causes, list)
    }


# --- Causes of an exit, from the exit code and the last log lines

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

_USE_LESS_MEMORY = (
    "Try a smaller --ctx, fewer --gpu-layers, a smaller quantisation, or --draft none."
)
_FREE_DISK_SPACE = "Free disk space or raise your disk quota, then run it again."
_REINSTALL = "Reinstall localspec: its files are of different versions."
_TRY_ANOTHER_FILE = "Try another file, or --draft none; --verbose shows the last log lines."

_FILE_CHANGED = "The model file changed or its disk went away while it was in use"

_GPU_ERRORS = ("cuda error", "rocm error", "musa error")
"""One backend of llama.cpp, built for three vendors."""

_LOG_CAUSES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (
        "oom-gpu",
        _USE_LESS_MEMORY,
        (
            "cuda error: out of memory",
            "rocm error: out of memory",
            "musa error: out of memory",
            "cudamalloc failed",
            "erroroutofdevicememory",
        ),
    ),
    (
        "oom-host",
        _USE_LESS_MEMORY,
        ("bad_alloc", "memoryerror", "insufficient memory", "erroroutofhostmemory"),
    ),
    (
        "assert",
        _TRY_ANOTHER_FILE,
        ("ggml_assert", "ggml_abort", "terminate called", "fatal error", *_GPU_ERRORS),
    ),
    ("", _FREE_DISK_SPACE, ("no space left on device", "disk quota exceeded")),
    (
        "",
        _REINSTALL,
        ("modulenotfounderror: ", "importerror: ", "attributeerror: module 'llama_cpp"),
    ),
)
"""Cause, hint, and the phrases in the log that show it; "": the signal or the exit code."""

_WORKER_PHRASES = ("remote rpc server crashed", "rpc handshake failed", "failed to connect to")

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
    hint="Run it again; if it happens again, try --draft none, --threads 1 or --gpu-layers 0.",
)
PROTOCOL_ERROR = EngineExit("protocol", hint=_REINSTALL)
VERSION_MISMATCH = EngineExit(
    "protocol", hint="localspec was updated while it was running: quit and start it again."
)
"""The engine is of another localspec version, installed while this one was running."""


def classify_exit(code: int | None, log: Sequence[str]) -> EngineExit:
    """The cause of an exit that localspec did not request. `code` is Popen's: -n for signal n."""
    name = _signal_name(code)
    how = f"signal {name}" if name else f"exit {code}"
    log_text = " ".join(log).lower()
    for cause, hint, phrases in _LOG_CAUSES:
        if any(phrase in log_text for phrase in phrases) and (cause or code is not None):
            return EngineExit(cause or how, tuple(log), hint)
    if code is None:
        return replace(PROTOCOL_ERROR, log=tuple(log))
    how = "oom-system" if name == "SIGKILL" else how
    return EngineExit(how, tuple(log), _SIGNAL_HINTS.get(name, _TRY_ANOTHER_FILE))


def start_error(error: OSError) -> errors.EngineError:
    hints = {
        errno.EMFILE: "Too many open files: raise the limit with ulimit -n 1024.",
        errno.ENFILE: "Close other programs, and run it again.",
        errno.EAGAIN: "Close other programs, or raise the limit on processes (ulimit -u).",
        errno.ENOMEM: "Close other programs, and run it again.",
    }
    hint = hints.get(error.errno or 0, "Reinstall localspec.")
    return errors.EngineError(f"The engine cannot be started: {error.strerror}.", hint)


FileStats = dict[str, tuple[int, int] | None]
"""Size and modification time by file name; None if the file is not accessible."""


def stat_files(*names: str | None) -> FileStats:
    return {name: _stat_file(name) for name in names if name}


def blame_changed_file(
    engine_exit: EngineExit, stats_at_load: Mapping[str, tuple[int, int] | None]
) -> EngineExit:
    """Name the model file that changed since loading, if that caused the crash."""
    if engine_exit.how != "signal SIGBUS":
        return engine_exit
    for name, stats in stats_at_load.items():
        if (now := _stat_file(name)) != stats:
            what = f"it has {now[0]:,} bytes now" if now else "it is no longer accessible"
            path = sanitize(name, multiline=False)
            return replace(engine_exit, hint=f"{_FILE_CHANGED}: {path}; {what}.")
    return engine_exit


def blame_worker(engine_exit: EngineExit, workers: Sequence[str]) -> EngineExit:
    """Name the worker that is gone, if that ended the engine."""
    log_text = " ".join(engine_exit.log).lower()
    lost_connection = any(phrase in log_text for phrase in _WORKER_PHRASES)
    if not workers or not (lost_connection or engine_exit.how == "hang"):
        return engine_exit
    silent = preflight.find_silent(workers)
    if not silent and not lost_connection:
        return engine_exit
    names = " and ".join(silent)
    what = f"{names} does not answer" if silent else f"{' or '.join(workers)} dropped the model"
    hint = f"The worker {what}. Start it again, or leave --workers out; the model is loaded anew."
    return replace(engine_exit, how="worker", hint=hint)


def _stat_file(name: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(name)
    except (OSError, ValueError):
        return None
    return stat.st_size, stat.st_mtime_ns


def exit_error(engine_exit: EngineExit) -> errors.LocalspecError:
    """The error to raise for an exit."""
    last = next((line for line in reversed(engine_exit.log) if _is_error_line(line)), "")
    message = f"The engine stopped: {describe_cause(engine_exit.how)}." + (
        f" Last log line: {last}" if last else ""
    )
    error = _error_type(engine_exit)(message, engine_exit.hint)
    log_file = engine_log.log_path()
    error.detail = (
        (*engine_exit.log, f"Engine log: {log_file}")
        if os.path.exists(log_file)
        else engine_exit.log
    )
    return error


def _error_type(engine_exit: EngineExit) -> type[errors.LocalspecError]:
    if engine_exit.how.startswith("oom-"):
        return errors.OutOfMemoryError
    return errors.StorageError if engine_exit.hint == _FREE_DISK_SPACE else errors.EngineError


def _signal_name(code: int | None) -> str:
    if code is None:
        return ""
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"SIG{-code}"
    return _NTSTATUS_SIGNALS.get(code, "")


def describe_cause(cause: str) -> str:
    """A cause (`EngineExit.how`) in words."""
    descriptions = {
        "oom-gpu": "the GPU ran out of memory",
        "oom-host": "this computer ran out of memory",
        "oom-system": "the system killed it, most likely because memory ran out",
        "assert": "llama.cpp aborted",
        "hang": "it stopped responding and was killed",
        "worker": "the connection to a worker was lost",
        "protocol": "it sent invalid output",
    }
    return descriptions.get(
        cause, cause.replace("signal", "it crashed with").replace("exit", "it exited with code")
    )


def _is_error_line(line: str) -> bool:
    phrases = (phrase for _, _, listed in _LOG_CAUSES for phrase in (*listed, "error"))
    return any(phrase in line.lower() for phrase in phrases)
