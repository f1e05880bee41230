"""Repair actions by finding id; they run only after the person confirms them."""

from __future__ import annotations

import os

from localspec import config, paths
from localspec.chat.history import repair
from localspec.doctor import llama_build
from localspec.doctor.findings import CommandLine, RepairAction
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
    if finding_id == "leftovers":
        return _remove_leftovers()
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
    cost = "compiles llama.cpp and takes minutes" if compiles else "downloads a few hundred MB"
    text = "\n\n".join(sanitize(str(line)) for line in commands)
    return RepairAction("install it", f"Run this? This {cost}.\n\n{text}", commands=commands)


def _remove_leftovers() -> RepairAction | None:
    if not (leftovers := inventory.find_leftovers()):
        return None
    downloads, size = count(len(leftovers), "incomplete download"), sum(f.size for f in leftovers)
    question = f"Remove {downloads}, {gb(size)}? Downloading again would start from zero."
    return RepairAction(
        "remove them", question, lambda: f"Freed {gb(inventory.delete_leftovers(leftovers))}."
    )


def _repair_chats() -> str:
    result = repair.repair_file(paths.chats_file())
    if result is None:
        return "Another localspec has just repaired the file."
    damaged = sanitize(str(result.damaged_copy), multiline=False)
    recovered = count(result.recovered_chats, "chat")
    return f"{recovered} recovered. The damaged file is kept as {damaged}"
