"""What localspec can mend itself, by the finding's id; nothing happens before a person agreed.

Nothing is deleted but what downloads left behind: a damaged file is kept under another name.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from localspec import paths
from localspec.chat.history import repair
from localspec.doctor import llama_build
from localspec.doctor.findings import CommandLine, Finding, RepairAction
from localspec.machine import install_commands, llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.models import local_files
from localspec.sanitize import sanitize
from localspec.units import gb
from localspec.worker import crashes

_CPU_CHOICE = LlamaCppBuild("cpu", "", compilers=("c++", "cl"))
_TRUE_VALUES = ("1", "on", "yes", "true")


def find_repair(finding: Finding) -> RepairAction | None:
    """What can be done about it from here; None: only the person can."""
    if finding.id == "library-missing":  # which one, the loader said
        return _install_action(partial(_cuda_library_commands, finding.what))
    make = _REPAIRS.get(finding.id)
    return make() if make is not None else None


# --- builds of llama.cpp ------------------------------------------------------------------


def _install_action(commands: Callable[[], tuple[CommandLine, ...]]) -> RepairAction | None:
    """From the package index: not where the network is forbidden, or the build is one's own."""
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE_VALUES
    if offline or os.environ.get("LLAMA_CPP_LIB_PATH") or not (lines := commands()):
        return None
    shown = "\n\n".join(sanitize(str(line)) for line in lines)
    slow = any("--no-binary" in line.argv for line in lines)
    time_ = "It compiles llama.cpp: minutes." if slow else "It downloads some hundred MB."
    return RepairAction("install it", f"Run this? {time_}\n\n{shown}", commands=lines)


def _gpu_build_commands() -> tuple[CommandLine, ...]:
    return llama_build.install_commands(
        llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
    )


def _cpu_build_commands() -> tuple[CommandLine, ...]:
    return llama_build.reinstall_commands(_CPU_CHOICE)


def _missing_engine_commands() -> tuple[CommandLine, ...]:
    choice = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
    return llama_build.reinstall_commands(choice) or llama_build.reinstall_commands(_CPU_CHOICE)


def _cuda_library_commands(loader_error: str) -> tuple[CommandLine, ...]:
    """NVIDIA's, of the generation that the loader misses."""
    found = re.search(
        r"(?:libcudart|libcublas)\.so\.(\d+)|(?:cudart|cublas)64_(\d\d)", loader_error
    )
    needed = llama_cpp_builds.cuda_libraries(found[1] or found[2]) if found else ()
    if not needed or not install_commands.can_install():
        return ()
    choice = LlamaCppBuild("cuda", "", libraries=needed)
    return (
        CommandLine(
            tuple(
                install_commands.libraries_command(
                    choice, sys.executable, install_commands.find_uv()
                )
            )
        ),
    )


# --- files --------------------------------------------------------------------------------


def _remove_leftovers() -> RepairAction | None:
    left = local_files.find_leftovers()
    if not left:
        return None
    size = gb(sum(one.size for one in left))
    question = f"Remove {len(left)} unfinished downloads, {size}? They would begin anew."
    return RepairAction(
        "remove them", question, lambda: f"{gb(local_files.delete_leftovers(left))} are free now."
    )


def _set_aside_action(path: Callable[[], Path], consequence: str) -> RepairAction | None:
    where = path()
    if not where.exists():
        return None
    shown = sanitize(str(where), multiline=False)
    question = f"Set {shown} aside? It is kept beside, under another name; {consequence}."
    return RepairAction("set it aside", question, partial(_set_aside, where))


def _set_aside(path: Path) -> str:
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    there = path.with_name(f"{path.name}.damaged-{utc}")
    path.rename(there)
    return f"It is now {sanitize(str(there), multiline=False)}"


def _make_folder() -> RepairAction | None:
    folder = local_files.models_folder()
    if folder is None or folder.exists():
        return None

    def make() -> str:
        folder.mkdir(parents=True)
        return "It is there."

    return RepairAction(
        "make it", f"Make the folder {sanitize(str(folder), multiline=False)}?", make
    )


def _repair_chats() -> RepairAction:
    def mend() -> str:
        mended = repair.repair_file(paths.chats_file())
        if mended is None:
            return "Another localspec has just mended it."
        where = sanitize(str(mended.damaged_copy), multiline=False)
        return f"{mended.recovered_chats} chats were saved. The old file is {where}"

    question = "Save all chats that can be read into a new file? The damaged one is kept aside."
    return RepairAction("mend it", question, mend)


def _forget_crashes() -> RepairAction:
    def forget() -> str:
        crashes.clear()
        return "They may begin anew."

    question = "Forget that these pairs crashed? They are then restarted after a crash, as others."
    return RepairAction("forget them", question, forget)


_REPAIRS: dict[str, Callable[[], RepairAction | None]] = {
    "cpu-only-build": partial(_install_action, _gpu_build_commands),
    "slow-build": partial(_install_action, _cpu_build_commands),
    "other-cpu": partial(_install_action, _cpu_build_commands),
    "illegal-instruction": partial(_install_action, _cpu_build_commands),
    "engine-fails": partial(_install_action, _cpu_build_commands),
    "engine-missing": partial(_install_action, _missing_engine_commands),
    "leftovers": _remove_leftovers,
    "models-folder": _make_folder,
    "config-damaged": partial(
        _set_aside_action, paths.config_file, "without it everything is as it comes"
    ),
    "catalogue-damaged": partial(
        _set_aside_action, paths.user_catalog_file, "the built-in pairs stay"
    ),
    "chats-damaged": _repair_chats,
    "crash-loops": _forget_crashes,
}
