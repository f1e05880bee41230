"""The side library: llama.cpp's RPC backend, compiled for the installed llama.cpp.

llama-cpp-python's wheel is built without RPC, but ggml loads backends at run time. The
two source files of the backend are in the source distribution of the same version.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

from localspec import data_files, paths
from localspec.errors import EngineError, StorageError
from localspec.machine import installed_llama_cpp
from localspec.sanitize import sanitize
from localspec.temporary_files import TemporaryFolder

_DOWNLOAD_SECONDS = 600
_COMPILE_SECONDS = 300
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_NAME = f"libggml-rpc{_SUFFIX}"
_GGML = "vendor/llama.cpp/ggml"
_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-shared",
    "-DGGML_BACKEND_DL",
    "-DGGML_BACKEND_SHARED",
    "-DGGML_BACKEND_BUILD",
    "-DGGML_SHARED",
)


def find() -> Path | None:
    """The library of the installed llama.cpp, else that of an earlier build, else None."""
    candidates = [built_file()]
    folder = installed_llama_cpp.library_folder()
    if folder is not None:
        candidates.insert(0, folder / _NAME)
    return next((path for path in candidates if os.path.isfile(path)), None)


def require() -> Path:
    """The library. Raises EngineError if it was not built."""
    path = find()
    if path is None:
        raise EngineError(
            "llama.cpp's RPC backend is not built for this llama-cpp-python.",
            "Start localspec worker here once: it builds it.",
        )
    return path


def load_error(library: Path) -> EngineError:
    """The error for a library that llama.cpp cannot load."""
    hint = "Reinstall llama-cpp-python, and try again."
    if library == built_file():
        hint = "Delete this file, and start localspec worker here: it builds it again."
    shown = sanitize(str(library), multiline=False)
    return EngineError(f"llama.cpp cannot load its RPC backend {shown}.", hint)


def find_or_build(notify: Callable[[str], None]) -> Path:
    """Build the library if it is missing: a download of about 80 MB, and some seconds.

    Raises EngineError without a compiler or without the sources, StorageError if it
    cannot be written.
    """
    path = find()
    if path is not None:
        return path
    compiler = find_compiler()
    if compiler is None:
        raise EngineError(
            "Workers need llama.cpp's RPC backend, and there is no C++ compiler to build it.",
            "Install one (Debian: apt install g++; macOS: xcode-select --install).",
        )
    version = installed_llama_cpp.version()
    notify(f"Building llama.cpp's RPC backend for llama-cpp-python {version}, once.")
    try:
        with TemporaryFolder("rpc") as folder:
            sources = _download_sources(version, folder)
            return _compile(compiler, sources, folder / _NAME)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        what = f"The RPC backend cannot be built: {reason}."
        raise StorageError(what, "Free disk space.") from error


def find_compiler() -> str | None:
    """The path of a C++ compiler: that of $CXX first."""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path is not None:
            return path
    return None


def built_file() -> Path:
    """Where `find_or_build` writes the library."""
    build = f"{installed_llama_cpp.version()}-{platform.machine()}"
    return paths.DataFile.RPC_LIBRARIES.path / build / _NAME


def _download_sources(version: str, folder: Path) -> Path:
    """The folder of ggml with the files that the backend needs. Raises EngineError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder)]
    command.append(f"llama-cpp-python=={version}")
    _run(command, _DOWNLOAD_SECONDS, "The sources of llama.cpp cannot be downloaded")
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            members = [each for each in tar.getmembers() if _is_needed(each.name)]
            tar.extractall(folder, members, filter="data")
        return folder / archive.name.removesuffix(".tar.gz") / _GGML
    raise EngineError(
        "The sources of llama.cpp cannot be downloaded: pip gave no archive."
    )


def _is_needed(name: str) -> bool:
    """Whether a file of the archive is the backend's, or a header of ggml itself."""
    inside = name.partition(f"{_GGML}/")[2]
    if inside.startswith("src/ggml-rpc/"):
        return True
    return inside.endswith(".h") and inside.count("/") == 1


def _compile(compiler: str, ggml: Path, output: Path) -> Path:
    """Compile to `output`, and copy that to `built_file()`. Raises EngineError, OSError."""
    sources = ggml / "src" / "ggml-rpc"
    command = [compiler, *_FLAGS, f"-I{ggml / 'include'}", f"-I{ggml / 'src'}"]
    command += [str(sources / "ggml-rpc.cpp"), str(sources / "transport.cpp")]
    command += ["-o", str(output)]
    if sys.platform == "darwin":
        command += ["-undefined", "dynamic_lookup"]
    else:
        command += [f"-L{installed_llama_cpp.library_folder()}", "-lggml-base"]
    if os.name == "nt":
        command.append("-lws2_32")
    _run(command, _COMPILE_SECONDS, "llama.cpp's RPC backend cannot be compiled")
    built = built_file()
    built.parent.mkdir(parents=True, exist_ok=True)
    data_files.replace_file(built, output.read_bytes())
    return built


def _run(command: list[str], seconds: float, failure: str) -> None:
    """Raises EngineError with the last line of what the command printed."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"{failure}: no result within {seconds:g} s.") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if lines else "no reason"
        raise EngineError(f"{failure}: {sanitize(reason, multiline=False)}")
