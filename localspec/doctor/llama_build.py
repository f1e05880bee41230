"""Finds a CPU-only llama.cpp on a computer with a GPU, and commands that replace it.

This file is imported at every start.
"""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from localspec import data_files, paths
from localspec.doctor.findings import CommandLine, Finding, problem, redact
from localspec.machine import installed_llama_cpp, llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild
from localspec.paths import DataFile

CPU_ONLY = "cpu-only-build"


def find_unused_gpu() -> Finding | None:
    """A GPU that llama.cpp cannot use, reported at every start until it is dismissed.

    This is cheap: it reads files, and runs a program only if they suggest a mismatch.
    """
    if CPU_ONLY in data_files.read_list(DataFile.DISMISSED, str):
        return None
    mismatch = find_mismatch()
    return redact(mismatch) if mismatch is not None else None


def dismiss() -> None:
    """Report no unused GPU at a start from now on, if the file can be written."""
    data_files.write_json(DataFile.DISMISSED, [CPU_ONLY])


def find_mismatch() -> Finding | None:
    """A CPU-only build on a computer with a usable GPU; None if undetected."""
    try:
        backends = installed_llama_cpp.find_gpu_backends()
        if backends is None or backends:  # They are unknown, or there are some.
            return None
        # Programs such as nvidia-smi are slow, so files decide first.
        from_files = llama_cpp_builds.detect_hardware(run=lambda _: "")
        if llama_cpp_builds.choose_build(from_files).backend == "cpu":
            return None
        build = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
        if build.backend == "cpu":
            return None
        what = f"{build.reason}, but the installed llama.cpp can use the CPU only"
        return problem(CPU_ONLY, what, format_install_line(build))
    except (OSError, ValueError):
        return None


def format_install_line(build: LlamaCppBuild) -> str:
    """The shell line for this system.

    In a source checkout, scripts/run installs the build.
    """
    if _is_source_checkout():
        if platform.system() == "Windows":
            return f"set {llama_cpp_builds.ENV_VARIABLE}={build.backend}&& py scripts\\run doctor"
        return f"{llama_cpp_builds.ENV_VARIABLE}={build.backend} scripts/run doctor"
    return llama_cpp_builds.shell_line(
        build, metadata.version(llama_cpp_builds.PACKAGE), sys.executable
    )


def find_pinned_requirement() -> str:
    """The requirement on llama-cpp-python in localspec's metadata; empty if unknown."""
    with suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires("localspec") or ():
            if requirement.startswith(llama_cpp_builds.PACKAGE):
                return requirement.split(";")[0].strip()
    return ""


def install_commands_for(
    build: LlamaCppBuild, *, checkout: bool = False
) -> tuple[CommandLine, ...]:
    """Commands that install a build of the installed release, or of the required one.

    There are none if that cannot work here. With `checkout`, a source checkout's own
    installer does it.
    """
    if checkout and _is_source_checkout():
        installer = str(paths.PACKAGE.parent / "scripts" / "run")
        chosen_backend = (llama_cpp_builds.ENV_VARIABLE, build.backend)
        argv = (sys.executable, installer, "version")
        return (CommandLine(argv, (chosen_backend,)),)
    release = find_pinned_requirement().partition("==")[2]
    with suppress(metadata.PackageNotFoundError):
        release = metadata.version(llama_cpp_builds.PACKAGE)
    is_available = build.wheel_index or build.can_compile()
    if not (release and is_available and llama_cpp_builds.can_install()):
        return ()
    environ: tuple[tuple[str, str], ...] = ()
    if build.cmake and not build.wheel_index:
        environ = (("CMAKE_ARGS", build.cmake),)
    lines = llama_cpp_builds.list_commands(build, release, sys.executable)
    return tuple(CommandLine(tuple(line), environ) for line in lines)


def _is_source_checkout() -> bool:
    root = paths.PACKAGE.parent
    return (root / "scripts" / "run").is_file() and Path(sys.prefix).parent == root
