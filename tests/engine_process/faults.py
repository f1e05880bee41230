"""Ways in which an engine process fails, each done for real; `out` is its real stdout."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from localspec.protocol import wire

FLOOD = 100 * 1024 * 1024


def _flood() -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(FLOOD // 1024):
        os.write(2, line)


def _abort() -> None:
    os.write(2, b"ggml.c:1234: GGML_ASSERT(n > 0) failed\n")
    os.kill(os.getpid(), signal.SIGABRT)


def _cuda() -> None:
    os.write(2, b"CUDA error: out of memory\n  current device: 0\n")
    os.kill(os.getpid(), signal.SIGABRT)


def _hang() -> None:
    while True:
        time.sleep(60)


def _beat(out: int, busy: float, seconds: int, *, ends: bool) -> None:
    """Heartbeats of the first answer, as if it stood still for so long."""
    for stuck in range(0, seconds, 10):
        os.write(out, wire.encode_output(2, wire.HeartbeatReply(float(stuck), busy)))
    if not ends:
        _hang()


def _full_disk() -> None:
    """Raises what a write to any file of a full disk raises."""
    with open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


def _newer(out: int) -> None:
    """What the engine of another version of localspec says first."""
    os.write(out, wire.encode_output(0, wire.HelloReply(wire.PROTOCOL_VERSION + 1, os.getpid())))


def faults(out: int) -> dict[str, Callable[[], object]]:
    return {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
        "abort": _abort,
        "cuda": _cuda,
        "hang": _hang,
        "compiles": lambda: _beat(out, 0.4, 900, ends=True),
        "compiles for ever": lambda: _beat(out, 0.4, 2000, ends=False),
        "deadlock": lambda: _beat(out, 0.001, 300, ends=False),
        "compiles until killed": lambda: _beat(out, 0.4, 60, ends=False),
        "garbage": lambda: os.write(out, b"\xff\xfe not json at all\n"),
        "deep": lambda: os.write(out, b"[" * 60_000 + b"\n"),
        "endless": lambda: [os.write(out, b"[" * 65536) for _ in range(200)],
        "disk": _full_disk,
        "flood": _flood,
        "exit": lambda: os._exit(3),
        "newer": lambda: _newer(out),
        "silent": lambda: os._exit(0),
        "none": lambda: None,
    }


ENDS = {
    "kill": ("oom-system", 11),
    "segv": ("signal SIGSEGV", 9),
    "abort": ("assert", 9),
    "cuda": ("oom-gpu", 11),
    "garbage": ("protocol", 9),
    "deep": ("protocol", 9),
    "endless": ("protocol", 9),
    "disk": ("exit 1", 8),
    "exit": ("exit 3", 9),
    "silent": ("exit 0", 9),
    "hang": ("hang", 9),
}
"""What each is called in `Dead.how`, and the exit code."""
