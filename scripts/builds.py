"""Which build of llama-cpp-python goes into the .venv, and the ways to get it there."""

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from localspec.machine import install_commands, llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild

__all__ = ["LlamaCppBuild", "chosen", "install", "is_wanted", "keep", "kept", "release"]

OWN = ("CMAKE_ARGS", "FORCE_CMAKE")
"""Who sets one of these builds llama.cpp in a way of their own."""
LOADS = (
    "from localspec.machine import installed_llama_cpp; "
    "installed_llama_cpp.preload_cuda_libraries(); import llama_cpp"
)
"""Python that fails where a build lacks a library."""

Run = Callable[[Sequence[str], Mapping[str, str]], bool]
"""Carries out a command with more environment; whether it succeeded."""
Say = Callable[[str], None]


def chosen(before: str, environ: Mapping[str, str] = os.environ) -> LlamaCppBuild | None:
    """The build to have: as asked for, else as `before`, else what suits this computer.

    None where the project's own needs will do: a plain installation, as ever.
    """
    asked = environ.get(llama_cpp_builds.ENV_VARIABLE, "")
    before = before if before in llama_cpp_builds.BACKENDS else ""
    if not asked and any(environ.get(name) for name in OWN):
        return None
    try:
        choice = llama_cpp_builds.choose_build(llama_cpp_builds.detect_hardware(), asked or before)
    except ValueError as problem:
        raise SystemExit(f"localspec: {problem}") from None
    plain = choice.backend == "cpu" and before in ("", "cpu")
    return None if plain else choice


def kept(record: Path) -> str:
    """The backend whose build was installed, or tried; nothing where none was chosen."""
    try:
        return record.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def keep(record: Path, choice: LlamaCppBuild) -> None:
    record.write_text(choice.backend + "\n", encoding="utf-8")


def is_wanted(installed: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this backend is the one asked for, if one is."""
    asked = environ.get(llama_cpp_builds.ENV_VARIABLE, "")
    return not asked or asked == (installed or "cpu")


def release(project: Path) -> str:
    """The version of llama-cpp-python that the project needs."""
    needs = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    (pinned,) = (need for need in needs if need.startswith(f"{install_commands.PACKAGE}=="))
    return str(pinned.partition("==")[2]).strip()


def install(
    choice: LlamaCppBuild, version: str, tools: tuple[str, str | None], run: Run, say: Say
) -> bool:
    """The prebuilt wheel, else one compiled here; False where the plain one has to do.

    `tools` are the .venv's python and uv, if there is one.
    """
    python, uv = tools
    check = [python, "-c", LOADS]
    if choice.wheel_index:
        say(f"{choice.reason}: fetching the build for {title(choice)}")
        steps = [install_commands.wheel_command(choice, version, python, uv)]
        steps += (
            [install_commands.libraries_command(choice, python, uv)] if choice.libraries else []
        )
        if all(run(step, {}) for step in (*steps, check)):
            return True
        say("that build cannot be had, or does not load here")
    if choice.backend == "cpu" or choice.can_compile():
        say(f"compiling llama.cpp for {title(choice)}; this takes a while")
        build = install_commands.source_command(version, python, uv)
        if run(build, {"CMAKE_ARGS": choice.cmake}) and run(check, {}):
            return True
    else:
        say(f"compiling it would need {' or '.join(choice.compilers)}, which is not here")
    return False


def title(choice: LlamaCppBuild) -> str:
    return str(llama_cpp_builds.load_table()[choice.backend]["title"])
