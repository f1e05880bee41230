"""A card as a driver or the system tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\Z")


@dataclass(frozen=True, slots=True)
class Seen:
    """Memory in bytes; None is unknown."""

    source: str
    """Who says so: NVML, sysfs."""
    name: str = ""
    id: str | None = None
    """Its PCI address, as ggml writes it: 0000:c1:00.0."""
    free: int | None = None
    total: int | None = None
    used: int | None = None
    """By all programs."""
    driver: str | None = None
    display: bool | None = None
    """Whether it draws the screen."""
    compute: tuple[int, int] | None = None
    """CUDA's compute capability."""
    vendor: str = ""
    """nvidia, amd, intel."""


def address(text: str | None) -> str | None:
    """A PCI address in one form: NVML's domain has eight digits, ggml's four."""
    found = _ADDRESS.match((text or "").strip().lower())
    if not found:
        return None
    return f"{int(found[1] or '0', 16):04x}:{found[2]}"
