"""Which build of llama-cpp-python goes into the .venv, and the ways to get it there."""

import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from localspec.machine import backends, installing
from localspec.machine.backends import Choice

__all__ = ["Choice", "chosen", "install", "is_wanted", "keep", "kept", "release"]

OWN = ("CMAKE_ARGS", "FORCE_CMAKE")
"""Who sets one of these builds llama.cpp in a way of their own."""
LOADS = "from localspec.machine import runtimes; runtimes.preload(); import llama_cpp"
"""Python that fails where a build lacks a library."""

Run = Callable[[Sequence[str], Mapping[str, str]], bool]
"""Carries out a command with more environment; whether it succeeded."""
Say = Callable[[str], None]


def chosen(before: str, environ: Mapping[str, str] = os.environ) -> Choice | None:
    """The build to have: as asked for, else as `before`, else what suits this computer.

    None where the project's own needs will do: a plain installation, as ever.
    """
    asked = environ.get(backends.VARIABLE, "")
    before = before if before in backends.NAMES else ""
    if not asked and any(environ.get(name) for name in OWN):
        return None
    try:
        choice = backends.choose(backends.detect(), asked or before)
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


def keep(record: Path, choice: Choice) -> None:
    record.write_text(choice.backend + "\n", encoding="utf-8")


def is_wanted(installed: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this backend is the one asked for, if one is."""
    asked = environ.get(backends.VARIABLE, "")
    return not asked or asked == (installed or "cpu")


def release(project: Path) -> str:
    """The version of llama-cpp-python that the project needs."""
    needs = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    (pinned,) = (need for need in needs if need.startswith(f"{installing.PACKAGE}=="))
    return str(pinned.partition("==")[2]).strip()


def install(
    choice: Choice, version: str, tools: tuple[str, str | None], run: Run, say: Say
) -> bool:
    """The prebuilt wheel, else one compiled here; False where the plain one has to do.

    `tools` are the .venv's python and uv, if there is one.
    """
    python, uv = tools
    check = [python, "-c", LOADS]
    if choice.index:
        say(f"{choice.why}: fetching the build for {title(choice)}")
        steps = [installing.wheel(choice, version, python, uv)]
        steps += [installing.libraries(choice, python, uv)] if choice.libraries else []
        if all(run(step, {}) for step in (*steps, check)):
            return True
        say("that build cannot be had, or does not load here")
    if choice.backend == "cpu" or choice.compilable():
        say(f"compiling llama.cpp for {title(choice)}; this takes a while")
        build = installing.source(version, python, uv)
        if run(build, {"CMAKE_ARGS": choice.cmake}) and run(check, {}):
            return True
    else:
        say(f"compiling it would need {' or '.join(choice.compilers)}, which is not here")
    return False


def title(choice: Choice) -> str:
    return str(backends.table()[choice.backend]["title"])
