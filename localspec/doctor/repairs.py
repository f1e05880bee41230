"""The repairs that localspec can do itself, and the process of their commands."""

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

_CPU_BUILD = LlamaCppBuild(backend="cpu", reason="", compilers=("c++", "cl"))
_REINSTALLED = ("slow-build", "other-cpu", "illegal-instruction", "engine-fails")
"""Findings that a build for this CPU resolves."""


def find_repair(finding_id: str) -> RepairAction | None:
    """None if localspec has no action for this finding."""
    if finding_id == "leftovers":
        return _remove_leftovers()
    if finding_id == "chats-damaged":
        question = "Copy all readable chats to a new file? The damaged file is kept."
        return RepairAction("repair it", question, _repair_chats)
    if finding_id in ("cpu-only-build", "engine-missing", *_REINSTALLED):
        return _reinstall(finding_id)
    return None


def _remove_leftovers() -> RepairAction | None:
    leftovers = inventory.find_leftovers()
    if not leftovers:
        return None
    downloads = count(len(leftovers), "incomplete download")
    size = gb(sum(file.size for file in leftovers))
    question = f"Remove {downloads}, {size}? Downloading again would start from zero."

    def remove() -> str:
        n_bytes = inventory.delete_leftovers(leftovers)
        return f"Freed {gb(n_bytes)}."

    return RepairAction("remove them", question, remove)


def _reinstall(finding_id: str) -> RepairAction | None:
    """None if offline, or if LLAMA_CPP_LIB_PATH selects the user's own build."""
    if config.resolve().get("network.offline") or os.environ.get("LLAMA_CPP_LIB_PATH"):
        return None
    commands = _choose_install_commands(finding_id)
    if not commands:
        return None
    cost = "downloads a few hundred MB"
    if any("--no-binary" in line.argv for line in commands):
        cost = "compiles llama.cpp and takes minutes"
    text = "\n\n".join(sanitize(str(line)) for line in commands)
    question = f"Run this? This {cost}.\n\n{text}"
    return RepairAction("install it", question, commands=commands)


def _choose_install_commands(finding_id: str) -> tuple[CommandLine, ...]:
    """Those of the best build for the hardware, or of a build for this CPU.

    A missing llama.cpp is replaced by a build for this CPU if the best one cannot be
    installed. A CPU-only build is not replaced by another CPU-only build.
    """
    if finding_id in _REINSTALLED:
        return llama_build.install_commands_for(_CPU_BUILD)
    build = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
    if finding_id == "cpu-only-build":
        return llama_build.install_commands_for(build, checkout=True)
    commands = llama_build.install_commands_for(build)
    return commands or llama_build.install_commands_for(_CPU_BUILD)


def _repair_chats() -> str:
    result = repair.repair_file(paths.chats_file())
    if result is None:
        return "Another localspec has just repaired the file."
    damaged = sanitize(str(result.damaged_copy), multiline=False)
    recovered = count(result.recovered_chats, "chat")
    return f"{recovered} recovered. The damaged file is kept as {damaged}"


_GRACE_SECONDS = 15.0
"""A stopped installer needs time to restore the package that it was replacing."""
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
        self._action = action
        self._on_line = on_line
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def run(self) -> tuple[bool, str]:
        """Run the commands, then the quick action; the first failure ends the repair.

        Returns whether it succeeded, and a sentence about its result.
        """
        for command in self._action.commands:
            if self._stopped.is_set():
                return False, "Stopped."
            self._on_line(f"$ {sanitize(str(command), multiline=False)}")
            code = self._run_command(command)
            if self._stopped.is_set():
                return False, "Stopped."
            if code:
                return False, f"Failed with exit code {code}."
        if self._action.run is None:
            return True, "Done."
        try:
            text = self._action.run()
        except LocalspecError as error:
            return False, f"{error.message} {error.hint}"
        except OSError as error:
            return False, f"Failed: {error.strerror or error}"
        return True, sanitize(text, multiline=False)

    def stop(self) -> None:
        """Interrupt the command and its children; kill them after _GRACE_SECONDS."""
        self._stopped.set()
        process = self._process
        if process is None or process.poll() is not None:
            return
        _send_signal(process, signal.SIGINT)
        killer = threading.Thread(
            target=_kill_after_grace, args=(process,), daemon=True
        )
        killer.start()

    def _run_command(self, command: CommandLine) -> int:
        is_windows = sys.platform == "win32"
        # Only Windows has this flag.
        new_group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        try:
            process = subprocess.Popen(
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_QUIET_ENVIRON, **dict(command.environ)},
                # So the compilers that it starts are stopped with it.
                start_new_session=not is_windows,
                creationflags=new_group,
            )
        except OSError as error:
            self._on_line(f"Cannot start the command: {error.strerror or error}")
            return 127
        self._process = process
        if self._stopped.is_set():
            self.stop()  # The earlier call found no process.
        with process:
            assert process.stdout is not None, "stdout is a pipe"
            for line in process.stdout:
                text = line.decode("utf-8", "replace").rstrip()
                clean = sanitize(text, multiline=False)
                self._on_line(clean[:_MAX_LINE_LENGTH])
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
    # Children that ignored the interrupt hold the pipe open: reading would not end.
    _send_signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
