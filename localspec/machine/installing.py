"""The commands that install a build of llama-cpp-python.

Read by scripts/run before anything is installed: the standard library only.
"""

from __future__ import annotations

import importlib.util
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence

from localspec.machine.backends import Choice

PACKAGE = "llama-cpp-python"


def wheel(choice: Choice, release: str, python: str, uv: str | None) -> list[str]:
    """Install the prebuilt wheel and nothing else.

    Only a wheel will do: where the index has none, a source from elsewhere must not win.
    """
    index = ["--extra-index-url", choice.index or "", "--only-binary", PACKAGE]
    return [*_install(python, uv), *_anew(uv), "--no-deps", *index, f"{PACKAGE}=={release}"]


def libraries(choice: Choice, python: str, uv: str | None) -> list[str]:
    """Install what the wheel needs and does not carry."""
    return [*_install(python, uv), *choice.libraries]


def source(release: str, python: str, uv: str | None) -> list[str]:
    """Compile it, without a cache: that would give back the last build, whatever it was for."""
    fresh = ["--no-cache" if uv else "--no-cache-dir", "--no-binary", PACKAGE]
    return [*_install(python, uv), *_anew(uv), "--no-deps", *fresh, f"{PACKAGE}=={release}"]


def advice(choice: Choice, release: str, python: str) -> str:
    """One line for a terminal that installs this build beside this Python."""
    lines = [quoted(line) for line in commands(choice, release, python)]
    return " && ".join(lines) if choice.index else _with_cmake(choice.cmake, lines[0])


def commands(choice: Choice, release: str, python: str) -> list[list[str]]:
    """The same, to be run one after another; without a wheel CMAKE_ARGS says what to build."""
    if not choice.index:
        return [source(release, python, uv())]
    more = [libraries(choice, python, uv())] if choice.libraries else []
    return [wheel(choice, release, python, uv()), *more]


def uv() -> str | None:
    """The program to install with where this Python has no pip."""
    return None if importlib.util.find_spec("pip") else shutil.which("uv")


def can_install() -> bool:
    """Whether there is a program that installs packages."""
    return bool(importlib.util.find_spec("pip") or uv())


def quoted(command: Sequence[str]) -> str:
    """A command as this system's shell takes it."""
    if platform.system() == "Windows":
        return subprocess.list2cmdline(command)
    return shlex.join(command)


def _with_cmake(arguments: str, line: str) -> str:
    if platform.system() == "Windows":
        return f'set "CMAKE_ARGS={arguments}" && {line}'
    return f'CMAKE_ARGS="{arguments}" {line}' if arguments else line


def _install(python: str, uv: str | None) -> list[str]:
    return [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]


def _anew(uv: str | None) -> list[str]:
    """What is there may be the same version, built for something else."""
    return ["--reinstall-package", PACKAGE] if uv else ["--force-reinstall"]
