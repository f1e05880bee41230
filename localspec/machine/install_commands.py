"""The commands that install a build of llama-cpp-python.

Used by scripts/run before packages are installed: standard library only.
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
    """Installs the prebuilt wheel and nothing else.

    --only-binary: if the index has no wheel, pip must not build a source package from PyPI instead.
    """
    index = ["--extra-index-url", build.wheel_index or "", "--only-binary", PACKAGE]
    return _reinstall_command(index, release, python, uv)


def libraries_command(build: LlamaCppBuild, python: str, uv: str | None) -> list[str]:
    """Installs libraries the wheel needs but does not contain."""
    return [*_installer(python, uv), *build.libraries]


def source_command(release: str, python: str, uv: str | None) -> list[str]:
    """Compiles without a cache, which could return a build for another backend."""
    no_cache = ["--no-cache" if uv else "--no-cache-dir", "--no-binary", PACKAGE]
    return _reinstall_command(no_cache, release, python, uv)


def shell_line(build: LlamaCppBuild, release: str, python: str) -> str:
    """A shell line that installs this build for this Python."""
    lines = [quote_command(line) for line in list_commands(build, release, python)]
    return " && ".join(lines) if build.wheel_index else _add_cmake_args(build.cmake, lines[0])


def list_commands(build: LlamaCppBuild, release: str, python: str) -> list[list[str]]:
    """Commands to run in order; without a wheel, CMAKE_ARGS must select the backend."""
    if not build.wheel_index:
        return [source_command(release, python, find_uv())]
    libraries = [libraries_command(build, python, find_uv())] if build.libraries else []
    return [wheel_command(build, release, python, find_uv()), *libraries]


def find_uv() -> str | None:
    """uv, if this Python has no pip."""
    return None if importlib.util.find_spec("pip") else shutil.which("uv")


def can_install() -> bool:
    return bool(importlib.util.find_spec("pip") or find_uv())


def quote_command(command: Sequence[str]) -> str:
    if platform.system() == "Windows":
        return subprocess.list2cmdline(command)
    return shlex.join(command)


def _add_cmake_args(arguments: str, line: str) -> str:
    if platform.system() == "Windows":
        return f'set "CMAKE_ARGS={arguments}" && {line}'
    return f'CMAKE_ARGS="{arguments}" {line}' if arguments else line


def _installer(python: str, uv: str | None) -> list[str]:
    return [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]


def _reinstall_command(options: list[str], release: str, python: str, uv: str | None) -> list[str]:
    """The installed package may be the same version for another backend."""
    flags = ["--reinstall-package", PACKAGE] if uv else ["--force-reinstall"]
    return [*_installer(python, uv), *flags, "--no-deps", *options, f"{PACKAGE}=={release}"]
