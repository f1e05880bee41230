"""Child processes: environment, resource limits and termination.

The parent calls `start`; the child calls `set_up_child` first.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_DROPPED_VARIABLES = (
    "GGML_",
    "LLAMA_",
    "LD_PRELOAD",
    "LD_AUDIT",
    "DYLD_INSERT",
    "PYTHONSTARTUP",
)
_SECRETS = ("_TOKEN", "_KEY", "_SECRET", "_PASSWORD")
"""Ends of the names of variables that no child needs.

A hostile file, read in the child, could ask for them.
"""
_KEPT_VARIABLES = ("GGML_CUDA_", "GGML_VK_", "GGML_METAL_", "LLAMA_CPP_LIB_PATH")
"""Exceptions to the above: GPU settings, and the user's own build of llama.cpp."""


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables` without secrets, and without those that load other code."""
    kept = {name: value for name, value in variables.items() if _is_kept(name)}
    # numpy multiplies small matrices only; its threads would spin beside llama.cpp's.
    kept.setdefault("OPENBLAS_NUM_THREADS", "1")
    kept["GGML_NO_BACKTRACE"] = "1"  # An abort starts no debugger.
    kept["PYTHONUTF8"] = "1"
    return kept


def _is_kept(variable: str) -> bool:
    if variable.upper().endswith(_SECRETS):
        return False
    if variable.startswith(_KEPT_VARIABLES):
        return True
    return not variable.startswith(_DROPPED_VARIABLES)


_started_early: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}


def engine_command() -> list[str]:
    return [sys.executable, "-P", "-m", "localspec.engine", str(parent_pid_for_child())]


def start_early(arguments: Sequence[str]) -> None:
    """Start a child that `start` will soon be called for.

    If that does not happen, the child exits with the parent.
    """
    key = tuple(arguments)
    if key not in _started_early:
        with suppress(OSError):
            _started_early[key] = start(arguments)


def start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a child with three unbuffered pipes, or return the one started early.

    The terminal's Ctrl+C does not reach it. Raises OSError if the system cannot start
    it.
    """
    early = _started_early.pop(tuple(arguments), None)
    if early is not None:
        return early
    package = Path(__file__).resolve().parent
    # The child imports this same package, from a wheel or from a checkout.
    import_path = [str(package.parent)]
    for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        if folder:
            import_path.append(folder)
    environment = child_environment(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(import_path)
    is_windows = sys.platform == "win32"
    # subprocess has this flag on Windows only.
    new_group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    process = subprocess.Popen(
        arguments,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=package,  # ggml searches the current directory for libraries.
        env=environment,
        start_new_session=not is_windows,
        creationflags=new_group,
    )
    if is_windows:
        _kill_with_parent(process)
    return process


def set_up_child(parent_pid: int) -> None:
    """In the child: exit with the parent, and dump no core.

    When memory is short, the system kills the child before the parent. Limits that the
    system lacks are skipped. The child also exits when its stdin closes.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("500", encoding="ascii")
        if parent_pid:
            with suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent_pid:  # the parent exited during start-up
                os._exit(0)
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  not on Windows

        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_resources(address_space: int = 0, cpu_seconds: int = 0) -> None:
    """In the child: limit its bytes of address space, and its CPU time from now on.

    0 is no limit. On systems without such limits, only the parent's time limit holds.
    """
    if sys.platform != "win32":
        import resource  # noqa: PLC0415  not on Windows

        times = os.times()
        cpu_limit = int(times.user + times.system) + cpu_seconds
        with suppress(OSError, ValueError):
            if cpu_seconds:
                resource.setrlimit(
                    resource.RLIMIT_CPU, (cpu_limit, resource.RLIM_INFINITY)
                )
            if address_space:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))


def parent_pid_for_child() -> int:
    """For `set_up_child`; 0 if it is not called in the main thread.

    Linux kills the child when the thread ends that started it, not the process.
    """
    if threading.current_thread() is not threading.main_thread():
        return 0
    return os.getpid()


def take_over_stdout() -> int:
    """In the child: return a descriptor of the real stdout.

    What is printed goes to stderr from now on.
    """
    real = os.dup(1)
    os.dup2(2, 1)
    return real


def terminate(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Close its stdin, wait up to `grace_seconds`, then kill.  Reaps the process."""
    with suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(timeout=grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_job_handles: list[Any] = []
"""Stay open until this process exits: Windows kills a job when its last one closes."""

_EXTENDED_LIMIT_INFORMATION = 9
_EXTENDED_LIMIT_INFORMATION_BYTES = 144
"""Of the struct JOBOBJECT_EXTENDED_LIMIT_INFORMATION on 64 bits."""
_LIMIT_FLAGS_OFFSET = 16
_KILL_ON_JOB_CLOSE = 0x2000


def _kill_with_parent(process: subprocess.Popen[bytes]) -> None:  # pragma: no cover
    """On Windows: put the child in a job, which ends with this process."""
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
    job = kernel.CreateJobObjectW(None, None)
    limits = (ctypes.c_byte * _EXTENDED_LIMIT_INFORMATION_BYTES)()
    flags = ctypes.c_uint32.from_buffer(limits, _LIMIT_FLAGS_OFFSET)
    flags.value = _KILL_ON_JOB_CLOSE
    kernel.SetInformationJobObject(
        job, _EXTENDED_LIMIT_INFORMATION, limits, len(limits)
    )
    kernel.AssignProcessToJobObject(job, int(process._handle))  # type: ignore[attr-defined,unused-ignore]
    _job_handles.append(job)
