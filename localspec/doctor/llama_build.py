"""Whether the installed llama.cpp is the build for this computer, and the line that installs it."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from localspec import paths
from localspec.doctor.findings import CommandLine, Finding, redact
from localspec.machine import install_commands as machine_install_commands
from localspec.machine import installed_llama_cpp, llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild

CPU_ONLY = "cpu-only-build"


def find_unused_gpu() -> Finding | None:
    """Said at every start until dismissed: a GPU is here, and llama.cpp cannot use it.

    Cheap: files are looked at, and a program is asked only where there is something to say.
    """
    if is_dismissed(CPU_ONLY):
        return None
    found = find_mismatch()
    return redact(found) if found is not None else None


def find_mismatch() -> Finding | None:
    """A CPU-only build beside a usable GPU.  Never raises: then nothing is known."""
    with suppress(OSError, ValueError):
        if installed_llama_cpp.find_gpu_backends() != () or not _has_gpu_build(
            llama_cpp_builds.detect_hardware(run=lambda _: "")
        ):
            return None
        choice = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware())
        if choice.backend != "cpu":
            what = f"{choice.reason}, but the installed llama.cpp can use the CPU only"
            return Finding(CPU_ONLY, "engine", "warning", what, format_install_line(choice))
    return None


def format_install_line(choice: LlamaCppBuild) -> str:
    """The exact line for this system; in a checkout scripts/run knows how."""
    if _is_source_checkout():
        if platform.system() == "Windows":
            return f"set {llama_cpp_builds.ENV_VARIABLE}={choice.backend}&& py scripts\\run doctor"
        return f"{llama_cpp_builds.ENV_VARIABLE}={choice.backend} scripts/run doctor"
    return machine_install_commands.shell_line(
        choice, metadata.version(machine_install_commands.PACKAGE), sys.executable
    )


def find_pinned_requirement() -> str:
    """The llama-cpp-python that this localspec needs, as a requirement; empty where unknown."""
    with suppress(metadata.PackageNotFoundError):
        needed = (one.split(";")[0] for one in metadata.requires("localspec") or ())
        return next(
            (one.strip() for one in needed if one.startswith(machine_install_commands.PACKAGE)), ""
        )
    return ""


def install_commands(choice: LlamaCppBuild) -> tuple[CommandLine, ...]:
    """The same as `fix`, to be run from here; nothing where that could not work."""
    if _is_source_checkout():
        words = (sys.executable, str(paths.PACKAGE.parent / "scripts" / "run"), "version")
        return (CommandLine(words, ((llama_cpp_builds.ENV_VARIABLE, choice.backend),)),)
    return reinstall_commands(choice)


def reinstall_commands(choice: LlamaCppBuild) -> tuple[CommandLine, ...]:
    """Install this build of the release that is here, or of the one that is needed."""
    release = find_pinned_requirement().partition("==")[2]
    with suppress(metadata.PackageNotFoundError):
        release = metadata.version(machine_install_commands.PACKAGE)
    makes = choice.wheel_index or choice.can_compile(shutil.which)
    if not (release and makes and machine_install_commands.can_install()):
        return ()
    environ = (("CMAKE_ARGS", choice.cmake),) if choice.cmake and not choice.wheel_index else ()
    lines = machine_install_commands.list_commands(choice, release, sys.executable)
    return tuple(CommandLine(tuple(line), environ) for line in lines)


def _has_gpu_build(hardware: llama_cpp_builds.SystemHardware) -> bool:
    return llama_cpp_builds.choose_build(hardware).backend != "cpu"


def _is_source_checkout() -> bool:
    root = paths.PACKAGE.parent
    return (root / "scripts" / "run").is_file() and Path(sys.prefix).parent == root


# What a person does not want to hear again.


def dismiss(finding_id: str) -> None:
    """Never say this at a start again; where that cannot be kept, it is said again."""
    kept = sorted({*_load_dismissed(), finding_id})
    with suppress(OSError):
        _dismissed_file().parent.mkdir(parents=True, exist_ok=True)
        _dismissed_file().write_text(json.dumps(kept) + "\n", encoding="utf-8")


def is_dismissed(finding_id: str) -> bool:
    return finding_id in _load_dismissed()


def _load_dismissed() -> list[str]:
    with suppress(OSError, ValueError):
        kept = json.loads(_dismissed_file().read_text(encoding="utf-8"))
        if isinstance(kept, list):
            return [one for one in kept if isinstance(one, str)]
    return []


def _dismissed_file() -> Path:
    return paths.data_dir() / "dismissed.json"
