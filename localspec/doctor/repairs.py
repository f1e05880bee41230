"""Repair actions by finding id; they run only after the person confirms them.

Only incomplete downloads are deleted: a damaged file is kept under another name.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from localspec import config, paths
from localspec.chat.history import repair
from localspec.doctor import llama_build
from localspec.doctor.findings import CommandLine, Finding, RepairAction
from localspec.machine import install_commands, llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.models import local_files
from localspec.sanitize import sanitize
from localspec.units import count, gb
from localspec.worker import crashes

_CPU_CHOICE = LlamaCppBuild("cpu", "", compilers=("c++", "cl"))


def find_repair(finding: Finding) -> RepairAction | None:
    """None if localspec has no action for this finding."""
    if finding.id == "library-missing":  # the loader's message names the library
        return _install_action(partial(_cuda_library_commands, finding.what))
    make = _REPAIRS.get(finding.id)
    return make() if make is not None else None


# --- llama.cpp builds ---------------------------------------------------------------------


def _install_action(commands: Callable[[], tuple[CommandLine, ...]]) -> RepairAction | None:
    """None if offline, or if LLAMA_CPP_LIB_PATH selects the user's own build."""
    if (
        config.resolve().get("network.offline")
        or os.environ.get("LLAMA_CPP_LIB_PATH")
        or not (lines := commands())
    ):
        return None
    command_text = "\n\n".join(sanitize(str(line)) for line in lines)
    compiles = any("--no-binary" in line.argv for line in lines)
    cost = (
        "This compiles llama.cpp and takes minutes."
        if compiles
        else "This downloads a few hundred MB."
    )
    return RepairAction("install it", f"Run this? {cost}\n\n{command_text}", commands=lines)


def _gpu_build_commands() -> tuple[CommandLine, ...]:
    return llama_build.build_install_commands(
        llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
    )


def _cpu_build_commands() -> tuple[CommandLine, ...]:
    return llama_build.reinstall_commands(_CPU_CHOICE)


def _missing_engine_commands() -> tuple[CommandLine, ...]:
    choice = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
    return llama_build.reinstall_commands(choice) or llama_build.reinstall_commands(_CPU_CHOICE)


def _cuda_library_commands(loader_error: str) -> tuple[CommandLine, ...]:
    """Installs NVIDIA's CUDA libraries of the major version in the loader's message."""
    version = re.search(
        r"(?:libcudart|libcublas)\.so\.(\d+)|(?:cudart|cublas)64_(\d\d)", loader_error
    )
    libraries = llama_cpp_builds.cuda_libraries(version[1] or version[2]) if version else ()
    if not libraries or not install_commands.can_install():
        return ()
    choice, uv = LlamaCppBuild("cuda", "", libraries=libraries), install_commands.find_uv()
    return (CommandLine(tuple(install_commands.libraries_command(choice, sys.executable, uv))),)


# --- files --------------------------------------------------------------------------------


def _remove_leftovers() -> RepairAction | None:
    leftovers = local_files.find_leftovers()
    if not leftovers:
        return None
    downloads, size = count(len(leftovers), "incomplete download"), sum(f.size for f in leftovers)
    question = f"Remove {downloads}, {gb(size)}? Downloading again would start from zero."
    return RepairAction(
        "remove them", question, lambda: f"Freed {gb(local_files.delete_leftovers(leftovers))}."
    )


def _set_aside_action(path: Callable[[], Path], consequence: str) -> RepairAction | None:
    file = path()
    if not os.path.exists(file):
        return None
    name = sanitize(str(file), multiline=False)
    question = f"Rename {name}? It stays in the same folder, under another name; {consequence}."
    return RepairAction("rename it", question, partial(_set_aside, file))


def _set_aside(path: Path) -> str:
    utc = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    renamed = path.with_name(f"{path.name}.damaged-{utc}")
    path.rename(renamed)
    return f"Renamed to {sanitize(str(renamed), multiline=False)}"


def _make_folder() -> RepairAction | None:
    folder = local_files.models_folder()
    if folder is None or os.path.exists(folder):
        return None

    def make() -> str:
        folder.mkdir(parents=True)
        return "Folder created."

    return RepairAction(
        "create it", f"Create the folder {sanitize(str(folder), multiline=False)}?", make
    )


def _repair_chats() -> RepairAction:
    def repair_file() -> str:
        result = repair.repair_file(paths.chats_file())
        if result is None:
            return "Another localspec has just repaired the file."
        damaged = sanitize(str(result.damaged_copy), multiline=False)
        recovered = f"{count(result.recovered_chats, 'chat')} recovered."
        return f"{recovered} The damaged file is kept as {damaged}"

    question = "Copy all readable chats to a new file? The damaged file is kept."
    return RepairAction("repair it", question, repair_file)


def _clear_crashes() -> RepairAction:
    def clear() -> str:
        crashes.clear()
        return "Crash count cleared."

    question = "Clear the crash count? Loading these pairs then shows no warning."
    return RepairAction("clear it", question, clear)


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
        _set_aside_action, paths.config_file, "all settings return to their defaults"
    ),
    "catalogue-damaged": partial(
        _set_aside_action, paths.user_catalog_file, "the built-in pairs remain"
    ),
    "chats-damaged": _repair_chats,
    "crash-loops": _clear_crashes,
}
