"""Runs every check, which changes nothing and opens no socket; finds the repairs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from localspec import config, paths
from localspec.chat.history import repair
from localspec.doctor import engine_checks, environment_checks, llama_build, storage_checks
from localspec.doctor.findings import CommandLine, Finding, RepairAction, problem, redact
from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.models.local_files import inventory
from localspec.sanitize import sanitize
from localspec.units import count, gb

AREAS: dict[str, Callable[[], Iterator[Finding]]] = {
    "engine": engine_checks.check_engine,
    "devices": engine_checks.check_devices,
    "disk": storage_checks.check_disk,
    "chats": storage_checks.check_chats,
    "network": environment_checks.check_network,
    "terminal": environment_checks.check_terminal,
    "models": storage_checks.check_models,
}
"""The checks of each area, in the order of the report."""
_CPU_BUILD = LlamaCppBuild("cpu", "", compilers=("c++", "cl"))
_REINSTALLED = ("slow-build", "other-cpu", "illegal-instruction", "engine-fails")
"""What a build for this CPU mends."""


def run_checks() -> tuple[Finding, ...]:
    """All findings, safe to share: no home folder, no user name, no tokens."""
    return tuple(finding for area in AREAS for finding in check_area(area))


def check_area(area: str) -> Iterator[Finding]:
    """Runs one of AREAS, and adds the repair of each problem; an exception becomes a finding."""
    try:
        for finding in AREAS[area]():
            yield redact(replace(finding, action=find_repair(finding.id)))
    except Exception as error:  # one area that breaks must not hide the others
        what = f"this check failed: {type(error).__name__}: {error}"
        yield redact(problem(area, "failed", what, "Report this, with the whole output."))


def find_repair(finding_id: str) -> RepairAction | None:
    """None if localspec has no action for this finding."""
    if finding_id == "leftovers" and (leftovers := inventory.find_leftovers()):
        downloads = count(len(leftovers), "incomplete download")
        size = gb(sum(file.size for file in leftovers))
        question = f"Remove {downloads}, {size}? Downloading again would start from zero."
        return RepairAction(
            "remove them", question, lambda: f"Freed {gb(inventory.delete_leftovers(leftovers))}."
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
    cost = "compiles llama.cpp and takes minutes" if compiles else "downloads a few hundred MB"
    text = "\n\n".join(sanitize(str(line)) for line in commands)
    return RepairAction("install it", f"Run this? This {cost}.\n\n{text}", commands=commands)


def _repair_chats() -> str:
    result = repair.repair_file(paths.chats_file())
    if result is None:
        return "Another localspec has just repaired the file."
    damaged = sanitize(str(result.damaged_copy), multiline=False)
    recovered = count(result.recovered_chats, "chat")
    return f"{recovered} recovered. The damaged file is kept as {damaged}"
