"""Memory of models on each device, in the categories of llama.cpp: weights, KV cache, compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from localspec.lazy_dataclass import dataclass

HOST = "CPU"
"""Name for all buffers in system memory, including pinned, mapped and repacked ones."""
DRAFT_DROPPED_NOTE = "The draft model cannot roll back (recurrent state), so it is not used."
"""`MemoryEstimate.note` if the engine would not use the draft."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of one model on one device."""

    weights: int = 0
    kv: int = 0
    """KV cache and recurrent states."""
    compute: int = 0
    """Compute buffers."""

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

    on: Mapping[str, DeviceMemory]
    """By device name; unused devices may be missing."""
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
    error: int = 0
    """Bytes by which the real memory of a device may differ."""
    note: str = ""
    """A remark for the user, such as why it is not exact."""
    architectures: tuple[str, ...] = ()
    """Of target and draft."""
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
