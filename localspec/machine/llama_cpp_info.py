"""Information about the installed llama.cpp and its devices, queried once in a child process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.machine.probe import MemoryProbe
from localspec.sanitize import sanitize

_START_TIMEOUT, _REPLY_TIMEOUT = 20.0, 10.0
"""Seconds: a driver may have to wake a GPU, and the disk may be asleep."""


@dataclass(frozen=True, slots=True)
class LlamaCppInfo:
    devices: tuple[Mapping[str, Any], ...]
    """As ggml reports them: name, description, type, free, total, id, backend."""
    supports_gpu_offload: bool
    library_path: str = ""
    features: str = ""
    """llama_print_system_info: CPU : SSE3 = 1 | AVX = 1 | …"""
    missing_head_functions: tuple[str, ...] = ()
    """Functions that heads need and this build does not export."""


_cached: list[LlamaCppInfo] = []


def query(refresh: bool = False) -> LlamaCppInfo:
    """Cached unless `refresh`.  Raises ProbeError, or OSError if no process can be started."""
    if refresh or not _cached:
        with MemoryProbe(start_timeout=_START_TIMEOUT, timeout=_REPLY_TIMEOUT) as probe:
            info = probe.query_info()
        _cached[:] = [
            LlamaCppInfo(
                tuple(info["devices"]),
                bool(info["offloads"]),
                sanitize(str(info["library"]), multiline=False),
                sanitize(str(info["features"]), multiline=False).strip(),
                tuple(map(str, info.get("lacking", ()))),
            )
        ]
    return _cached[0]
