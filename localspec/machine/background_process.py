"""Work for another process of low priority: both sides of its protocol.

The parent writes requests as JSON lines. The child answers each with JSON lines that
have `progress` (0 to 1), and then with one that has `result` or `failed`. The work has
its own process because llama.cpp aborts on some files, and because a process can be
killed as soon as somebody waits for the computer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec import child_process
from localspec.errors import EngineError, LocalspecError
from localspec.sanitize import sanitize

Request = Mapping[str, Any]
OnProcessStart = Callable[[subprocess.Popen[bytes]], None]
"""Receives a process when it starts, so that another thread can kill it."""
ReportProgress = Callable[[float], None]
"""Receives the share of a request that is done."""

_LOW_PRIORITY = 10  # On Unix, of 19.


def run(
    module: str,
    requests: Sequence[Request],
    on_start: OnProcessStart = lambda _: None,
) -> Generator[Any, None, None]:
    """Send `requests` to a process that runs `module`, which calls `serve`.

    For each request it yields the shares that are done, as floats, and then the result.
    `on_start` gets the process, which another thread may kill. Closing the generator
    ends the process. Raises EngineError.
    """
    parent = str(child_process.parent_pid_for_child())
    try:
        process = child_process.start((sys.executable, "-P", "-m", module, parent))
    except OSError as error:
        raise EngineError(f"No process can be started: {error.strerror}.") from error
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        on_start(process)
        lines = [json.dumps(request).encode() + b"\n" for request in requests]
        process.stdin.write(b"".join(lines))
        n_left = len(requests)
        while n_left:
            line = process.stdout.readline()
            if not line:
                raise EngineError(
                    "llama.cpp ended without a result.", "The file may be damaged."
                )
            reply = json.loads(line)
            if "failed" in reply:
                raise EngineError(sanitize(str(reply["failed"]), multiline=False))
            if "progress" in reply:
                yield reply["progress"]
            else:
                n_left -= 1
                yield reply["result"]
    except OSError as error:
        raise EngineError(f"llama.cpp's process ended: {error.strerror}.") from error
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


# --- In the child


def serve(answer: Callable[[Request, ReportProgress], Any]) -> None:
    """Answer requests until standard input ends."""
    parent = 0
    if len(sys.argv) > 1:
        parent = int(sys.argv[1])
    child_process.set_up_child(parent)
    out = child_process.take_over_stdout()
    _lower_priority()

    def send(**body: Any) -> None:
        os.write(out, json.dumps(body).encode() + b"\n")

    with suppress(BrokenPipeError, KeyboardInterrupt):
        for line in sys.stdin:
            try:
                result = answer(json.loads(line), lambda share: send(progress=share))
                send(result=result)
            except LocalspecError as error:
                send(failed=error.message)
            except (OSError, ValueError, LookupError) as error:
                send(failed=str(error))


def _lower_priority() -> None:
    """Other programs come first.

    Linux may share the CPU among sessions (autogroup), whatever their processes. So the
    session gets a low priority too.
    """
    import psutil  # noqa: PLC0415  as in cpu_and_ram.py

    on_windows = getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", None)
    with suppress(psutil.Error, OSError):
        psutil.Process().nice(on_windows or _LOW_PRIORITY)
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_LOW_PRIORITY), encoding="ascii")
