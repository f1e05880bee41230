"""Where the installed llama.cpp lies and what it was built for, by its files alone."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path

_GPU_BACKENDS = ("cuda", "hip", "vulkan", "metal", "sycl", "musa", "opencl")
"""Of the names of ggml's libraries."""


def library_folder() -> Path | None:
    """Of its libraries; None where it is not installed."""
    chosen = os.environ.get("LLAMA_CPP_LIB_PATH")
    with suppress(ImportError, ValueError):
        spec = util.find_spec("llama_cpp")
        if not chosen and spec is not None and spec.submodule_search_locations:
            chosen = str(Path(next(iter(spec.submodule_search_locations))) / "lib")
    found = Path(chosen) if chosen else None
    return found if found is not None and found.is_dir() else None


def find_gpu_backends() -> tuple[str, ...] | None:
    """The backends beside the CPU's that lie with the installed llama.cpp; None where unknown."""
    here = library_folder()
    if here is None:
        return None
    names = [path.name.lower() for path in here.iterdir() if "ggml" in path.name.lower()]
    if not names:
        return None
    return tuple(part for part in _GPU_BACKENDS if any(f"ggml-{part}" in name for name in names))


# --- The libraries that a CUDA build of llama.cpp needs and its wheel does not carry.

_CUDA_LIBRARIES = ("cudart", "cublasLt", "cublas")
"""In the order in which they need one another."""


def preload_cuda_libraries() -> tuple[str, ...]:
    """Make them known, where llama.cpp is a CUDA build; the names of those that were found."""
    here = _package_folder("llama_cpp")
    if here is None or not any(here.glob("lib/*ggml-cuda*")):
        return ()
    found = tuple(find_cuda_libraries(here.parent / "nvidia"))
    for path in found:
        with suppress(OSError):
            if sys.platform == "win32":  # pragma: no cover  Windows
                os.add_dll_directory(str(path.parent))
            else:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return tuple(path.name for path in found)


def find_cuda_libraries(nvidia: Path) -> Iterator[Path]:
    """Those that lie in NVIDIA's packages, in the order to load them."""
    for name in _CUDA_LIBRARIES:
        patterns = (f"*/lib/lib{name}.so.*", f"*/bin/{name}64_*.dll", f"*/bin/*/{name}64_*.dll")
        for pattern in patterns:
            yield from sorted(nvidia.glob(pattern))


def _package_folder(name: str) -> Path | None:
    """A package's folder, found without importing it."""
    with suppress(ImportError, ValueError):
        spec = util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
    return None
