"""NVIDIA cards as their driver tells them: NVML through ctypes, which makes no context on one."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_char, c_int, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NVML_SUCCESS = 0
_MAX_GPUS = 64
"""Cards that are asked for."""


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t: its `used` counts what the driver keeps for itself."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class NvmlMemoryV2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class NvmlPciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = [
        ("bus_id_legacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pci_device_id", c_uint),
        ("pci_subsystem_id", c_uint),
        ("bus_id", c_char * 32),
    ]


_NVML_MEMORY_V2 = ctypes.sizeof(NvmlMemoryV2) | 2 << 24


def read_nvml() -> tuple[DriverGpu, ...]:
    """The cards of this computer; none where there is no driver."""
    library = load_nvml()
    return read_nvml_gpus(library) if library is not None else ()


def load_nvml() -> Any | None:
    """NVML, if the driver brought it."""
    names = ["libnvidia-ml.so.1", "libnvidia-ml.so"]
    if sys.platform == "win32":
        programs = os.environ.get("PROGRAMFILES", "C:\\Program Files")
        names = ["nvml.dll", f"{programs}\\NVIDIA Corporation\\NVSMI\\nvml.dll"]
    elif sys.platform == "darwin":
        return None
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    return None


def read_nvml_gpus(nvml: Any) -> tuple[DriverGpu, ...]:
    """Every card that NVML names; what it does not say of one is None."""
    try:
        with _nvml_session(nvml):
            driver = _nvml_text(nvml.nvmlSystemGetDriverVersion)
            return tuple(_nvml_gpu(nvml, handle, driver) for handle in _nvml_handles(nvml))
    except (OSError, AttributeError):
        return ()


@contextmanager
def _nvml_session(nvml: Any) -> Iterator[None]:
    if nvml.nvmlInit_v2() != _NVML_SUCCESS:
        raise OSError("NVML does not start")
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _nvml_handles(nvml: Any) -> Iterator[c_void_p]:
    count = c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _NVML_SUCCESS:
        return
    for index in range(min(count.value, _MAX_GPUS)):
        handle = c_void_p()
        if nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), ctypes.byref(handle)) == _NVML_SUCCESS:
            yield handle


def _nvml_gpu(nvml: Any, handle: c_void_p, driver: str) -> DriverGpu:
    total, free, used = _nvml_memory(nvml, handle)
    pci = NvmlPciInfo()
    known = nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == _NVML_SUCCESS
    return DriverGpu(
        source="NVML",
        name=_nvml_text(nvml.nvmlDeviceGetName, handle),
        id=parse_pci_address(pci.bus_id.decode("ascii", "replace")) if known else None,
        free=free,
        total=total,
        used=used,
        driver=driver or None,
        drives_display=_nvml_display(nvml, handle),
        compute_capability=_nvml_compute_capability(nvml, handle),
        vendor="nvidia",
    )


def _nvml_memory(nvml: Any, handle: c_void_p) -> tuple[int | None, int | None, int | None]:
    """Total, free and used by programs."""
    new = NvmlMemoryV2(version=_NVML_MEMORY_V2)
    with suppress(AttributeError):  # a driver before R510 has no such function
        if (
            nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(new)) == _NVML_SUCCESS
            and new.total
        ):
            return new.total, new.free, max(0, new.total - new.free - new.reserved)
    old = NvmlMemory()
    if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(old)) == _NVML_SUCCESS and old.total:
        return old.total, old.free, None
    return None, None, None


def _nvml_display(nvml: Any, handle: c_void_p) -> bool | None:
    active = c_uint()
    with suppress(AttributeError):
        if nvml.nvmlDeviceGetDisplayActive(handle, ctypes.byref(active)) == _NVML_SUCCESS:
            return bool(active.value)
    return None


def _nvml_compute_capability(nvml: Any, handle: c_void_p) -> tuple[int, int] | None:
    major, minor = c_int(), c_int()
    ask = nvml.nvmlDeviceGetCudaComputeCapability
    if ask(handle, ctypes.byref(major), ctypes.byref(minor)) == _NVML_SUCCESS:
        return major.value, minor.value
    return None


def _nvml_text(function: Any, *arguments: Any) -> str:
    room = ctypes.create_string_buffer(96)
    if function(*arguments, room, c_uint(len(room))) != _NVML_SUCCESS:
        return ""
    return room.value.decode("utf-8", "replace")


# --- The cards of a Linux computer as its kernel tells them, for whoever may read /sys: everybody.

DRM_DIR = Path("/sys/class/drm")
_VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_CARD_DIR = re.compile(r"card\d+\Z")


def read_sysfs(root: Path = DRM_DIR) -> tuple[DriverGpu, ...]:
    """Every card; AMD's with memory, Intel's with what its driver shows."""
    try:
        folders = sorted(path for path in root.iterdir() if _CARD_DIR.match(path.name))
    except OSError:
        return ()
    return tuple(card for folder in folders if (card := _sysfs_gpu(folder)) is not None)


def _sysfs_gpu(folder: Path) -> DriverGpu | None:
    device = folder / "device"
    vendor = _VENDORS.get(_read_text(device / "vendor"))
    if vendor is None:
        return None
    about = dict(line.split("=", 1) for line in _read_lines(device / "uevent") if "=" in line)
    total = _read_int(device / "mem_info_vram_total") or _read_int(folder / "lmem_total_bytes")
    used = _read_int(device / "mem_info_vram_used")
    both = total is not None and used is not None
    return DriverGpu(
        source="sysfs",
        id=parse_pci_address(about.get("PCI_SLOT_NAME")),
        free=max(0, (total or 0) - (used or 0)) if both else None,
        total=total,
        used=used if both else None,
        driver=about.get("DRIVER"),
        drives_display=_sysfs_display(folder),
        vendor=vendor,
    )


def _sysfs_display(folder: Path) -> bool | None:
    """Whether a screen is plugged into it; None where it has no sockets at all."""
    try:
        connectors = sorted(folder.glob(f"{folder.name}-*"))
    except OSError:
        return None
    if not connectors:
        return None
    return any(_read_text(connector / "status") == "connected" for connector in connectors)


def _read_int(path: Path) -> int | None:
    with suppress(ValueError):
        return int(_read_text(path))
    return None


def _read_text(path: Path) -> str:
    return "\n".join(_read_lines(path)).strip()


def _read_lines(path: Path) -> Iterator[str]:
    with suppress(OSError):
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


# --- A card as a driver or the system tells it.

_PCI_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\Z")


@dataclass(frozen=True, slots=True)
class DriverGpu:
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
    drives_display: bool | None = None
    """Whether it draws the screen."""
    compute_capability: tuple[int, int] | None = None
    """CUDA's compute capability."""
    vendor: str = ""
    """nvidia, amd, intel."""


def parse_pci_address(text: str | None) -> str | None:
    """A PCI address in one form: NVML's domain has eight digits, ggml's four."""
    found = _PCI_ADDRESS.match((text or "").strip().lower())
    if not found:
        return None
    return f"{int(found[1] or '0', 16):04x}:{found[2]}"
