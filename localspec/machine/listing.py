"""The installed llama.cpp and its devices, asked once in a child that lives for a moment."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.clean import clean
from localspec.machine.probe import Probe

_START, _ANSWER = 20.0, 10.0
"""Seconds: a driver may wake a sleeping card, and a disk may sleep too."""


@dataclass(frozen=True, slots=True)
class Listing:
    devices: tuple[Mapping[str, Any], ...]
    """As ggml reports them: name, description, type, free, total, id, backend."""
    offloads: bool
    """Whether this llama.cpp can use a graphics card."""
    library: str = ""
    """Where it lies."""
    features: str = ""
    """What it was built for, as it prints that: CPU : SSE3 = 1 | AVX = 1 | …"""


_kept: list[Listing] = []

_CARDS = ("cuda", "hip", "vulkan", "metal", "sycl", "opencl", "musa", "cann", "rpc")


def may_offload() -> bool:
    """Whether the installed llama.cpp has a library for any card; by its files, without a child."""
    own = os.environ.get("LLAMA_CPP_LIB_PATH")
    found = importlib.util.find_spec("llama_cpp")
    if own or found is None or not found.origin:
        return True
    names = [one.name.lower() for one in (Path(found.origin).parent / "lib").glob("*ggml*")]
    return not names or any(card in name for card in _CARDS for name in names)


def listed(refresh: bool = False) -> Listing:
    """Raises ProbeError, or OSError where no process can be started."""
    if refresh or not _kept:
        with Probe(start=_START, seconds=_ANSWER) as probe:
            told = probe.about()
        _kept[:] = [
            Listing(
                tuple(told["devices"]),
                bool(told["offloads"]),
                clean(str(told["library"]), multiline=False),
                clean(str(told["features"]), multiline=False).strip(),
            )
        ]
    return _kept[0]
