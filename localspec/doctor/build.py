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
from localspec.doctor.finding import Command, Finding, private
from localspec.machine import backends, installing, library
from localspec.machine.backends import Choice

CPU_ONLY = "cpu-only-build"


def cpu_only_beside_gpu() -> Finding | None:
    """Said at every start until dismissed: a GPU is here, and llama.cpp cannot use it.

    Cheap: files are looked at, and a program is asked only where there is something to say.
    """
    if is_dismissed(CPU_ONLY):
        return None
    found = mismatch()
    return private(found) if found is not None else None


def mismatch() -> Finding | None:
    """A CPU-only build beside a usable GPU.  Never raises: then nothing is known."""
    with suppress(OSError, ValueError):
        if library.gpu_parts() != () or not _special(backends.detect(ask=lambda _: "")):
            return None
        choice = backends.choose(backends.detect())
        if choice.backend != "cpu":
            what = f"{choice.why}, but the installed llama.cpp can use the CPU only"
            return Finding(CPU_ONLY, "engine", "warning", what, fix(choice))
    return None


def fix(choice: Choice) -> str:
    """The exact line for this system; in a checkout scripts/run knows how."""
    if _own_checkout():
        if platform.system() == "Windows":
            return f"set {backends.VARIABLE}={choice.backend}&& py scripts\\run doctor"
        return f"{backends.VARIABLE}={choice.backend} scripts/run doctor"
    return installing.advice(choice, metadata.version(installing.PACKAGE), sys.executable)


def pinned() -> str:
    """The llama-cpp-python that this localspec needs, as a requirement; empty where unknown."""
    with suppress(metadata.PackageNotFoundError):
        needed = (one.split(";")[0] for one in metadata.requires("localspec") or ())
        return next((one.strip() for one in needed if one.startswith(installing.PACKAGE)), "")
    return ""


def install(choice: Choice) -> tuple[Command, ...]:
    """The same as `fix`, to be run from here; nothing where that could not work."""
    if _own_checkout():
        words = (sys.executable, str(paths.PACKAGE.parent / "scripts" / "run"), "version")
        return (Command(words, ((backends.VARIABLE, choice.backend),)),)
    return anew(choice)


def anew(choice: Choice) -> tuple[Command, ...]:
    """Install this build of the release that is here, or of the one that is needed."""
    release = pinned().partition("==")[2]
    with suppress(metadata.PackageNotFoundError):
        release = metadata.version(installing.PACKAGE)
    makes = choice.index or choice.compilable(shutil.which)
    if not (release and makes and installing.can_install()):
        return ()
    environ = (("CMAKE_ARGS", choice.cmake),) if choice.cmake and not choice.index else ()
    lines = installing.commands(choice, release, sys.executable)
    return tuple(Command(tuple(line), environ) for line in lines)


def _special(hardware: backends.Hardware) -> bool:
    return backends.choose(hardware).backend != "cpu"


def _own_checkout() -> bool:
    root = paths.PACKAGE.parent
    return (root / "scripts" / "run").is_file() and Path(sys.prefix).parent == root


# What a person does not want to hear again.


def dismiss(finding: str) -> None:
    """Never say this at a start again; where that cannot be kept, it is said again."""
    kept = sorted({*_dismissed(), finding})
    with suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        _file().write_text(json.dumps(kept) + "\n", encoding="utf-8")


def is_dismissed(finding: str) -> bool:
    return finding in _dismissed()


def _dismissed() -> list[str]:
    with suppress(OSError, ValueError):
        kept = json.loads(_file().read_text(encoding="utf-8"))
        if isinstance(kept, list):
            return [one for one in kept if isinstance(one, str)]
    return []


def _file() -> Path:
    return paths.state() / "dismissed.json"
