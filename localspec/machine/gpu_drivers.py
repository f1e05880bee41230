"""GPUs as their drivers report them, through NVML (NVIDIA) and sysfs (Linux).

NVML is called with ctypes; it creates no CUDA context.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_char, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

from localspec.lazy_dataclass import dataclass

_PCI_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\Z")
_NVML_SUCCESS = 0
_MAX_GPUS = 64
DRM_DIR = Path("/sys/class/drm")
_VENDORS = ("0x10de", "0x1002", "0x8086")
"""NVIDIA, AMD, Intel."""
_CARD_DIR = re.compile(r"card\d+\Z")


@dataclass(frozen=True, slots=True)
class DriverGpu:
    """A GPU as its driver reports it.  Memory in bytes; None is unknown."""

    source: str
    """NVML or sysfs."""
    name: str = ""
    id: str | None = None
    """PCI address in ggml's format: 0000:c1:00.0."""
    free: int | None = None
    total: int | None = None
    used: int | None = None
    """By all programs."""
    driver: str | None = None
    drives_display: bool | None = None


def parse_pci_address(text: str | None) -> str | None:
    """A PCI address in ggml's format: NVML writes the domain with eight digits, ggml with four."""
    match = _PCI_ADDRESS.match((text or "").strip().lower())
    if not match:
        return None
    return f"{int(match[1] or '0', 16):04x}:{match[2]}"


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
    """NVIDIA GPUs of this computer; none without a driver."""
    library = load_nvml()
    return read_nvml_gpus(library) if library is not None else ()


def load_nvml() -> Any | None:
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
    """All GPUs that NVML lists; values it does not report are None."""
    try:
        with _nvml_session(nvml):
            driver = _nvml_text(nvml.nvmlSystemGetDriverVersion)
            return tuple(_nvml_gpu(nvml, handle, driver) for handle in _nvml_handles(nvml))
    except (OSError, AttributeError):
        return ()


@contextmanager
def _nvml_session(nvml: Any) -> Iterator[None]:
    if nvml.nvmlInit_v2() != _NVML_SUCCESS:
        raise OSError("nvmlInit failed")
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
    has_pci = nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == _NVML_SUCCESS
    return DriverGpu(
        source="NVML",
        name=_nvml_text(nvml.nvmlDeviceGetName, handle),
        id=parse_pci_address(pci.bus_id.decode("ascii", "replace")) if has_pci else None,
        free=free,
        total=total,
        used=used,
        driver=driver or None,
        drives_display=_nvml_display(nvml, handle),
    )


def _nvml_memory(nvml: Any, handle: c_void_p) -> tuple[int | None, int | None, int | None]:
    """Total, free and used by programs; unknown for drivers before R510."""
    info = NvmlMemoryV2(version=_NVML_MEMORY_V2)
    with suppress(AttributeError):
        status = nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(info))
        if status == _NVML_SUCCESS and info.total:
            return info.total, info.free, max(0, info.total - info.free - info.reserved)
    return None, None, None


def _nvml_display(nvml: Any, handle: c_void_p) -> bool | None:
    active = c_uint()
    with suppress(AttributeError):
        if nvml.nvmlDeviceGetDisplayActive(handle, ctypes.byref(active)) == _NVML_SUCCESS:
            return bool(active.value)
    return None


def _nvml_text(function: Any, *arguments: Any) -> str:
    text = ctypes.create_string_buffer(96)
    if function(*arguments, text, c_uint(len(text))) != _NVML_SUCCESS:
        return ""
    return text.value.decode("utf-8", "replace")


def read_sysfs(root: Path = DRM_DIR) -> tuple[DriverGpu, ...]:
    """All GPUs of a Linux computer; free memory is known for AMD only."""
    try:
        folders = sorted(path for path in root.iterdir() if _CARD_DIR.match(path.name))
    except OSError:
        return ()
    return tuple(gpu for folder in folders if (gpu := _sysfs_gpu(folder)) is not None)


def _sysfs_gpu(folder: Path) -> DriverGpu | None:
    device = folder / "device"
    if _read_text(device / "vendor") not in _VENDORS:
        return None
    uevent = dict(line.split("=", 1) for line in _read_lines(device / "uevent") if "=" in line)
    total = _read_int(device / "mem_info_vram_total") or _read_int(folder / "lmem_total_bytes")
    used = _read_int(device / "mem_info_vram_used")
    has_both = total is not None and used is not None
    return DriverGpu(
        source="sysfs",
        id=parse_pci_address(uevent.get("PCI_SLOT_NAME")),
        free=max(0, (total or 0) - (used or 0)) if has_both else None,
        total=total,
        used=used if has_both else None,
        driver=uevent.get("DRIVER"),
        drives_display=_sysfs_display(folder),
    )


def _sysfs_display(folder: Path) -> bool | None:
    """Whether a display is connected; None without display connectors."""
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
