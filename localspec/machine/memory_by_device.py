"""Memory of models on each device, in llama.cpp's categories, and as read from its log."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal

from localspec.lazy_dataclass import dataclass

HOST = "CPU"  # Name for all buffers in system memory, including pinned, mapped and repacked ones.
DRAFT_DROPPED_NOTE = "The draft model cannot roll back (recurrent state), so it is not used."
"""`MemoryEstimate.note` if the engine would not use the draft."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one model on one device."""

    weights: int = 0
    kv: int = 0  # KV cache and recurrent states.
    compute: int = 0  # Compute buffers.

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    def __add__(self, other: DeviceMemory) -> DeviceMemory:
        return DeviceMemory(
            self.weights + other.weights, self.kv + other.kv, self.compute + other.compute
        )


@dataclass(frozen=True, slots=True)
class MemoryByDevice:
    """Bytes of one model on all devices."""

    on: Mapping[str, DeviceMemory]  # By device name; unused devices may be missing.
    output: int = 0
    """Output buffer (logits, hidden states) in system memory; not part of the other categories."""

    def of(self, device: str) -> DeviceMemory:
        return self.on.get(device, DeviceMemory())

    @property
    def total(self) -> int:
        return sum(part.total for part in self.on.values()) + self.output


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of a pair before it is loaded."""

    target: MemoryByDevice
    draft: MemoryByDevice | None
    method: Literal["exact", "analytic"]
    """exact: llama.cpp's sums for a load without data; analytic: formulas in localspec.fit."""
    error: int = 0  # Bytes by which the real memory of a device may differ.
    note: str = ""  # A remark for the user, such as why it is not exact.
    architectures: tuple[str, ...] = ()  # Of target and draft.
    scratch: Mapping[str, int] = field(default_factory=dict)
    """What backends allocate at the first prompt, by device; llama.cpp does not count it."""

    def of(self, device: str) -> DeviceMemory:
        return self.target.of(device) + (self.draft.of(device) if self.draft else DeviceMemory())

    @property
    def output(self) -> int:
        return self.target.output + (self.draft.output if self.draft else 0)

    @property
    def total_by_device(self) -> dict[str, int]:
        """With the output buffer in system memory."""
        names = {HOST, *self.target.on, *(self.draft.on if self.draft else ())}
        return {name: self.of(name).total + self.output * (name == HOST) for name in names}


_BUFFER = re.compile(r"\w+: +(\S+) +(?:DSV4 \w+ )?(\w+) buffer size = +([\d.]+) MiB\s*$")
"""`sched_reserve:      CUDA0 compute buffer size =   258.50 MiB`.

No other words may stand in the line: llama.cpp also prints texts of the model's file.
"""
_KV_TOTAL = re.compile(r"llama_kv_cache\w*: size = +([\d.]+) MiB")
"""One line for each cache; a model with sliding windows has two."""
_HOST_BUFFER = re.compile(r"CPU|AMX|BLAS|.*_Host$")
"""Repacked (CPU_REPACK), mapped (CPU_Mapped) and pinned memory (CUDA_Host) are system memory."""
_BUFFER_SUFFIX = re.compile(r"_(Mapped|Private|Shared|Split)$")
_CATEGORIES = {"model": "weights", "compute": "compute", "output": ""}
"""Other buffers (KV, RS, state) count as KV cache; the output buffer grows later."""
_MIB = 1 << 20


class BufferLog:
    """Collects the sizes of one model or context from its log lines."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, str], int] = defaultdict(int)  # Bytes by buffer and category.
        self.kv_total = 0  # Bytes of the KV cache on all devices, without recurrent states.

    def read(self, line: str) -> None:
        """Ignores other lines.  A compute buffer may be reserved again: its last size counts."""
        if match := _KV_TOTAL.match(line):
            self.kv_total += _bytes(match[1])
        if not (match := _BUFFER.match(line)):
            return
        buffer, category = match[1], _CATEGORIES.get(match[2], "kv")
        if category == "compute":
            self._sizes[buffer, category] = 0
        if category:
            self._sizes[buffer, category] += _bytes(match[3])

    def by_device(self) -> dict[str, DeviceMemory]:
        """By device name, system memory under HOST."""
        sums: dict[str, DeviceMemory] = defaultdict(DeviceMemory)
        for (buffer, category), size in self._sizes.items():
            sums[_device(buffer)] += replace(DeviceMemory(), **{category: size})
        return dict(sums)


def _bytes(mib: str) -> int:
    return round(float(mib) * _MIB)


def _device(buffer: str) -> str:
    return HOST if _HOST_BUFFER.match(buffer) else _BUFFER_SUFFIX.sub("", buffer)
