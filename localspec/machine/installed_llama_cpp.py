"""The files of the installed llama.cpp: folder, GPU backends, CUDA libraries."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path

_GPU_BACKENDS = ("cuda", "hip", "vulkan", "metal", "sycl", "musa", "opencl")
"""As in the names of ggml's libraries."""


def library_folder() -> Path | None:
    """The folder of its shared libraries; None if it is not installed."""
    chosen = os.environ.get("LLAMA_CPP_LIB_PATH")
    package = _package_folder()
    if chosen:
        folder = Path(chosen)
    elif package is not None:
        folder = package / "lib"
    else:
        return None
    if not folder.is_dir():
        return None
    return folder


def version() -> str:
    """The version of llama-cpp-python, from the name of its folder of metadata.

    If that is not clear, importlib.metadata finds it, which takes 20 ms to import.
    Raises PackageNotFoundError.
    """
    package = _package_folder()
    if package is not None:
        folders = list(package.parent.glob("llama_cpp_python-*.dist-info"))
        if len(folders) == 1:
            return folders[0].name.removesuffix(".dist-info").partition("-")[2]
    from importlib import metadata  # noqa: PLC0415

    return metadata.version("llama-cpp-python")


def find_gpu_backends() -> tuple[str, ...] | None:
    """GPU backends of the installed llama.cpp; None if unknown."""
    folder = library_folder()
    if folder is None:
        return None
    names = [path.name.lower() for path in folder.iterdir()]
    if not any("ggml" in name for name in names):
        return None
    backends = []
    for backend in _GPU_BACKENDS:
        if any(f"ggml-{backend}" in name for name in names):
            backends.append(backend)
    return tuple(backends)


def library_bytes() -> int:
    """Size of all its libraries, which tells builds apart; 0 if unknown."""
    folder = library_folder()
    if folder is None:
        return 0
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())


def preload_cuda_libraries() -> tuple[str, ...]:
    """Loads the CUDA libraries that a CUDA build needs and its wheel does not contain.

    Returns their file names; empty for other builds.
    """
    package = _package_folder()
    if package is None or not any(package.glob("lib/*ggml-cuda*")):
        return ()
    libraries = tuple(find_cuda_libraries(package.parent / "nvidia"))
    for path in libraries:
        with suppress(OSError):
            if sys.platform == "win32":  # pragma: no cover  Windows
                os.add_dll_directory(str(path.parent))
            else:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return tuple(path.name for path in libraries)


def skip_package_init() -> None:
    """Make `import llama_cpp.llama_cpp` skip the package's own interface.

    That loads slowly. Call this before the first import of llama_cpp.
    """
    if "llama_cpp" in sys.modules:
        return
    spec = util.find_spec("llama_cpp")
    if spec is not None and spec.submodule_search_locations:
        sys.modules["llama_cpp"] = util.module_from_spec(spec)


def find_cuda_libraries(nvidia: Path) -> Iterator[Path]:
    """CUDA libraries in NVIDIA's Python packages, in the order to load them."""
    for name in ("cudart", "cublasLt", "cublas"):  # in the order of their dependencies
        patterns = (
            f"*/lib/lib{name}.so.*",
            f"*/bin/{name}64_*.dll",
            f"*/bin/*/{name}64_*.dll",
        )
        for pattern in patterns:
            yield from sorted(nvidia.glob(pattern))


def _package_folder() -> Path | None:
    """The folder of llama_cpp, found without importing it."""
    with suppress(ImportError, ValueError):
        spec = util.find_spec("llama_cpp")
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
    return None
