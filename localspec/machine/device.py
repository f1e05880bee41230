"""One device that llama.cpp can compute on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["gpu", "igpu", "cpu", "accel"]

_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """One device of ggml's; memory in bytes, None where it is unknown."""

    name: str
    """ggml's: CUDA0, Vulkan1, Metal, CPU."""
    description: str = ""
    """What people call it: NVIDIA GeForce RTX 4070."""
    kind: DeviceKind = "gpu"
    free: int | None = None
    total: int | None = None
    backend: str = ""
    """CUDA, ROCm, Vulkan, Metal, SYCL, CPU."""
    id: str | None = None
    """The PCI address, where there is one: 0000:c1:00.0."""
    used_by_others: int | None = None
    """Used by other programs."""
    unified: bool = False
    """Its memory is the computer's own."""
    drives_display: bool | None = None
    """Whether it draws the screen."""
    driver: str | None = None
    simulated: bool = False
    """A card that is not here."""
    note: str = ""
    """Where sources disagree, and what was believed."""


def reserve_bytes(device: Device) -> int:
    """Bytes of a device that are left to others.

    512 MiB or 5 %; 1 GiB where a screen or Windows, which slows down instead of refusing, lives
    on it too.  Of the computer's own memory 1 GiB or 5 %.
    """
    least = 512 * _MIB
    if (
        device.kind == "cpu"
        or device.drives_display
        or (sys.platform == "win32" and not device.simulated)
    ):
        least = _GIB
    return max(least, (device.total or 0) // 20)
