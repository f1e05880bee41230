"""Causes of an engine exit, and the hint for each."""

from __future__ import annotations

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


SIGNALS = [
    (signal.SIGSEGV, "signal SIGSEGV", 9, "Try another file"),
    (signal.SIGILL, "signal SIGILL", 9, "processor instructions that this computer lacks"),
    (signal.SIGFPE, "signal SIGFPE", 9, "Try another file"),
    (signal.SIGBUS, "signal SIGBUS", 9, "changed or its disk went away"),
    (signal.SIGKILL, "oom-system", 11, "Try a smaller --ctx"),
]


def test_a_signal_is_named() -> None:
    for number, how, code, hint in SIGNALS:
        dead = exit_causes.classify_exit(-number, ())
        assert dead.how == how and hint in dead.hint
        error = exit_causes.exit_error(dead)
        assert error.exit_code == code
        assert number.name in error.message or how == "oom-system"


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: out of memory",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9 MiB: cudaMalloc failed",
        "ROCm error: out of memory",
        "MUSA error: out of memory",
        "vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
    ],
)
def test_a_gpu_without_memory(line: str) -> None:
    """As these backends write it; the abort that follows is the same."""
    dead = exit_causes.classify_exit(-signal.SIGABRT, (line,))
    assert dead.how == "oom-gpu" and "fewer --gpu-layers" in dead.hint
    assert exit_causes.exit_error(dead).exit_code == 11


@pytest.mark.parametrize(
    "line",
    [
        "  what():  std::bad_alloc",
        "  what():  vk::Device::allocateMemory: ErrorOutOfHostMemory",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.00 GiB",
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 512.00 MB)",
    ],
)
def test_a_computer_without_memory(line: str) -> None:
    """C++ prints its own line before that of the exception."""
    log = ("terminate called after throwing an instance of 'std::exception'", line)
    dead = exit_causes.classify_exit(-signal.SIGABRT, log)
    assert dead.how == "oom-host" and "smaller --ctx" in dead.hint
    error = exit_causes.exit_error(dead)
    assert error.exit_code == 11 and "this computer ran out of memory" in error.message


@pytest.mark.parametrize(
    "line",
    [
        "CUDA error: device not ready",
        "CUDA error: unspecified launch failure",
        "ROCm error: unspecified launch failure",
    ],
)
def test_a_gpu_that_was_lost(line: str) -> None:
    """After a suspend, say: the engine's end, with llama.cpp's words, and no end of ours."""
    dead = exit_causes.classify_exit(-signal.SIGABRT, ("some line", line))
    assert dead.how == "assert"
    assert line in exit_causes.exit_error(dead).message


@pytest.mark.parametrize(
    "line",
    [
        "ModuleNotFoundError: No module named 'numpy'",
        "ImportError: cannot import name 'x'",
        "AttributeError: module 'llama_cpp.llama_cpp' has no attribute 'llama_x'",
    ],
)
def test_a_part_that_is_missing(line: str) -> None:
    dead = exit_causes.classify_exit(1, ("Traceback (most recent call last):", line))
    assert (dead.how, "Reinstall localspec" in dead.hint) == ("exit 1", True)
    assert line in exit_causes.exit_error(dead).message


def test_a_file_that_changed_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / "a\x1b[2J.gguf", tmp_path / "b.gguf"]
    for path in paths:
        path.write_bytes(b"GGUF" * 100)
    before = exit_causes.stat_files(*map(str, paths), None)
    assert exit_causes.blame_changed_file(BUS, before) == BUS, "a disk that went away shows nothing"
    os.truncate(paths[1], 5)
    told = exit_causes.blame_changed_file(BUS, before).hint
    assert told.startswith("The model file changed or its disk went away while it was in use: ")
    assert told.endswith("b.gguf; it has 5 bytes now.")
    paths[0].unlink()
    told = exit_causes.blame_changed_file(BUS, before).hint
    assert told.endswith(".gguf; it is no longer accessible.") and told.isprintable()
    other = EngineExit("assert", (), "x")
    assert exit_causes.blame_changed_file(other, before) == other


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "Close other programs"),
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "Close other programs"),
        (errno.ENOENT, "Reinstall localspec"),
    ],
)
def test_why_it_cannot_be_started(number: int, hint: str) -> None:
    error = exit_causes.start_error(OSError(number, os.strerror(number)))
    assert os.strerror(number) in error.message and hint in error.hint
    assert error.exit_code == 9
