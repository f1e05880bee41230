"""Runs commands in sequence, passes on their output line by line, and can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from localspec.doctor.findings import CommandLine
from localspec.sanitize import sanitize

EXIT_STOPPED = 130
_GRACE_SECONDS = 15.0
"""A stopped installer needs time to restore the package it was replacing."""
_MAX_LINE_LENGTH = 2_000
"""Longer output lines are cut; in characters."""
_QUIET_ENVIRON = {
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_PROGRESS_BAR": "off",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}


class CommandRunner:
    """`run` blocks its thread; `stop` may be called from any other thread."""

    def __init__(self, commands: Sequence[CommandLine], on_line: Callable[[str], None]) -> None:
        """`on_line` receives every output line, without terminal control sequences."""
        self._commands, self._on_line = commands, on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def run(self) -> int:
        """The exit code of the first command that fails, else 0; EXIT_STOPPED after `stop`."""
        for command in self._commands:
            if self._stopped.is_set():
                return EXIT_STOPPED
            self._on_line(f"$ {sanitize(str(command), multiline=False)}")
            code = self._run_command(command)
            if self._stopped.is_set():
                return EXIT_STOPPED
            if code:
                return code
        return 0

    def stop(self) -> None:
        """Interrupts the command and its children; kills them after _GRACE_SECONDS."""
        self._stopped.set()
        if (process := self._process) is not None and process.poll() is None:
            _send_signal(process, signal.SIGINT)
            threading.Thread(target=_kill_after_grace, args=(process,), daemon=True).start()

    def _run_command(self, command: CommandLine) -> int:
        windows, group = sys.platform == "win32", "CREATE_NEW_PROCESS_GROUP"
        try:
            process = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_QUIET_ENVIRON, **dict(command.environ)},
                start_new_session=not windows,  # its compilers are stopped with it
                creationflags=getattr(subprocess, group, 0) if windows else 0,
            )
        except OSError as error:
            self._on_line(f"Cannot start the command: {error.strerror or error}")
            return 127
        self._process = process
        if self._stopped.is_set():  # stop() ran before there was a process
            self.stop()
        with process:
            assert process.stdout is not None, "stdout is a pipe"
            for line in process.stdout:
                text = sanitize(line.decode("utf-8", "replace").rstrip(), multiline=False)
                self._on_line(text[:_MAX_LINE_LENGTH])
        return process.returncode


def _send_signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(OSError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


def _kill_after_grace(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_SECONDS)
    # Children may have ignored the interrupt; they hold the pipe open, so reading would never end.
    _send_signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
