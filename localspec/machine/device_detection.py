"""Detects the devices of this computer that the installed llama.cpp can use.

The devices come from ggml; drivers (NVML, and on Linux sysfs) add details and
cross-check free memory. Unknown values are None, never guessed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.machine import cpu_and_ram, installed_llama_cpp, memory_probe
from localspec.machine.cpu_and_ram import HostMemory
from localspec.machine.device import Device
from localspec.sanitize import sanitize
from localspec.units import gib

_MAX_UNIFIED_SHARE = 0.75
"""A GPU without its own memory may use this share of available system memory."""
# Sources that differ by more than this share of the total disagree.
_FREE_TOLERANCE = 0.1
_UNIFIED_BACKENDS = ("Metal", "MTL")
_SOFTWARE_DEVICES = ("llvmpipe", "SwiftShader")
"""Vulkan drivers that compute on the CPU, by the start of the description."""
_GENERIC_BACKENDS = ("Vulkan", "SYCL", "OpenCL")
"""Used for a GPU only if its vendor's backend does not list it."""

_PCI_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])\Z")
_DRM_DIR = Path("/sys/class/drm")

VISIBLE_DEVICES_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
)
"""Environment variables that choose among devices; an empty one hides all."""


class MachineDevices(Struct, frozen=True):
    devices: tuple[Device, ...]  # GPUs, the largest first.
    cpu: Device
    note: str = ""  # Why no GPU was found where one was expected; empty otherwise.


class DriverGpu(Struct, frozen=True):
    """A GPU as its driver reports it. Memory is in bytes; None is unknown."""

    source: str  # NVML or sysfs.
    name: str = ""
    id: str | None = None  # PCI address in ggml's format: 0000:c1:00.0.
    free: int | None = None
    total: int | None = None
    used: int | None = None  # By all programs.
    driver: str | None = None
    drives_display: bool | None = None


_lock = Lock()
_cached: list[MachineDevices] = []


def detect_devices(refresh: bool = False) -> MachineDevices:
    """Cached unless `refresh`; takes under a second. Never raises."""
    with _lock:
        if refresh or not _cached:
            _cached[:] = [_detect()]
        return _cached[0]


def query_free(name: str) -> int | None:
    """Bytes free on a device now; None if unknown."""
    detected = detect_devices(refresh=True)
    for device in (*detected.devices, detected.cpu):
        if device.name == name:
            return device.free
    return None


def _detect() -> MachineDevices:
    try:
        ram = cpu_and_ram.read_host_memory()
    except Exception as error:  # psutil on an unusual system
        note = sanitize(f"system memory is unknown: {error}", multiline=False)
        return MachineDevices((), Device("CPU", kind="cpu"), note=note)
    backends = installed_llama_cpp.find_gpu_backends()
    if backends == ():  # a CPU-only build has no GPUs to list
        return MachineDevices((), cpu_device(ram, cpu_and_ram.read_cpu_name()))
    try:
        info = memory_probe.query_llama_cpp()
        found = reconcile(info.devices, ram, _read_drivers())
    except Exception as error:  # the CPU is usable even if the list of devices is not
        reason = sanitize(str(error) or type(error).__name__, multiline=False)
        note = f"llama.cpp does not list its devices: {reason}"
        return MachineDevices((), cpu_device(ram), note=note)
    if found.devices or not backends or _are_devices_hidden():
        return found
    names = " and ".join(backends)
    note = f"llama.cpp is built for {names}, but finds no such device"
    return replace(found, note=note)


def _are_devices_hidden() -> bool:
    """Somebody hides all GPUs from llama.cpp by an environment variable."""
    values = [os.environ.get(name) for name in VISIBLE_DEVICES_VARIABLES]
    return "" in values or "-1" in values


def _read_drivers() -> tuple[DriverGpu, ...]:
    gpus: list[DriverGpu] = []
    with suppress(Exception):  # drivers only cross-check, and fail in many ways
        gpus += read_nvml()
    with suppress(Exception):
        gpus += read_displays()
    return tuple(gpus)


def reconcile(
    listed: Iterable[Mapping[str, Any]],
    ram: HostMemory,
    driver_gpus: Sequence[DriverGpu] = (),
) -> MachineDevices:
    """Combine the devices that ggml lists with system memory and the drivers' reports.

    As in llama.cpp, a GPU that shares system memory counts only if there is no other.
    """
    devices = [parse_device(reported) for reported in listed]
    gpus = [device for device in devices if device.kind in ("gpu", "igpu")]
    gpus = _deduplicate(gpus)
    discrete = [gpu for gpu in gpus if gpu.kind == "gpu"]
    checked = [_reconcile_gpu(gpu, ram, driver_gpus) for gpu in discrete or gpus]
    checked.sort(key=lambda gpu: -(gpu.total or 0))
    cpu_name = ""
    for device in devices:
        if device.kind == "cpu":
            cpu_name = device.description
            break
    return MachineDevices(tuple(checked), cpu_device(ram, cpu_name))


def cpu_device(ram: HostMemory, description: str = "") -> Device:
    """The CPU with the system's free memory: ggml reports the total as free."""
    return Device(
        name="CPU",
        description=description,
        kind="cpu",
        free=ram.available,
        total=ram.total,
        backend="CPU",
        used_by_others=max(0, ram.total - ram.available),
        unified=True,
        note=ram.note,
    )


def parse_device(reported: Mapping[str, Any]) -> Device:
    """A device as ggml reports it.

    Its free memory is limited to the total. Without a total both are unknown.
    """
    total = int(reported.get("total") or 0)
    free = int(reported.get("free") or 0)
    device = Device(
        name=_clean_text(reported["name"]),
        description=_clean_text(reported.get("description")).strip(),
        kind="accel",
        backend=_clean_text(reported.get("backend")),
        id=parse_pci_address(reported.get("id")),
    )
    kind = reported.get("type")
    if kind in ("gpu", "igpu", "cpu"):
        device = replace(device, kind=kind, unified=kind == "igpu")
    if total:
        device = replace(
            device,
            free=min(free, total),
            total=total,
            used_by_others=max(0, total - free),
        )
    if device.backend in _UNIFIED_BACKENDS:
        device = replace(device, backend="Metal", unified=True)
    if device.description.startswith(_SOFTWARE_DEVICES):
        note = "computes on the CPU: for tests only"
        device = replace(device, unified=True, note=note)
    return device


def _clean_text(reported: Any) -> str:
    return sanitize(str(reported or ""), multiline=False)


def _deduplicate(gpus: Sequence[Device]) -> list[Device]:
    """Each GPU once; its vendor's backend takes precedence over a generic one."""

    def is_same(gpu: Device, other: Device) -> bool:
        if gpu.backend == other.backend:
            return False
        if gpu.id and other.id:
            return gpu.id == other.id
        return bool(gpu.description) and gpu.description == other.description

    unique: list[Device] = []
    for gpu in sorted(gpus, key=lambda gpu: gpu.backend in _GENERIC_BACKENDS):
        if not any(is_same(gpu, other) for other in unique):
            unique.append(gpu)
    return [gpu for gpu in gpus if gpu in unique]


def _reconcile_gpu(
    gpu: Device, ram: HostMemory, driver_gpus: Sequence[DriverGpu]
) -> Device:
    for driver_gpu in _find_reports(gpu, driver_gpus):
        gpu = _cross_check(gpu, driver_gpu)
    if gpu.unified:
        return _limit_unified(gpu, ram)
    return gpu


def _find_reports(gpu: Device, driver_gpus: Sequence[DriverGpu]) -> list[DriverGpu]:
    """What drivers report of this GPU: by its PCI address, which several may know.

    Without an address, by its name, if only one GPU has it.
    """
    if gpu.id:
        return [report for report in driver_gpus if report.id == gpu.id]
    if not gpu.description:
        return []
    same_name = [report for report in driver_gpus if report.name == gpu.description]
    if len(same_name) > 1:
        return []
    return same_name


def _limit_unified(gpu: Device, ram: HostMemory) -> Device:
    """A GPU that shares system memory gets a part of what is available."""
    share = _MAX_UNIFIED_SHARE
    wired_limit = cpu_and_ram.read_wired_limit()
    if ram.total and wired_limit is not None:
        share = max(share, wired_limit / ram.total)
    if ram.total and gpu.total and gpu.backend == "Metal":
        # macOS says itself how much its GPU may use: up to 84 %, of 128 GB.
        share = max(share, min(1.0, gpu.total / ram.total))
    free = int(share * ram.available)
    if gpu.free is not None:
        free = min(free, gpu.free)
    return replace(gpu, free=free, used_by_others=None)


def _cross_check(gpu: Device, driver_gpu: DriverGpu) -> Device:
    """Add what only the driver reports.

    If the two disagree about free memory, the lower value counts.
    """
    if gpu.driver is None:
        gpu = replace(gpu, driver=driver_gpu.driver)
    if gpu.drives_display is None:
        gpu = replace(gpu, drives_display=driver_gpu.drives_display)
    if driver_gpu.used is not None:
        gpu = replace(gpu, used_by_others=driver_gpu.used)
    if gpu.unified or driver_gpu.free is None:
        return gpu
    if gpu.free is None or gpu.total is None:
        note = f"memory reported by {driver_gpu.source}"
        total = gpu.total or driver_gpu.total
        free = driver_gpu.free
        if total is not None:
            free = min(free, total)
        return replace(gpu, total=total, free=free, note=note)
    if abs(gpu.free - driver_gpu.free) <= _FREE_TOLERANCE * gpu.total:
        return gpu
    note = (
        f"{gpu.backend} reports {gib(gpu.free)} free, "
        f"{driver_gpu.source} {gib(driver_gpu.free)}; the lower value is used"
    )
    return replace(gpu, free=min(gpu.free, driver_gpu.free), note=note)


def parse_pci_address(text: str | None) -> str | None:
    """A PCI address as ggml's, whose domain has four digits, NVML's eight."""
    match = _PCI_ADDRESS.match((text or "").strip().lower())
    if not match:
        return None
    return f"{int(match[1] or '0', 16):04x}:{match[2]}"


def read_nvml() -> Iterator[DriverGpu]:
    """NVIDIA GPUs of this computer, without a CUDA context.

    Raises ImportError or NVMLError without package or driver.
    """
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


def read_displays(root: Path = _DRM_DIR) -> Iterator[DriverGpu]:
    """Linux: GPUs with display connectors, and whether one is connected."""
    for card in sorted(root.glob("card*")):
        states = []
        for path in card.glob(f"{card.name}-*/status"):
            states.append(path.read_text(encoding="ascii").strip())
        slot = None
        with suppress(OSError):
            uevent = card / "device/uevent"
            text = uevent.read_text(encoding="utf-8", errors="replace")
            slot = re.search(r"PCI_SLOT_NAME=(\S+)", text)
        if slot and states:
            yield DriverGpu(
                "sysfs",
                id=parse_pci_address(slot[1]),
                drives_display="connected" in states,
            )
