"""Bytes of memory on each device, divided as llama.cpp divides them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

HOST = "CPU"
"""All buffers in the computer's own memory, pinned or mapped or repacked, stand under this name."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What one model takes of one device."""

    weights: int = 0
    kv: int = 0
    """Keys and values, and the state of recurrent layers."""
    compute: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute

    def __add__(self, other: DeviceMemory) -> DeviceMemory:
        return DeviceMemory(
            self.weights + other.weights, self.kv + other.kv, self.compute + other.compute
        )


@dataclass(frozen=True, slots=True)
class MemoryByDevice:
    """What one model takes of all devices."""

    on: Mapping[str, DeviceMemory]
    """By the device's name; a device that holds nothing may be absent."""
    output: int = 0
    """The rows of logits, in the computer's own memory; in none of llama.cpp's three sums."""

    def of(self, device: str) -> DeviceMemory:
        return self.on.get(device, DeviceMemory())

    @property
    def total(self) -> int:
        return sum(part.total for part in self.on.values()) + self.output


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """What a pair will take, before it is loaded."""

    target: MemoryByDevice
    draft: MemoryByDevice | None
    method: Literal["exact", "analytic"]
    """Exact: llama.cpp's own sums of a load without data.  Analytic: our formulas."""
    error: int = 0
    """Bytes by which a device's truth may differ."""
    note: str = ""
    """Why it is not exact, or what else a person should know."""

    def of(self, device: str) -> DeviceMemory:
        """Both models'."""
        return self.target.of(device) + (self.draft.of(device) if self.draft else DeviceMemory())

    @property
    def output(self) -> int:
        return self.target.output + (self.draft.output if self.draft else 0)
