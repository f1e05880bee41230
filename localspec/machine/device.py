"""Device: a GPU or CPU that llama.cpp can compute on."""

from __future__ import annotations

import sys
from typing import Literal

from localspec.lazy_dataclass import dataclass

DeviceKind = Literal["gpu", "igpu", "cpu", "accel"]

_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Device:
    """Memory in bytes, None if unknown."""

    name: str  # As in ggml: CUDA0, Vulkan1, Metal, CPU.
    description: str = ""  # Product name: NVIDIA GeForce RTX 4070.
    kind: DeviceKind = "gpu"
    free: int | None = None
    total: int | None = None
    backend: str = ""  # CUDA, ROCm, Vulkan, Metal, SYCL, CPU.
    id: str | None = None  # The PCI address if it has one: 0000:c1:00.0.
    used_by_others: int | None = None
    unified: bool = False  # Shares system memory.
    drives_display: bool | None = None
    driver: str | None = None
    simulated: bool = False  # A GPU that this computer does not have.
    worker: str = ""  # Address of the worker that offers it; empty: of this computer.
    note: str = ""  # Which sources disagree, and which one counts.


def reserve_bytes(device: Device) -> int:
    """Bytes of a device reserved for other programs: 5 %, but at least 512 MiB.

    At least 1 GiB of system memory, of a GPU that drives a display, and on Windows, which swaps GPU
    memory instead of refusing allocations.
    """
    least = 512 * _MIB
    if (
        device.kind == "cpu"
        or device.drives_display
        or (sys.platform == "win32" and not device.simulated)
    ):
        least = _GIB
    return max(least, (device.total or 0) // 20)
