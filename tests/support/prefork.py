"""A process that has imported every command, and forks for each.

Imports take most of the time of a short command.
"""

import gc
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_SERVER = "from tests.support.prefork import serve; serve({})"
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_")
"""Beginnings of the variables that a process reads before its first import."""


def can_fork(changes: Mapping[str, str]) -> bool:
    """Whether a forked process behaves like a new one under these variables."""
    return sys.platform == "linux" and not any(
        name.startswith(_READ_AT_START) for name in changes
    )


class Prefork:
    """Its process is no child of this one, whose children some tests count."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with (
            theirs,
            subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVER.format(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # its streams must be like those of the commands: no files
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
            ),
        ):
            pass

    def run(
        self,
        arguments: Sequence[str],
        stdin: bytes,
        env: Mapping[str, str],
        cwd: Path | None,
        timeout: float,
    ) -> tuple[int, bytes, bytes]:
        """The exit code of a command, and what it wrote.  Raises TimeoutError."""
        with (
            tempfile.TemporaryFile(buffering=0) as request,
            ExitStack() as theirs,
            ThreadPoolExecutor() as pool,
        ):
            request.write(
                pickle.dumps((arguments, dict(env), os.fspath(cwd or os.getcwd())))
            )
            request.seek(0)
            (read, to), (from_out, out), (from_err, err) = (os.pipe() for _ in range(3))
            for end in (read, out, err):
                theirs.callback(os.close, end)
            pool.submit(_write, to, stdin)
            seen = [pool.submit(_read, end) for end in (from_out, from_err)]
            socket.send_fds(self._socket, [b"r"], [request.fileno(), read, out, err])
            theirs.close()
            self._socket.settimeout(timeout)
            pid = self._receive()
            try:
                code = self._receive()
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                self._receive()
                raise
            return code, seen[0].result(), seen[1].result()

    def _receive(self) -> int:
        (number,) = struct.unpack("i", self._socket.recv(4))
        return int(number)


def _write(end: int, data: bytes) -> None:
    with suppress(BrokenPipeError), os.fdopen(end, "wb") as file:
        file.write(data)


def _read(end: int) -> bytes:
    with os.fdopen(end, "rb") as file:
        return file.read()


def serve(descriptor: int) -> None:
    """Fork for each request, answer with process id and exit code; end with the socket."""
    if os.fork():
        os._exit(0)
    # not in the process of the tests
    from localspec import cli, command_table, extras  # noqa: PLC0415
    from localspec.models import catalog  # noqa: PLC0415

    for row in command_table.read_commands().values():
        extras.load_object(row.path)
    catalog.load()  # cached until its file changes
    gc.freeze()
    with socket.socket(fileno=descriptor) as requests:
        while True:
            message, given, *_ = socket.recv_fds(requests, 1, 4)
            if not message:
                return
            os.lseek(given[0], 0, os.SEEK_SET)  # the position is shared with the sender
            with os.fdopen(given[0], "rb") as file:
                arguments, env, cwd = pickle.load(file)
            pid = os.fork()
            if not pid:
                break
            for end in given[1:]:
                os.close(end)
            requests.sendall(struct.pack("i", pid))
            requests.sendall(
                struct.pack("i", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            )
    for number, end in enumerate(given[1:]):
        os.dup2(end, number)
        os.close(end)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = ["localspec", *arguments]
    cli.main()
