"""NVIDIA cards as their driver tells them: NVML through ctypes, which makes no context on one."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_char, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from localspec.machine.drivers.seen import Seen, address

_OK = 0
_MOST = 64
"""Cards that are asked for."""


class Memory1(ctypes.Structure):
    """nvmlMemory_t: its `used` counts what the driver keeps for itself."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Memory2(ctypes.Structure):
    """nvmlMemory_v2_t."""

    _fields_ = [
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    ]


class Pci(ctypes.Structure):
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


_MEMORY2 = ctypes.sizeof(Memory2) | 2 << 24


def seen() -> tuple[Seen, ...]:
    """The cards of this computer; none where there is no driver."""
    library = opened()
    return cards(library) if library is not None else ()


def opened() -> Any | None:
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


def cards(library: Any) -> tuple[Seen, ...]:
    """Every card that NVML names; what it does not say of one is None."""
    try:
        with _begun(library):
            driver = _text(library.nvmlSystemGetDriverVersion)
            return tuple(_card(library, handle, driver) for handle in _handles(library))
    except (OSError, AttributeError):
        return ()


@contextmanager
def _begun(library: Any) -> Iterator[None]:
    if library.nvmlInit_v2() != _OK:
        raise OSError("NVML does not start")
    try:
        yield
    finally:
        library.nvmlShutdown()


def _handles(library: Any) -> Iterator[c_void_p]:
    count = c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _OK:
        return
    for index in range(min(count.value, _MOST)):
        handle = c_void_p()
        if library.nvmlDeviceGetHandleByIndex_v2(c_uint(index), ctypes.byref(handle)) == _OK:
            yield handle


def _card(library: Any, handle: c_void_p, driver: str) -> Seen:
    total, free, used = _memory(library, handle)
    pci = Pci()
    known = library.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci)) == _OK
    return Seen(
        source="NVML",
        name=_text(library.nvmlDeviceGetName, handle),
        id=address(pci.bus_id.decode("ascii", "replace")) if known else None,
        free=free,
        total=total,
        used=used,
        driver=driver or None,
        display=_display(library, handle),
        compute=_compute(library, handle),
        vendor="nvidia",
    )


def _memory(library: Any, handle: c_void_p) -> tuple[int | None, int | None, int | None]:
    """Total, free and used by programs."""
    new = Memory2(version=_MEMORY2)
    with suppress(AttributeError):  # a driver before R510 has no such function
        if library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(new)) == _OK and new.total:
            return new.total, new.free, max(0, new.total - new.free - new.reserved)
    old = Memory1()
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(old)) == _OK and old.total:
        return old.total, old.free, None
    return None, None, None


def _display(library: Any, handle: c_void_p) -> bool | None:
    active = c_uint()
    with suppress(AttributeError):
        if library.nvmlDeviceGetDisplayActive(handle, ctypes.byref(active)) == _OK:
            return bool(active.value)
    return None


def _compute(library: Any, handle: c_void_p) -> tuple[int, int] | None:
    major, minor = c_int(), c_int()
    ask = library.nvmlDeviceGetCudaComputeCapability
    if ask(handle, ctypes.byref(major), ctypes.byref(minor)) == _OK:
        return major.value, minor.value
    return None


def _text(function: Any, *arguments: Any) -> str:
    room = ctypes.create_string_buffer(96)
    if function(*arguments, room, c_uint(len(room))) != _OK:
        return ""
    return room.value.decode("utf-8", "replace")
