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

from localspec.machine.llama_cpp_builds import LlamaCppBuild

PACKAGE = "llama-cpp-python"


def wheel_command(build: LlamaCppBuild, release: str, python: str, uv: str | None) -> list[str]:
    """Install the prebuilt wheel and nothing else.

    Only a wheel will do: where the index has none, a source from elsewhere must not win.
    """
    index = ["--extra-index-url", build.wheel_index or "", "--only-binary", PACKAGE]
    return [
        *_installer(python, uv),
        *_reinstall_flags(uv),
        "--no-deps",
        *index,
        f"{PACKAGE}=={release}",
    ]


def libraries_command(build: LlamaCppBuild, python: str, uv: str | None) -> list[str]:
    """Install what the wheel needs and does not carry."""
    return [*_installer(python, uv), *build.libraries]


def source_command(release: str, python: str, uv: str | None) -> list[str]:
    """Compile it, without a cache: that would give back the last build, whatever it was for."""
    fresh = ["--no-cache" if uv else "--no-cache-dir", "--no-binary", PACKAGE]
    return [
        *_installer(python, uv),
        *_reinstall_flags(uv),
        "--no-deps",
        *fresh,
        f"{PACKAGE}=={release}",
    ]


def shell_line(build: LlamaCppBuild, release: str, python: str) -> str:
    """One line for a terminal that installs this build beside this Python."""
    lines = [quote_command(line) for line in list_commands(build, release, python)]
    return " && ".join(lines) if build.wheel_index else _add_cmake_args(build.cmake, lines[0])


def list_commands(build: LlamaCppBuild, release: str, python: str) -> list[list[str]]:
    """The same, to be run one after another; without a wheel CMAKE_ARGS says what to build."""
    if not build.wheel_index:
        return [source_command(release, python, find_uv())]
    more = [libraries_command(build, python, find_uv())] if build.libraries else []
    return [wheel_command(build, release, python, find_uv()), *more]


def find_uv() -> str | None:
    """The program to install with where this Python has no pip."""
    return None if importlib.util.find_spec("pip") else shutil.which("uv")


def can_install() -> bool:
    """Whether there is a program that installs packages."""
    return bool(importlib.util.find_spec("pip") or find_uv())


def quote_command(command: Sequence[str]) -> str:
    """A command as this system's shell takes it."""
    if platform.system() == "Windows":
        return subprocess.list2cmdline(command)
    return shlex.join(command)


def _add_cmake_args(arguments: str, line: str) -> str:
    if platform.system() == "Windows":
        return f'set "CMAKE_ARGS={arguments}" && {line}'
    return f'CMAKE_ARGS="{arguments}" {line}' if arguments else line


def _installer(python: str, uv: str | None) -> list[str]:
    return [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]


def _reinstall_flags(uv: str | None) -> list[str]:
    """What is there may be the same version, built for something else."""
    return ["--reinstall-package", PACKAGE] if uv else ["--force-reinstall"]
