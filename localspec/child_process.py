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
"""Ends of the names of variables that no child needs, and a hostile file could ask for.
"""
_KEPT_VARIABLES = ("GGML_CUDA_", "GGML_VK_", "GGML_METAL_", "LLAMA_CPP_LIB_PATH")
"""Exceptions to the above: GPU settings, and the path of the user's own llama.cpp
build.
"""


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """`variables` without secrets, and those that load other code; no debugger on an
    abort.
    """
    allowed = {
        name: value
        for name, value in variables.items()
        if (not name.startswith(_DROPPED_VARIABLES) or name.startswith(_KEPT_VARIABLES))
        and not name.upper().endswith(_SECRETS)
    }
    # numpy multiplies small matrices only; its threads would spin beside llama.cpp's.
    allowed.setdefault("OPENBLAS_NUM_THREADS", "1")
    return allowed | {"GGML_NO_BACKTRACE": "1", "PYTHONUTF8": "1"}


_started_early: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}


def engine_command() -> list[str]:
    return [sys.executable, "-P", "-m", "localspec.engine", str(parent_pid_for_child())]


def start_early(arguments: Sequence[str]) -> None:
    """Start a child that `start` will soon be called for; without use it exits with the
    parent.
    """
    if (key := tuple(arguments)) not in _started_early:
        with suppress(OSError):
            _started_early[key] = start(arguments)


def start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a child with three unbuffered pipes; the terminal's Ctrl+C does not reach
    it.

    Raises OSError if the system cannot start it.
    """
    if (early := _started_early.pop(tuple(arguments), None)) is not None:
        return early
    windows = sys.platform == "win32"
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    package = Path(__file__).resolve().parent
    import_path = [str(package.parent), *filter(None, inherited)]
    process = subprocess.Popen(
        arguments,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=package,  # ggml searches the current directory for libraries.
        # The child imports this same package, from a wheel or from a checkout.
        env=child_environment(os.environ)
        | {"PYTHONPATH": os.pathsep.join(import_path)},
        start_new_session=not windows,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        if windows
        else 0,
    )
    if windows:
        _kill_with_parent(process)
    return process


def set_up_child(parent_pid: int) -> None:
    """In the child: exit with the parent, be killed before it when memory is short,
    dump no core.

    Limits that the system lacks are skipped. The child also exits when its stdin
    closes.
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

        cpu_limit = int(sum(os.times()[:2])) + cpu_seconds
        with suppress(OSError, ValueError):
            if cpu_seconds:
                resource.setrlimit(
                    resource.RLIMIT_CPU, (cpu_limit, resource.RLIM_INFINITY)
                )
            if address_space:
                resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))


def parent_pid_for_child() -> int:
    """For `set_up_child`; 0 outside the main thread: Linux signals when the thread
    ends.
    """
    return os.getpid() if threading.current_thread() is threading.main_thread() else 0


def take_over_stdout() -> int:
    """In the child: return a descriptor of the real stdout, and send what is printed to
    stderr.
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
"""Stay open until this process exits: Windows kills a job when its last handle closes.
"""


def _kill_with_parent(
    process: subprocess.Popen[bytes],
) -> None:  # pragma: no cover  Windows
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
    job = kernel.CreateJobObjectW(None, None)
    limits = (ctypes.c_byte * 144)()  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION on 64 bits
    # JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
    ctypes.c_uint32.from_buffer(limits, 16).value = 0x2000
    # 9: the extended limits
    kernel.SetInformationJobObject(job, 9, limits, len(limits))
    kernel.AssignProcessToJobObject(job, int(process._handle))  # type: ignore[attr-defined,unused-ignore]
    _job_handles.append(job)
