"""The installed llama.cpp and its devices, asked once in a child that lives for a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.machine.probe import MemoryProbe
from localspec.sanitize import sanitize

_START_TIMEOUT, _REPLY_TIMEOUT = 20.0, 10.0
"""Seconds: a driver may wake a sleeping card, and a disk may sleep too."""


@dataclass(frozen=True, slots=True)
class LlamaCppInfo:
    devices: tuple[Mapping[str, Any], ...]
    """As ggml reports them: name, description, type, free, total, id, backend."""
    supports_gpu_offload: bool
    """Whether this llama.cpp can use a graphics card."""
    library_path: str = ""
    """Where it lies."""
    features: str = ""
    """What it was built for, as it prints that: CPU : SSE3 = 1 | AVX = 1 | …"""
    missing_head_functions: tuple[str, ...] = ()
    """Functions that it has not, without which heads cannot run."""


_cached: list[LlamaCppInfo] = []


def query(refresh: bool = False) -> LlamaCppInfo:
    """Raises ProbeError, or OSError where no process can be started."""
    if refresh or not _cached:
        with MemoryProbe(start_timeout=_START_TIMEOUT, timeout=_REPLY_TIMEOUT) as probe:
            told = probe.query_info()
        _cached[:] = [
            LlamaCppInfo(
                tuple(told["devices"]),
                bool(told["offloads"]),
                sanitize(str(told["library"]), multiline=False),
                sanitize(str(told["features"]), multiline=False).strip(),
                tuple(map(str, told.get("lacking", ()))),
            )
        ]
    return _cached[0]
