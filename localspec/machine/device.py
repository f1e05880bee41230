"""Devices that llama.cpp computes on, and the memory of models there.

The memory is read from llama.cpp's log.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

HOST = "CPU"
"""The name of all buffers in system memory, also pinned, mapped and repacked ones."""

DeviceKind = Literal["gpu", "igpu", "cpu", "accel"]

_MIB = 1 << 20
_GIB = 1 << 30


class DeviceLink(Struct, frozen=True):
    """The way to a device of another computer."""

    host: str  # Its address, as in `ContextSettings.remote_hosts`.
    round_trip_ms: float
    bytes_per_second: float


class Device(Struct, frozen=True):
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
    link: DeviceLink | None = None  # None: it is a device of this computer.
    note: str = ""  # Which sources disagree, and which one counts.


def reserve_bytes(device: Device) -> int:
    """Bytes of a device reserved for other programs: 5 %, but not less than the least."""
    total = device.total or 0
    return max(least_reserve_bytes(device), total // 20)


def least_reserve_bytes(device: Device) -> int:
    """What other programs need of a device, however large it is: 512 MiB.

    It is 1 GiB of system memory, of a GPU that drives a display, and on Windows, which
    swaps GPU memory instead of refusing allocations.
    """
    is_on_windows = sys.platform == "win32" and not device.simulated
    if device.kind == "cpu" or device.drives_display or is_on_windows:
        return _GIB
    return 512 * _MIB


class DeviceMemory(Struct, frozen=True):
    """Bytes of one model on one device."""

    weights: int = 0
    kv: int = 0  # KV cache and recurrent states.
    compute: int = 0  # Compute buffers.
    states: int = 0  # Of `kv`: recurrent states, with those for rollback.
    # Of `kv`: the cache of sliding-window layers, if it is cut to the window.
    window: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    def __add__(self, other: DeviceMemory) -> DeviceMemory:
        return DeviceMemory(
            weights=self.weights + other.weights,
            kv=self.kv + other.kv,
            compute=self.compute + other.compute,
            states=self.states + other.states,
            window=self.window + other.window,
        )


_BUFFER = re.compile(
    r"\w+: +(\S+) +(?:DSV4 \w+ )?(\w+) buffer size = +([\d.]+) MiB\s*$"
)
"""`sched_reserve:      CUDA0 compute buffer size =   258.50 MiB`.

No other words may stand in the line: llama.cpp also prints texts of the model's file.
"""
_KV_TOTAL = re.compile(r"llama_kv_cache\w*: size = +([\d.]+) MiB")
"""One line for each cache; a model with sliding windows has two."""
_HOST_BUFFER = re.compile(r"CPU|AMX|BLAS|.*_Host$")
"""System memory is also CPU_REPACK, CPU_Mapped (a file) or CUDA_Host (pinned)."""
_BUFFER_SUFFIX = re.compile(r"_(Mapped|Private|Shared|Split)$")
_CATEGORIES = {"model": "weights", "compute": "compute", "output": ""}
"""Other buffers (KV, RS, state) count as KV cache; the output buffer grows later."""


class BufferLog:
    """Collects the sizes of one model or context from its log lines."""

    def __init__(self) -> None:
        # Bytes by buffer and category.
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)
        # Bytes of the KV cache on all devices, without recurrent states.
        self.kv_total = 0

    def read(self, line: str) -> None:
        """Ignores other lines.

        A compute buffer may be reserved again: its last size counts.
        """
        cache = _KV_TOTAL.match(line)
        if cache:
            self.kv_total += _bytes(cache[1])
        found = _BUFFER.match(line)
        if not found:
            return
        buffer, kind, mib = found.groups()
        category = _CATEGORIES.get(kind, "kv")
        if category == "compute":
            self._sizes[buffer, category] = 0
        if category:
            self._sizes[buffer, category] += _bytes(mib)

    def by_device(self) -> dict[str, DeviceMemory]:
        """By device name, system memory under HOST."""
        sums: dict[str, DeviceMemory] = defaultdict(DeviceMemory)
        for (buffer, category), size in self._sizes.items():
            device = _BUFFER_SUFFIX.sub("", buffer)
            if _HOST_BUFFER.match(buffer):
                device = HOST
            sums[device] += replace(DeviceMemory(), **{category: size})
        return dict(sums)


def _bytes(mib: str) -> int:
    return round(float(mib) * _MIB)
