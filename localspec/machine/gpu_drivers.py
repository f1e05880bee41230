"""What drivers add to ggml's list of GPUs: NVIDIA's by NVML, and on Linux which GPU has a display.

NVML creates no CUDA context.  Its package is installed with the CUDA build (backends.toml).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.lazy_dataclass import dataclass

_PCI_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\Z")
DRM_DIR = Path("/sys/class/drm")


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """A GPU as its driver reports it.  Memory in bytes; None is unknown."""

    source: str  # NVML or sysfs.
    name: str = ""
    id: str | None = None  # PCI address in ggml's format: 0000:c1:00.0.
    free: int | None = None
    total: int | None = None
    used: int | None = None  # By all programs.
    driver: str | None = None
    drives_display: bool | None = None


def parse_pci_address(text: str | None) -> str | None:
    """A PCI address in ggml's format: NVML writes the domain with eight digits, ggml with four."""
    match = _PCI_ADDRESS.match((text or "").strip().lower())
    if not match:
        return None
    return f"{int(match[1] or '0', 16):04x}:{match[2]}"


def read_nvml() -> Iterator[DriverGpu]:
    """NVIDIA GPUs of this computer.  Raises ImportError or NVMLError without package or driver."""
    import pynvml  # noqa: PLC0415  installed with the CUDA build only

    pynvml.nvmlInit()
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield _nvml_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(index))
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(nvml: Any, handle: Any) -> DriverGpu:
    facts: dict[str, Any] = {}
    # Old drivers, and some GPUs, refuse some of these questions.
    with suppress(nvml.NVMLError):
        facts["driver"] = nvml.nvmlSystemGetDriverVersion()
    with suppress(nvml.NVMLError):
        facts["id"] = parse_pci_address(nvml.nvmlDeviceGetPciInfo(handle).busId)
    with suppress(nvml.NVMLError):
        facts["drives_display"] = bool(nvml.nvmlDeviceGetDisplayActive(handle))
    with suppress(nvml.NVMLError):
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        used = max(0, memory.total - memory.free - memory.reserved)
        facts |= {"total": memory.total, "free": memory.free, "used": used}
    return DriverGpu("NVML", nvml.nvmlDeviceGetName(handle), **facts)


def read_displays(root: Path = DRM_DIR) -> Iterator[DriverGpu]:
    """Linux: GPUs with display connectors, and whether one is connected."""
    for card in sorted(root.glob("card*")):
        states = [path.read_text(encoding="ascii") for path in card.glob(f"{card.name}-*/status")]
        slot = re.search(r"PCI_SLOT_NAME=(\S+)", _read_text(card / "device/uevent"))
        if slot and states:
            has_display = any(state.strip() == "connected" for state in states)
            yield DriverGpu("sysfs", id=parse_pci_address(slot[1]), drives_display=has_display)


def _read_text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
