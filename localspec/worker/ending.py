"""Why an engine process ended, told from its exit code and its last words."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace

from localspec import errors
from localspec.clean import clean
from localspec.protocol.events import Dead, Notice
from localspec.worker import log as engine_log

SLOW = Notice(
    "info",
    "slow",
    "The engine is still at work on the next tokens.",
    "Ctrl+C or Esc ends the answer; what was said stays.",
)
"""Said once where an answer stands still for long."""

_SMALLER = "Try a smaller --ctx, fewer --gpu-layers, a smaller quantisation, or --draft none."
_ROOM = "Make room on the disk, or in what is left of your quota, and run it again."
_AGAIN = "Install localspec again: its parts do not fit together."
_OTHER = "Try another file, or --draft none; --verbose shows the engine's last words."

_GPU = (
    "cuda error: out of memory",
    "cudamalloc failed",
    "erroroutofdevicememory",
    "hip error: out",
)
_ASSERTS = ("ggml_assert", "ggml_abort", "terminate called", "fatal error", "cuda error")

_IMPORTS = ("modulenotfounderror: ", "importerror: ", "attributeerror: module 'llama_cpp")

_DISK = ("no space left on device", "disk quota exceeded")

_CHANGED = "The model file changed or its disk went away while it was in use"

_SIGNALS = {
    "SIGILL": "It needs processor instructions that this computer lacks: reinstall "
    "llama-cpp-python so that it is built here.",
    "SIGBUS": f"{_CHANGED}: check the file.",
    "SIGSEGV": _OTHER,
    "SIGFPE": _OTHER,
}

_WINDOWS = {
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000409: "SIGABRT",
    0xC0000017: "SIGKILL",
}
"""NTSTATUS values that stand for the same ends."""


def classify(code: int | None, log: Sequence[str]) -> Dead:
    """What a process that we did not end died of.  `code` is Popen's: -n for signal n."""
    words = " ".join(log).lower()
    if any(phrase in words for phrase in _GPU):
        return Dead("oom-gpu", tuple(log), _SMALLER)
    name = _signal(code)
    if any(phrase in words for phrase in _ASSERTS):
        return Dead("assert", tuple(log), _OTHER)
    for phrases, hint in ((_DISK, _ROOM), (_IMPORTS, _AGAIN)):
        if code is not None and any(phrase in words for phrase in phrases):
            return Dead(f"signal {name}" if name else f"exit {code}", tuple(log), hint)
    if name == "SIGKILL":
        return Dead("oom-system", tuple(log), _SMALLER)
    if name:
        return Dead(f"signal {name}", tuple(log), _SIGNALS.get(name, _OTHER))
    return protocol(log) if code is None else Dead(f"exit {code}", tuple(log), _OTHER)


def hang(log: Sequence[str]) -> Dead:
    return Dead(
        "hang", tuple(log), "Run it again; if it stays so, try --draft none or --threads 1."
    )


def protocol(log: Sequence[str]) -> Dead:
    return Dead("protocol", tuple(log), _AGAIN)


def another_version(log: Sequence[str]) -> Dead:
    """It speaks as another localspec does: one that was installed while this one ran."""
    hint = "localspec was updated while it ran: leave it, and start it again."
    return Dead("protocol", tuple(log), hint)


def not_started(error: OSError) -> errors.EngineError:
    """The system has no room for one more process, or there is nothing to start."""
    hints = {
        errno.EMFILE: "Too few files may be open at once: raise the limit with ulimit -n 1024.",
        errno.ENFILE: "Close other programs, and run it again.",
        errno.EAGAIN: "Close other programs, or raise the limit on processes (ulimit -u).",
        errno.ENOMEM: "Close other programs, and run it again.",
    }
    hint = hints.get(error.errno or 0, "Install localspec again.")
    return errors.EngineError(f"The engine cannot be started: {error.strerror}.", hint)


Files = dict[str, tuple[int, int] | None]
"""Size and time of change by name; None for one that cannot be looked at."""


def looked_at(*names: str | None) -> Files:
    """The files of a pair as they are now."""
    return {name: _look(name) for name in names if name}


def of_files(dead: Dead, before: Mapping[str, tuple[int, int] | None]) -> Dead:
    """With the file that changed under a running engine, where that is what it died of."""
    if dead.how != "signal SIGBUS":
        return dead
    for name, was in before.items():
        if (now := _look(name)) != was:
            what = f"it has {now[0]:,} bytes now" if now else "it cannot be looked at any more"
            path = clean(name, multiline=False)
            return replace(dead, hint=f"{_CHANGED}: {path}; {what}.")
    return dead


def _look(name: str) -> tuple[int, int] | None:
    try:
        found = os.stat(name)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def error(dead: Dead) -> errors.LocalspecError:
    """The same, for a person."""
    last = next((line for line in reversed(dead.log) if _telling(line)), "")
    what = f"The engine stopped: {say(dead.how)}." + (f" Its last words: {last}" if last else "")
    told = _kind(dead)(what, dead.hint)
    kept = engine_log.file()
    told.detail = (*dead.log, f"All engines' words: {kept}") if kept.exists() else dead.log
    return told


def _kind(dead: Dead) -> type[errors.LocalspecError]:
    if dead.how in ("oom-gpu", "oom-system"):
        return errors.OutOfMemoryError
    return errors.AccessError if dead.hint == _ROOM else errors.EngineError


def _signal(code: int | None) -> str:
    if code is None:
        return ""
    if code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"SIG{-code}"
    return _WINDOWS.get(code, "")


def say(how: str) -> str:
    """What it died of, in words."""
    words = {
        "oom-gpu": "the GPU ran out of memory",
        "oom-system": "the system killed it, most likely because memory ran out",
        "assert": "llama.cpp gave up",
        "hang": "it did not answer any more and was ended",
        "protocol": "it said something that makes no sense",
    }
    return words.get(how, how.replace("signal", "it died of").replace("exit", "it ended with code"))


def _telling(line: str) -> bool:
    return any(phrase in line.lower() for phrase in (*_GPU, *_ASSERTS, *_DISK, "error"))
