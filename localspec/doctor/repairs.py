"""The repairs that localspec can do itself, and the process that runs their commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from localspec import config, paths
from localspec.chat.history import repair
from localspec.doctor import llama_build
from localspec.doctor.findings import CommandLine, RepairAction
from localspec.errors import LocalspecError
from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.models.local_files import inventory
from localspec.sanitize import sanitize
from localspec.units import count, gb

_CPU_BUILD = LlamaCppBuild("cpu", "", compilers=("c++", "cl"))
_REINSTALLED = ("slow-build", "other-cpu", "illegal-instruction", "engine-fails")
"""What a build for this CPU mends."""


def find_repair(finding_id: str) -> RepairAction | None:
    """None if localspec has no action for this finding."""
    if finding_id == "leftovers" and (leftovers := inventory.find_leftovers()):
        downloads = count(len(leftovers), "incomplete download")
        size = gb(sum(file.size for file in leftovers))
        question = (
            f"Remove {downloads}, {size}? Downloading again would start from zero."
        )
        return RepairAction(
            "remove them",
            question,
            lambda: f"Freed {gb(inventory.delete_leftovers(leftovers))}.",
        )
    if finding_id == "chats-damaged":
        question = "Copy all readable chats to a new file? The damaged file is kept."
        return RepairAction("repair it", question, _repair_chats)
    if finding_id in ("cpu-only-build", "engine-missing", *_REINSTALLED):
        return _reinstall(finding_id)
    return None


def _reinstall(finding_id: str) -> RepairAction | None:
    """None if offline, or if LLAMA_CPP_LIB_PATH selects the user's own build."""
    if config.resolve().get("network.offline") or os.environ.get("LLAMA_CPP_LIB_PATH"):
        return None
    commands: tuple[CommandLine, ...] = ()
    if finding_id not in _REINSTALLED:
        build = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
        is_installed = finding_id == "cpu-only-build"
        commands = llama_build.install_commands_for(build, checkout=is_installed)
    if finding_id != "cpu-only-build":
        commands = commands or llama_build.install_commands_for(_CPU_BUILD)
    if not commands:
        return None
    compiles = any("--no-binary" in line.argv for line in commands)
    cost = (
        "compiles llama.cpp and takes minutes"
        if compiles
        else "downloads a few hundred MB"
    )
    text = "\n\n".join(sanitize(str(line)) for line in commands)
    return RepairAction(
        "install it", f"Run this? This {cost}.\n\n{text}", commands=commands
    )


def _repair_chats() -> str:
    result = repair.repair_file(paths.chats_file())
    if result is None:
        return "Another localspec has just repaired the file."
    damaged = sanitize(str(result.damaged_copy), multiline=False)
    recovered = count(result.recovered_chats, "chat")
    return f"{recovered} recovered. The damaged file is kept as {damaged}"


# A stopped installer needs time to restore the package it was replacing.
_GRACE_SECONDS = 15.0
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
        """Whether it succeeded, and a sentence about the result; the first failure ends
        it.
        """
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
            threading.Thread(
                target=_kill_after_grace, args=(process,), daemon=True
            ).start()

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
                text = sanitize(
                    line.decode("utf-8", "replace").rstrip(), multiline=False
                )
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
    # Children may have ignored the interrupt; they hold the pipe open, so reading would
    # never end.
    _send_signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
