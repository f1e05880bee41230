"""Causes of an engine exit, and the hint for each."""

import errno
import os
import signal
import sys
from pathlib import Path

import pytest

from localspec.engine_process import exit_causes
from localspec.protocol.events import EngineExit

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")

BUS = EngineExit("signal SIGBUS", (), "")


def test_a_signal_is_named() -> None:
    for number, how, code, hint in [
        (signal.SIGSEGV, "signal SIGSEGV", 9, "Try another file"),
        (
            signal.SIGILL,
            "signal SIGILL",
            9,
            "processor instructions that this computer lacks",
        ),
        (signal.SIGFPE, "signal SIGFPE", 9, "Try another file"),
        (signal.SIGBUS, "signal SIGBUS", 9, "changed or its disk went away"),
        (signal.SIGKILL, "oom-system", 11, "Try a smaller --ctx"),
    ]:
        dead = exit_causes.classify_exit(-number, ())
        assert dead.how == how and hint in dead.hint
        error = exit_causes.exit_error(dead)
        assert error.exit_code == code and (
            number.name in error.message or how == "oom-system"
        )


LOGS = [
    ("CUDA error: out of memory", "oom-gpu", "fewer --gpu-layers"),
    ("ROCm error: out of memory", "oom-gpu", "fewer --gpu-layers"),
    (
        "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
        "oom-gpu",
        "fewer --gpu-layers",
    ),
    ("  what():  std::bad_alloc", "oom-host", "smaller --ctx"),
    (
        "  what():  vk::Device::allocateMemory: ErrorOutOfHostMemory",
        "oom-host",
        "smaller --ctx",
    ),
    (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate",
        "oom-host",
        "smaller --ctx",
    ),
    (
        "insufficient memory (attempted to allocate 512.00 MB)",
        "oom-host",
        "smaller --ctx",
    ),
    ("CUDA error: device not ready", "assert", "Try another file"),
    ("ggml.c:12: GGML_ASSERT(x) failed", "assert", "Try another file"),
    (
        "ModuleNotFoundError: No module named 'numpy'",
        "signal SIGABRT",
        "Reinstall localspec",
    ),
    (
        "AttributeError: module 'llama_cpp.llama_cpp' has no",
        "signal SIGABRT",
        "Reinstall",
    ),
    ("write failed: No space left on device", "signal SIGABRT", "Free disk space"),
]
"""A line as a backend writes it, the cause, and the hint."""


@pytest.mark.parametrize(("line", "how", "hint"), LOGS)
def test_a_line_of_the_log_shows_the_cause(line: str, how: str, hint: str) -> None:
    """C++ prints its own line before that of the exception."""
    log = (
        "first line",
        "terminate called after throwing an instance of 'std::exception'",
        line,
    )
    dead = exit_causes.classify_exit(
        -signal.SIGABRT, log if how == "oom-host" else log[::2]
    )
    assert dead.how == how and hint in dead.hint
    error = exit_causes.exit_error(dead)
    assert error.exit_code == (
        11 if how.startswith("oom") else 8 if "disk" in hint else 9
    )
    assert error.message.endswith(f"Last log line: {line}")


def test_a_file_that_changed_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / "a\x1b[2J.gguf", tmp_path / "b.gguf"]
    for path in paths:
        path.write_bytes(b"GGUF" * 100)
    before = exit_causes.stat_files(*map(str, paths), None)
    assert exit_causes.blame_changed_file(BUS, before) == BUS, (
        "a disk that went away shows nothing"
    )
    os.truncate(paths[1], 5)
    told = exit_causes.blame_changed_file(BUS, before).hint
    assert told.startswith(
        "The model file changed or its disk went away while it was in use: "
    )
    assert told.endswith("b.gguf; it has 5 bytes now.")
    paths[0].unlink()
    told = exit_causes.blame_changed_file(BUS, before).hint
    assert told.endswith(".gguf; it is no longer accessible.") and told.isprintable()
    other = EngineExit("assert", (), "x")
    assert exit_causes.blame_changed_file(other, before) == other


def test_why_it_cannot_be_started() -> None:
    for number, hint in [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "Close other programs"),
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "Close other programs"),
        (errno.ENOENT, "Reinstall localspec"),
    ]:
        error = exit_causes.start_error(OSError(number, os.strerror(number)))
        assert (
            os.strerror(number) in error.message
            and hint in error.hint
            and error.exit_code == 9
        )
