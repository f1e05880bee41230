"""The libraries that a CUDA build of llama.cpp needs and its wheel does not carry.

NVIDIA's own packages put them where no loader looks: loaded by name beforehand, they are found.
Called in children before llama.cpp is; the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import util
from pathlib import Path

_NEEDED = ("cudart", "cublasLt", "cublas")
"""In the order in which they need one another."""


def preload() -> tuple[str, ...]:
    """Make them known, where llama.cpp is a CUDA build; the names of those that were found."""
    here = _package("llama_cpp")
    if here is None or not any(here.glob("lib/*ggml-cuda*")):
        return ()
    found = tuple(libraries(here.parent / "nvidia"))
    for path in found:
        with suppress(OSError):
            if sys.platform == "win32":  # pragma: no cover  Windows
                os.add_dll_directory(str(path.parent))
            else:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    return tuple(path.name for path in found)


def libraries(nvidia: Path) -> Iterator[Path]:
    """Those that lie in NVIDIA's packages, in the order to load them."""
    for name in _NEEDED:
        patterns = (f"*/lib/lib{name}.so.*", f"*/bin/{name}64_*.dll", f"*/bin/*/{name}64_*.dll")
        for pattern in patterns:
            yield from sorted(nvidia.glob(pattern))


def _package(name: str) -> Path | None:
    """A package's folder, found without importing it."""
    with suppress(ImportError, ValueError):
        spec = util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
    return None
