"""Where the installed llama.cpp lies and what it was built for, by its files alone."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import util
from pathlib import Path

_GPU_PARTS = ("cuda", "hip", "vulkan", "metal", "sycl", "musa", "opencl")
"""Of the names of ggml's libraries."""


def folder() -> Path | None:
    """Of its libraries; None where it is not installed."""
    chosen = os.environ.get("LLAMA_CPP_LIB_PATH")
    with suppress(ImportError, ValueError):
        spec = util.find_spec("llama_cpp")
        if not chosen and spec is not None and spec.submodule_search_locations:
            chosen = str(Path(next(iter(spec.submodule_search_locations))) / "lib")
    found = Path(chosen) if chosen else None
    return found if found is not None and found.is_dir() else None


def gpu_parts() -> tuple[str, ...] | None:
    """The backends beside the CPU's that lie with the installed llama.cpp; None where unknown."""
    here = folder()
    if here is None:
        return None
    names = [path.name.lower() for path in here.iterdir() if "ggml" in path.name.lower()]
    if not names:
        return None
    return tuple(part for part in _GPU_PARTS if any(f"ggml-{part}" in name for name in names))
