"""What this computer can compute on, as the installed llama.cpp sees it.

ggml's devices are the truth about what can be used; what a driver says of the same card is a
cross-check of its free memory.  Nothing that is unknown is guessed: it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from localspec.machine import cpu_and_ram, gpu_drivers, installed_llama_cpp, llama_cpp_info
from localspec.machine import cpu_and_ram as memory
from localspec.machine.cpu_and_ram import HostMemory
from localspec.machine.device import Device
from localspec.machine.gpu_drivers import DriverGpu, parse_pci_address
from localspec.sanitize import sanitize
from localspec.units import gib

_MAX_UNIFIED_SHARE = 0.75
"""The most of the available memory that a GPU without its own may be given."""
_FREE_TOLERANCE = 0.1
"""Of the total: two sources that differ by more disagree."""
_UNIFIED_BACKENDS = ("Metal", "MTL")
_GENERIC_BACKENDS = ("Vulkan", "SYCL", "OpenCL")
"""Backends that a card is left to only where its maker's own does not have it."""


@dataclass(frozen=True, slots=True)
class MachineDevices:
    """The devices that models can be offloaded to, best first, and the computer itself."""

    devices: tuple[Device, ...]
    cpu: Device
    supports_gpu_offload: bool = False
    """Whether the installed llama.cpp can offload at all."""
    note: str = ""
    """Why nothing is known, where nothing is."""


_lock = Lock()
_cached: list[MachineDevices] = []


def detect_devices(refresh: bool = False) -> MachineDevices:
    """This computer, asked once in a process unless `refresh`; under a second.  Never raises."""
    with _lock:
        if refresh or not _cached:
            _cached[:] = [_detect(refresh)]
        return _cached[0]


def query_free(name: str) -> int | None:
    """Bytes that are free on a device now; None where that is unknown."""
    found = detect_devices(refresh=True)
    known = (one.free for one in (*found.devices, found.cpu) if one.name == name)
    return next(known, None)


def _detect(refresh: bool) -> MachineDevices:
    try:
        ram = memory.read_host_memory()
    except Exception as error:  # psutil on an odd system
        ram, note = HostMemory(0, 0), f"the computer's memory is not known: {error}"
        return MachineDevices((), Device("CPU", kind="cpu"), note=sanitize(note, multiline=False))
    if installed_llama_cpp.find_gpu_backends() == ():  # nothing to ask it
        return MachineDevices((), cpu_device(ram, cpu_and_ram.read_cpu_name()))
    try:
        heard = llama_cpp_info.query(refresh)
        return reconcile(heard.devices, heard.supports_gpu_offload, ram, _read_drivers())
    except Exception as error:  # a computer whose devices are unknown still has a processor
        why = sanitize(str(error) or type(error).__name__, multiline=False)
        return MachineDevices(
            (), cpu_device(ram), note=f"llama.cpp does not tell its devices: {why}"
        )


def _read_drivers() -> tuple[DriverGpu, ...]:
    """What drivers say, whoever is there; one that breaks says nothing."""
    found: list[DriverGpu] = []
    asked: tuple[Callable[[], tuple[DriverGpu, ...]], ...] = (
        gpu_drivers.read_nvml,
        gpu_drivers.read_sysfs,
    )
    for ask in asked:
        try:
            found += ask()
        except Exception:  # drivers are cross-checks, and of many makes
            continue
    return tuple(found)


def reconcile(
    listed: Iterable[Mapping[str, Any]],
    supports_gpu_offload: bool,
    ram: HostMemory,
    driver_gpus: Sequence[DriverGpu] = (),
) -> MachineDevices:
    """What ggml listed, with every rule applied; `seen` is what drivers say of the same cards."""
    told = [parse_device(one) for one in listed]
    gpus = _deduplicate([one for one in told if one.kind in ("gpu", "igpu")])
    discrete = [one for one in gpus if one.kind == "gpu"]
    judged = [_reconcile_gpu(one, ram, driver_gpus) for one in discrete or gpus]
    judged.sort(key=lambda one: -(one.total or 0))
    named = next((one.description for one in told if one.kind == "cpu"), "")
    return MachineDevices(tuple(judged), cpu_device(ram, named), supports_gpu_offload)


def cpu_device(ram: HostMemory, description: str = "") -> Device:
    """The CPU, with what the system says of the memory: ggml's free is the total."""
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
    """One device in ggml's own words; free is never above total, and 0 of 0 is unknown."""
    total, free = int(reported.get("total") or 0), int(reported.get("free") or 0)
    backend = sanitize(str(reported.get("backend") or ""), multiline=False)
    kind = reported.get("type")
    return Device(
        name=sanitize(str(reported["name"]), multiline=False),
        description=sanitize(str(reported.get("description") or ""), multiline=False).strip(),
        kind=kind if kind in ("gpu", "igpu", "cpu") else "accel",
        free=min(free, total) if total else None,
        total=total or None,
        backend="Metal" if backend in _UNIFIED_BACKENDS else backend,
        id=parse_pci_address(reported.get("id")),
        unified=kind == "igpu" or backend in _UNIFIED_BACKENDS,
    )


def _deduplicate(gpus: Sequence[Device]) -> list[Device]:
    """Each card once, by its maker's own backend rather than by one for all."""
    own_first = sorted(gpus, key=lambda one: one.backend in _GENERIC_BACKENDS)
    found: list[Device] = []
    for one in own_first:
        if not any(_is_same_gpu(one, other) for other in found):
            found.append(one)
    return [one for one in gpus if one in found]


def _is_same_gpu(one: Device, other: Device) -> bool:
    if one.backend == other.backend:
        return False
    if one.id and other.id:
        return one.id == other.id
    return bool(one.description) and one.description == other.description


def _reconcile_gpu(one: Device, ram: HostMemory, driver_gpus: Sequence[DriverGpu]) -> Device:
    """What is believed of a GPU."""
    for match in _matching_driver_gpus(one, driver_gpus):
        one = _cross_check(one, match)
    return _limit_unified(one, ram) if one.unified else one


def _matching_driver_gpus(one: Device, driver_gpus: Sequence[DriverGpu]) -> list[DriverGpu]:
    """What is said of this very card: by its address, or by a name that only one has."""
    if one.id:
        return [other for other in driver_gpus if other.id == one.id]
    named = [other for other in driver_gpus if other.name and other.name == one.description]
    return named if len(named) == 1 else []


def _cross_check(one: Device, driver_gpu: DriverGpu) -> Device:
    """With what a driver knows and ggml does not; of two free memories that disagree the less."""
    one = replace(
        one,
        used_by_others=driver_gpu.used if one.used_by_others is None else one.used_by_others,
        driver=one.driver or driver_gpu.driver,
        drives_display=driver_gpu.drives_display
        if one.drives_display is None
        else one.drives_display,
    )
    if one.unified or driver_gpu.free is None:
        return one
    if one.free is None or one.total is None:
        total = one.total or driver_gpu.total
        free = driver_gpu.free if total is None else min(driver_gpu.free, total)
        return replace(one, total=total, free=free, note=f"memory as {driver_gpu.source} tells it")
    if abs(one.free - driver_gpu.free) <= _FREE_TOLERANCE * one.total:
        return one
    note = (
        f"{one.backend} says {gib(one.free)} are free, {driver_gpu.source} {gib(driver_gpu.free)}"
    )
    return replace(one, free=min(one.free, driver_gpu.free), note=f"{note}: the less is believed")


def _limit_unified(one: Device, ram: HostMemory) -> Device:
    """A GPU that uses the computer's memory may have most of what is available."""
    share = _MAX_UNIFIED_SHARE
    if ram.total and (limit := memory.read_wired_limit()):
        share = max(share, limit / ram.total)
    most = int(share * ram.available)
    free = most if one.free is None else min(one.free, most)
    return replace(one, free=free, used_by_others=None)
