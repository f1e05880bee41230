"""Finds a CPU-only llama.cpp build on a computer with a GPU, and the commands that replace it."""

from __future__ import annotations

import platform
import shutil
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from localspec import data_files, paths
from localspec.doctor.findings import CommandLine, Finding, redact
from localspec.machine import install_commands, installed_llama_cpp, llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild

CPU_ONLY = "cpu-only-build"


def find_unused_gpu() -> Finding | None:
    """Reported at every start until dismissed: there is a GPU that llama.cpp cannot use.

    Cheap: reads files, and runs a program only if the files suggest a mismatch.
    """
    if is_dismissed(CPU_ONLY):
        return None
    mismatch = find_mismatch()
    return redact(mismatch) if mismatch is not None else None


def find_mismatch() -> Finding | None:
    """A CPU-only build on a computer with a usable GPU; None also if the detection fails."""
    with suppress(OSError, ValueError):
        if installed_llama_cpp.find_gpu_backends() != ():
            return None
        from_files = llama_cpp_builds.detect_hardware(run=lambda _: "")
        if llama_cpp_builds.choose_build(from_files).backend == "cpu":
            return None
        choice = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
        if choice.backend != "cpu":
            what = f"{choice.reason}, but the installed llama.cpp can use the CPU only"
            return Finding(CPU_ONLY, "engine", "warning", what, format_install_line(choice))
    return None


def format_install_line(choice: LlamaCppBuild) -> str:
    """The shell line for this system; in a source checkout, scripts/run installs the build."""
    if _is_source_checkout():
        if platform.system() == "Windows":
            return f"set {llama_cpp_builds.ENV_VARIABLE}={choice.backend}&& py scripts\\run doctor"
        return f"{llama_cpp_builds.ENV_VARIABLE}={choice.backend} scripts/run doctor"
    return install_commands.shell_line(
        choice, metadata.version(install_commands.PACKAGE), sys.executable
    )


def find_pinned_requirement() -> str:
    """The requirement on llama-cpp-python in localspec's metadata; empty if unknown."""
    with suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires("localspec") or ():
            if requirement.startswith(install_commands.PACKAGE):
                return requirement.split(";")[0].strip()
    return ""


def build_install_commands(choice: LlamaCppBuild) -> tuple[CommandLine, ...]:
    """The commands of `format_install_line`; empty if they cannot work here."""
    if _is_source_checkout():
        argv = (sys.executable, str(paths.PACKAGE.parent / "scripts" / "run"), "version")
        return (CommandLine(argv, ((llama_cpp_builds.ENV_VARIABLE, choice.backend),)),)
    return reinstall_commands(choice)


def reinstall_commands(choice: LlamaCppBuild) -> tuple[CommandLine, ...]:
    """Reinstalls the installed release, or the required one if none is, as this build."""
    release = find_pinned_requirement().partition("==")[2]
    with suppress(metadata.PackageNotFoundError):
        release = metadata.version(install_commands.PACKAGE)
    is_available = choice.wheel_index or choice.can_compile(shutil.which)
    if not (release and is_available and install_commands.can_install()):
        return ()
    environ = (("CMAKE_ARGS", choice.cmake),) if choice.cmake and not choice.wheel_index else ()
    lines = install_commands.list_commands(choice, release, sys.executable)
    return tuple(CommandLine(tuple(line), environ) for line in lines)


def _is_source_checkout() -> bool:
    root = paths.PACKAGE.parent
    return (root / "scripts" / "run").is_file() and Path(sys.prefix).parent == root


# --- Dismissed findings.

_DISMISSED_FILE = "dismissed.json"


def dismiss(finding_id: str) -> None:
    """Stops reporting this finding at start; without effect if the file cannot be written."""
    data_files.write_json(_DISMISSED_FILE, sorted({*_load_dismissed(), finding_id}))


def is_dismissed(finding_id: str) -> bool:
    return finding_id in _load_dismissed()


def _load_dismissed() -> list[str]:
    dismissed = data_files.read_json(_DISMISSED_FILE)
    ids = dismissed if isinstance(dismissed, list) else []
    return [id_ for id_ in ids if isinstance(id_, str)]
