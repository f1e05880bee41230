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
        error = exit_causes.exit_error(dead)

        assert dead.how == how
        assert hint in dead.hint
        assert error.exit_code == code
        if how != "oom-system":
            assert number.name in error.message


LOG_LINES = {
    ("oom-gpu", "fewer --gpu-layers", 11): (
        "CUDA error: out of memory",
        "ROCm error: out of memory",
        "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
    ),
    ("oom-host", "smaller --ctx", 11): (
        "  what():  std::bad_alloc",
        "  what():  vk::Device::allocateMemory: ErrorOutOfHostMemory",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate",
        "insufficient memory (attempted to allocate 512.00 MB)",
    ),
    ("assert", "Try another file", 9): (
        "CUDA error: device not ready",
        "ggml.c:12: GGML_ASSERT(x) failed",
    ),
    ("signal SIGABRT", "Reinstall localspec", 9): (
        "ModuleNotFoundError: No module named 'numpy'",
        "AttributeError: module 'llama_cpp.llama_cpp' has no",
    ),
    ("signal SIGABRT", "Free disk space", 8): (
        "write failed: No space left on device",
    ),
}
"""Lines as backends write them, by `EngineExit.how`, the hint and the exit code."""


@pytest.mark.parametrize(("how", "hint", "exit_code"), LOG_LINES)
def test_a_line_of_the_log_shows_the_cause(how: str, hint: str, exit_code: int) -> None:
    for line in LOG_LINES[how, hint, exit_code]:
        log = ["first line", line]
        if how == "oom-host":  # C++ prints its own line before that of the exception.
            log.insert(
                1, "terminate called after throwing an instance of 'std::exception'"
            )

        dead = exit_causes.classify_exit(-signal.SIGABRT, log)
        error = exit_causes.exit_error(dead)

        assert dead.how == how, line
        assert hint in dead.hint
        assert error.exit_code == exit_code
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
    assert told.endswith(".gguf; it is no longer accessible.")
    assert told.isprintable()
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

        assert os.strerror(number) in error.message
        assert hint in error.hint
        assert error.exit_code == 9
