"""Runs a repair; passes on the output of its commands line by line, and can be stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from localspec.doctor.findings import CommandLine, RepairAction
from localspec.errors import LocalspecError
from localspec.sanitize import sanitize

_GRACE_SECONDS = 15.0  # A stopped installer needs time to restore the package it was replacing.
_MAX_LINE_LENGTH = 2_000  # Longer output lines are cut; in characters.
_QUIET_ENVIRON = {
    "PIP_NO_INPUT": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_PROGRESS_BAR": "off",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}


class RepairRunner:
    """`run` blocks its thread; `stop` may be called from any other thread."""

    def __init__(self, action: RepairAction, on_line: Callable[[str], None]) -> None:
        """`on_line` receives every output line, without terminal control sequences."""
        self._action, self._on_line = action, on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def run(self) -> tuple[bool, str]:
        """Whether it succeeded, and a sentence about the result; the first failure ends it."""
        text = "Done."
        for command in self._action.commands:
            if not self._stopped.is_set():
                self._on_line(f"$ {sanitize(str(command), multiline=False)}")
                code = self._run_command(command)
            if self._stopped.is_set():
                return False, "Stopped."
            if code:
                return False, f"Failed with exit code {code}."
        try:
            text = self._action.run() if self._action.run is not None else text
        except LocalspecError as error:
            return False, f"{error.message} {error.hint}"
        except OSError as error:
            return False, f"Failed: {error.strerror or error}"
        return True, sanitize(text, multiline=False)

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
