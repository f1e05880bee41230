"""The installed llama.cpp and its devices, asked once in a child that lives for a moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    lacking: tuple[str, ...] = ()
    """Functions that it has not, without which heads cannot run."""


_kept: list[Listing] = []


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
                tuple(map(str, told.get("lacking", ()))),
            )
        ]
    return _kept[0]
