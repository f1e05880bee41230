"""Which pairs died lately and of what, kept until one answers well again."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from localspec import errors, paths
from localspec.protocol.events import EngineExit, Notice
from localspec.protocol.wire import LoadCommand
from localspec.sanitize import sanitize
from localspec.worker import engine_log

LOOP_LENGTH = 2
"""So many deaths in a row are no accident: nobody restarts the pair unasked."""

_MAX_PAIRS = 50
_MAX_CRASHES_PER_PAIR = 5
"""The most that are remembered."""


def pair_key(command: LoadCommand) -> str:
    """Stands for the files, as they are now, and the settings."""
    told: list[Any] = [asdict(replace(command, measured=None))]
    for name in filter(None, (command.target, command.draft)):
        with suppress(OSError, ValueError):
            found = os.stat(name)
            told.append([found.st_size, found.st_mtime_ns])
    return sha256(json.dumps(told).encode()).hexdigest()[:16]


def record(key: str, cause: str) -> None:
    """The pair died, of `how` as in `Dead`."""
    known = _read_crashes()
    known[key] = [*known.pop(key, []), cause][-_MAX_CRASHES_PER_PAIR:]  # the newest last
    _write_crashes(dict(list(known.items())[-_MAX_PAIRS:]))


def forget(key: str) -> None:
    """The pair answered well."""
    known = _read_crashes()
    if known.pop(key, None):
        _write_crashes(known)


def recent_causes(key: str) -> tuple[str, ...]:
    """What the pair died of since it last answered well, the newest last."""
    return tuple(_read_crashes().get(key, ()))


def count(key: str) -> int:
    return len(recent_causes(key))


def find_crash_loops() -> list[tuple[str, ...]]:
    """What each pair died of that is not restarted unasked."""
    return [tuple(hows) for hows in _read_crashes().values() if len(hows) >= LOOP_LENGTH]


def clear() -> None:
    """Whatever pairs died of, they may begin anew.  Raises OSError where that cannot be kept."""
    _crash_file().unlink(missing_ok=True)


def crash_loop_notice(command: LoadCommand) -> Notice | None:
    """What to say before the pair is started once more; None where it may be, even unasked."""
    hows = recent_causes(pair_key(command))
    if len(hows) < LOOP_LENGTH:
        return None
    what = f"This pair crashed the last {len(hows)} times: {'; '.join(map(describe_cause, hows))}."
    return Notice("warning", "crash-loop", what, "Try a smaller --ctx, or --draft none.")


def _crash_file() -> Path:
    return paths.data_dir() / "crashes.json"


def _read_crashes() -> dict[str, list[str]]:
    """A file that cannot be read, or that somebody wrote nonsense into, is none."""
    try:
        known = json.loads(_crash_file().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(known, dict):
        return {}
    lists = {name: hows for name, hows in known.items() if isinstance(hows, list)}
    return {name: [how for how in hows if isinstance(how, str)] for name, hows in lists.items()}


def _write_crashes(crashes_by_pair: dict[str, list[str]]) -> None:
    """Whole or not at all; where it cannot be written, nothing is remembered."""
    path = _crash_file()
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            new.write_text(json.dumps(crashes_by_pair), encoding="utf-8")
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


# --- Why an engine process ended, told from its exit code and its last words.

SLOW_NOTICE = Notice(
    "info",
    "slow",
    "The engine is still at work on the next tokens.",
    "Ctrl+C or Esc ends the answer; what was said stays.",
)
"""Said once where an answer stands still for long."""

_USE_LESS_MEMORY = (
    "Try a smaller --ctx, fewer --gpu-layers, a smaller quantisation, or --draft none."
)
_FREE_DISK_SPACE = "Make room on the disk, or in what is left of your quota, and run it again."
_REINSTALL = "Install localspec again: its parts do not fit together."
_TRY_ANOTHER_FILE = "Try another file, or --draft none; --verbose shows the engine's last words."

_GPU_OOM_PHRASES = (
    "cuda error: out of memory",
    "cudamalloc failed",
    "erroroutofdevicememory",
    "hip error: out",
)
_ASSERT_PHRASES = ("ggml_assert", "ggml_abort", "terminate called", "fatal error", "cuda error")

_IMPORT_ERROR_PHRASES = (
    "modulenotfounderror: ",
    "importerror: ",
    "attributeerror: module 'llama_cpp",
)

_DISK_FULL_PHRASES = ("no space left on device", "disk quota exceeded")

_FILE_CHANGED = "The model file changed or its disk went away while it was in use"

_SIGNAL_HINTS = {
    "SIGILL": "It needs processor instructions that this computer lacks: reinstall "
    "llama-cpp-python so that it is built here.",
    "SIGBUS": f"{_FILE_CHANGED}: check the file.",
    "SIGSEGV": _TRY_ANOTHER_FILE,
    "SIGFPE": _TRY_ANOTHER_FILE,
}

_NTSTATUS_SIGNALS = {
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000409: "SIGABRT",
    0xC0000017: "SIGKILL",
}
"""NTSTATUS values that stand for the same ends."""


def classify_exit(code: int | None, log: Sequence[str]) -> EngineExit:
    """What a process that we did not end died of.  `code` is Popen's: -n for signal n."""
    words = " ".join(log).lower()
    if any(phrase in words for phrase in _GPU_OOM_PHRASES):
        return EngineExit("oom-gpu", tuple(log), _USE_LESS_MEMORY)
    name = _signal_name(code)
    if any(phrase in words for phrase in _ASSERT_PHRASES):
        return EngineExit("assert", tuple(log), _TRY_ANOTHER_FILE)
    for phrases, hint in (
        (_DISK_FULL_PHRASES, _FREE_DISK_SPACE),
        (_IMPORT_ERROR_PHRASES, _REINSTALL),
    ):
        if code is not None and any(phrase in words for phrase in phrases):
            return EngineExit(f"signal {name}" if name else f"exit {code}", tuple(log), hint)
    if name == "SIGKILL":
        return EngineExit("oom-system", tuple(log), _USE_LESS_MEMORY)
    if name:
        return EngineExit(f"signal {name}", tuple(log), _SIGNAL_HINTS.get(name, _TRY_ANOTHER_FILE))
    return (
        protocol_exit(log)
        if code is None
        else EngineExit(f"exit {code}", tuple(log), _TRY_ANOTHER_FILE)
    )


def hang_exit(log: Sequence[str]) -> EngineExit:
    return EngineExit(
        "hang", tuple(log), "Run it again; if it stays so, try --draft none or --threads 1."
    )


def protocol_exit(log: Sequence[str]) -> EngineExit:
    return EngineExit("protocol", tuple(log), _REINSTALL)


def version_mismatch_exit(log: Sequence[str]) -> EngineExit:
    """It speaks as another localspec does: one that was installed while this one ran."""
    hint = "localspec was updated while it ran: leave it, and start it again."
    return EngineExit("protocol", tuple(log), hint)


def start_error(error: OSError) -> errors.EngineError:
    """The system has no room for one more process, or there is nothing to start."""
    hints = {
        errno.EMFILE: "Too few files may be open at once: raise the limit with ulimit -n 1024.",
        errno.ENFILE: "Close other programs, and run it again.",
        errno.EAGAIN: "Close other programs, or raise the limit on processes (ulimit -u).",
        errno.ENOMEM: "Close other programs, and run it again.",
    }
    hint = hints.get(error.errno or 0, "Install localspec again.")
    return errors.EngineError(f"The engine cannot be started: {error.strerror}.", hint)


FileStats = dict[str, tuple[int, int] | None]
"""Size and time of change by name; None for one that cannot be looked at."""


def stat_files(*names: str | None) -> FileStats:
    """The files of a pair as they are now."""
    return {name: _stat_file(name) for name in names if name}


def blame_changed_file(
    engine_exit: EngineExit, stats_at_load: Mapping[str, tuple[int, int] | None]
) -> EngineExit:
    """With the file that changed under a running engine, where that is what it died of."""
    if engine_exit.how != "signal SIGBUS":
        return engine_exit
    for name, was in stats_at_load.items():
        if (now := _stat_file(name)) != was:
            what = f"it has {now[0]:,} bytes now" if now else "it cannot be looked at any more"
            path = sanitize(name, multiline=False)
            return replace(engine_exit, hint=f"{_FILE_CHANGED}: {path}; {what}.")
    return engine_exit


def _stat_file(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def exit_error(engine_exit: EngineExit) -> errors.LocalspecError:
    """The same, for a person."""
    last = next((line for line in reversed(engine_exit.log) if _is_error_line(line)), "")
    what = f"The engine stopped: {describe_cause(engine_exit.how)}." + (
        f" Its last words: {last}" if last else ""
    )
    told = _error_type(engine_exit)(what, engine_exit.hint)
    kept = engine_log.log_path()
    told.detail = (
        (*engine_exit.log, f"All engines' words: {kept}") if kept.exists() else engine_exit.log
    )
    return told


def _error_type(engine_exit: EngineExit) -> type[errors.LocalspecError]:
    if engine_exit.how in ("oom-gpu", "oom-system"):
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
    """What it died of, in words."""
    words = {
        "oom-gpu": "the GPU ran out of memory",
        "oom-system": "the system killed it, most likely because memory ran out",
        "assert": "llama.cpp gave up",
        "hang": "it did not answer any more and was ended",
        "protocol": "it said something that makes no sense",
    }
    return words.get(
        cause, cause.replace("signal", "it died of").replace("exit", "it ended with code")
    )


def _is_error_line(line: str) -> bool:
    return any(
        phrase in line.lower()
        for phrase in (*_GPU_OOM_PHRASES, *_ASSERT_PHRASES, *_DISK_FULL_PHRASES, "error")
    )
