"""What this computer can compute on, as the installed llama.cpp sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gpu", "igpu", "cpu", "accel"]


@dataclass(frozen=True, slots=True)
class Device:
    """One device of ggml's; memory in bytes, None where it is unknown."""

    name: str
    """ggml's: CUDA0, Vulkan1, Metal, CPU."""
    description: str = ""
    """What people call it: NVIDIA GeForce RTX 4070."""
    kind: Kind = "gpu"
    free: int | None = None
    total: int | None = None
    backend: str = ""
    """CUDA, ROCm, Vulkan, Metal, SYCL, CPU."""
    id: str | None = None
    """The PCI address, where there is one: 0000:c1:00.0."""
    others: int | None = None
    """Used by other programs."""
    unified: bool = False
    """Its memory is the computer's own."""
    display: bool | None = None
    """Whether it draws the screen."""
    driver: str | None = None
    pretend: bool = False
    """A card that is not here."""
    note: str = ""
    """Where sources disagree, and what was believed."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices that models can be offloaded to, best first, and the computer itself."""

    devices: tuple[Device, ...]
    cpu: Device
    offloads: bool = False
    """Whether the installed llama.cpp can offload at all."""
    note: str = ""
    """Why nothing is known, where nothing is."""
