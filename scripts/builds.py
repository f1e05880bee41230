"""Chooses and installs the build of llama-cpp-python for the .venv."""

import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from progress import compile_time

from localspec.machine import llama_cpp_builds
from localspec.machine.llama_cpp_builds import LlamaCppBuild

__all__ = [
    "LlamaCppBuild",
    "choose",
    "install",
    "is_current",
    "pinned_release",
    "read_backend",
    "record_backend",
]

USER_BUILD_VARIABLES = ("CMAKE_ARGS", "FORCE_CMAKE")
"""If one is set, the user configures the build."""
IMPORT_CHECK = (
    "from localspec.machine import installed_llama_cpp; "
    "installed_llama_cpp.preload_cuda_libraries(); import llama_cpp"
)
"""Python code that fails if the build lacks a library."""

Run = Callable[[Sequence[str], Mapping[str, str]], bool]
"""Runs a command with additional environment variables; True if it succeeds."""
Say = Callable[[str], None]


def choose(
    before: str, environ: Mapping[str, str] = os.environ
) -> LlamaCppBuild | None:
    """The build requested by LOCALSPEC_BACKEND, else `before`, else the hardware's best.

    It is None if the default installation of the dependencies is enough.
    """
    requested = environ.get(llama_cpp_builds.ENV_VARIABLE, "")
    if before not in llama_cpp_builds.BACKENDS:
        before = ""
    if not requested and any(environ.get(name) for name in USER_BUILD_VARIABLES):
        return None
    try:
        hardware = llama_cpp_builds.detect_hardware()
        choice = llama_cpp_builds.choose_build(hardware, requested or before)
    except ValueError as problem:
        raise SystemExit(f"localspec: {problem}") from None
    is_default = choice.backend == "cpu" and before in ("", "cpu")
    return None if is_default else choice


def read_backend(record: Path) -> str:
    """The backend that was last installed or attempted; empty if none was chosen."""
    try:
        return record.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def record_backend(record: Path, choice: LlamaCppBuild) -> None:
    record.write_text(choice.backend + "\n", encoding="utf-8")


def is_current(installed: str, environ: Mapping[str, str] = os.environ) -> bool:
    """False if LOCALSPEC_BACKEND requests another backend."""
    requested = environ.get(llama_cpp_builds.ENV_VARIABLE, "")
    return not requested or requested == (installed or "cpu")


def pinned_release(project: Path) -> str:
    """The version of llama-cpp-python in pyproject.toml."""
    document = tomllib.loads(project.read_text(encoding="utf-8"))
    requirements: list[str] = document["project"]["dependencies"]
    prefix = f"{llama_cpp_builds.PACKAGE}=="
    (pinned,) = (text for text in requirements if text.startswith(prefix))
    return pinned.removeprefix(prefix).strip()


def install(
    choice: LlamaCppBuild,
    version: str,
    tools: tuple[str, str | None],
    run: Run,
    say: Say,
    environ: Mapping[str, str] = os.environ,
) -> bool:
    """Install the prebuilt wheel, or compile; False if only the default build remains.

    `tools`: the .venv's Python, and uv if it is installed. The user's CMAKE_ARGS ask for
    a build from source and are added to those of the backend.
    """
    python, uv = tools
    # Naming the package brings those that it imports, without which the check fails.
    libraries = llama_cpp_builds.libraries_command(choice, python, uv)
    install_libraries = [*libraries, f"{llama_cpp_builds.PACKAGE}=={version}"]
    check_import = [python, "-c", IMPORT_CHECK]

    def does_load() -> bool:
        return run(install_libraries, {}) and run(check_import, {})

    user_arguments = environ.get("CMAKE_ARGS", "")
    if choice.wheel_index and not user_arguments:
        say(f"{choice.reason}: downloading the build for {title(choice)}")
        wheel = llama_cpp_builds.wheel_command(choice, version, python, uv)
        if run(wheel, {}) and does_load():
            return True
        say("that build is not available or does not load")
    problem = find_compile_problem(choice, environ)
    if problem:
        say(f"cannot compile it: {problem}")
        return False
    say(f"compiling llama.cpp for {title(choice)}, {compile_time(choice.core_seconds)}")
    build = llama_cpp_builds.source_command(version, python, uv)
    arguments = f"{choice.cmake} {user_arguments}".strip()
    return run(build, {"CMAKE_ARGS": arguments}) and does_load()


def find_compile_problem(choice: LlamaCppBuild, environ: Mapping[str, str]) -> str:
    """Why a build from source would fail; empty as far as files do not show it."""
    if choice.backend != "cpu" and not choice.can_compile():
        return f"{' or '.join(choice.compilers)} is not installed"
    if choice.required_header is None:
        return ""
    name, needed = choice.required_header
    for folder in include_folders(environ):
        header = folder / name
        if not header.is_file():
            continue
        if needed in header.read_text(encoding="utf-8", errors="replace"):
            return ""
        return (
            f"{header} is too old: it lacks {needed}. Newer headers may be in any "
            "folder: CMAKE_ARGS=-DVulkan_INCLUDE_DIR=FOLDER (docs/gpu.md)"
        )
    return ""


def include_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where CMake looks for the headers of Vulkan, in its order."""
    for argument in environ.get("CMAKE_ARGS", "").split():
        name, _, value = argument.partition("=")
        if name.partition(":")[0] == "-DVulkan_INCLUDE_DIR":
            yield Path(value)
    sdk = environ.get("VULKAN_SDK")
    if sdk:
        yield Path(sdk) / "include"
        yield Path(sdk) / "Include"
    yield Path("/usr/local/include")
    yield Path("/usr/include")


def title(choice: LlamaCppBuild) -> str:
    return str(llama_cpp_builds.load_table()[choice.backend]["title"])
