"""What this computer can compute on, as the installed llama.cpp sees it.

ggml's devices are the truth about what can be used; what a driver says of the same card is a
cross-check of its free memory.  Nothing that is unknown is guessed: it is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from localspec.clean import clean
from localspec.machine import library, listing
from localspec.machine.device import Device
from localspec.machine.drivers import cpu, nvml, sysfs
from localspec.machine.drivers import ram as memory
from localspec.machine.drivers.ram import Ram
from localspec.machine.drivers.seen import Seen, address
from localspec.units import gib

_SHARE = 0.75
"""The most of the available memory that a GPU without its own may be given."""
_APART = 0.1
"""Of the total: two sources that differ by more disagree."""
_UNIFIED = ("Metal", "MTL")
_GENERAL = ("Vulkan", "SYCL", "OpenCL")
"""Backends that a card is left to only where its maker's own does not have it."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices that models can be offloaded to, best first, and the computer itself."""

    devices: tuple[Device, ...]
    cpu: Device
    offloads: bool = False
    """Whether the installed llama.cpp can offload at all."""
    note: str = ""
    """Why nothing is known, where nothing is."""


_lock = Lock()
_kept: list[Machine] = []


def look(refresh: bool = False) -> Machine:
    """This computer, asked once in a process unless `refresh`; under a second.  Never raises."""
    with _lock:
        if refresh or not _kept:
            _kept[:] = [_looked(refresh)]
        return _kept[0]


def free(name: str) -> int | None:
    """Bytes that are free on a device now; None where that is unknown."""
    found = look(refresh=True)
    known = (one.free for one in (*found.devices, found.cpu) if one.name == name)
    return next(known, None)


def _looked(refresh: bool) -> Machine:
    try:
        ram = memory.ram()
    except Exception as error:  # psutil on an odd system
        ram, note = Ram(0, 0), f"the computer's memory is not known: {error}"
        return Machine((), Device("CPU", kind="cpu"), note=clean(note, multiline=False))
    if library.gpu_parts() == ():  # nothing to ask it
        return Machine((), processor(ram, cpu.name()))
    try:
        heard = listing.listed(refresh)
        return machine(heard.devices, heard.offloads, ram, _sources())
    except Exception as error:  # a computer whose devices are unknown still has a processor
        why = clean(str(error) or type(error).__name__, multiline=False)
        return Machine((), processor(ram), note=f"llama.cpp does not tell its devices: {why}")


def _sources() -> tuple[Seen, ...]:
    """What drivers say, whoever is there; one that breaks says nothing."""
    found: list[Seen] = []
    asked: tuple[Callable[[], tuple[Seen, ...]], ...] = (nvml.seen, sysfs.seen)
    for ask in asked:
        try:
            found += ask()
        except Exception:  # drivers are cross-checks, and of many makes
            continue
    return tuple(found)


def machine(
    listed: Iterable[Mapping[str, Any]], offloads: bool, ram: Ram, seen: Sequence[Seen] = ()
) -> Machine:
    """What ggml listed, with every rule applied; `seen` is what drivers say of the same cards."""
    told = [device(one) for one in listed]
    gpus = _once([one for one in told if one.kind in ("gpu", "igpu")])
    discrete = [one for one in gpus if one.kind == "gpu"]
    judged = [_judged(one, ram, seen) for one in discrete or gpus]
    judged.sort(key=lambda one: -(one.total or 0))
    named = next((one.description for one in told if one.kind == "cpu"), "")
    return Machine(tuple(judged), processor(ram, named), offloads)


def processor(ram: Ram, description: str = "") -> Device:
    """The CPU, with what the system says of the memory: ggml's free is the total."""
    return Device(
        name="CPU",
        description=description,
        kind="cpu",
        free=ram.available,
        total=ram.total,
        backend="CPU",
        others=max(0, ram.total - ram.available),
        unified=True,
        note=ram.note,
    )


def device(told: Mapping[str, Any]) -> Device:
    """One device in ggml's own words; free is never above total, and 0 of 0 is unknown."""
    total, free = int(told.get("total") or 0), int(told.get("free") or 0)
    backend = clean(str(told.get("backend") or ""), multiline=False)
    kind = told.get("type")
    return Device(
        name=clean(str(told["name"]), multiline=False),
        description=clean(str(told.get("description") or ""), multiline=False).strip(),
        kind=kind if kind in ("gpu", "igpu", "cpu") else "accel",
        free=min(free, total) if total else None,
        total=total or None,
        backend="Metal" if backend in _UNIFIED else backend,
        id=address(told.get("id")),
        unified=kind == "igpu" or backend in _UNIFIED,
    )


def _once(gpus: Sequence[Device]) -> list[Device]:
    """Each card once, by its maker's own backend rather than by one for all."""
    own_first = sorted(gpus, key=lambda one: one.backend in _GENERAL)
    found: list[Device] = []
    for one in own_first:
        if not any(_same(one, other) for other in found):
            found.append(one)
    return [one for one in gpus if one in found]


def _same(one: Device, other: Device) -> bool:
    if one.backend == other.backend:
        return False
    if one.id and other.id:
        return one.id == other.id
    return bool(one.description) and one.description == other.description


def _judged(one: Device, ram: Ram, seen: Sequence[Seen]) -> Device:
    """What is believed of a GPU."""
    for match in _matches(one, seen):
        one = _checked(one, match)
    return _sharing(one, ram) if one.unified else one


def _matches(one: Device, seen: Sequence[Seen]) -> list[Seen]:
    """What is said of this very card: by its address, or by a name that only one has."""
    if one.id:
        return [other for other in seen if other.id == one.id]
    named = [other for other in seen if other.name and other.name == one.description]
    return named if len(named) == 1 else []


def _checked(one: Device, seen: Seen) -> Device:
    """With what a driver knows and ggml does not; of two free memories that disagree the less."""
    one = replace(
        one,
        others=seen.used if one.others is None else one.others,
        driver=one.driver or seen.driver,
        display=seen.display if one.display is None else one.display,
    )
    if one.unified or seen.free is None:
        return one
    if one.free is None or one.total is None:
        total = one.total or seen.total
        free = seen.free if total is None else min(seen.free, total)
        return replace(one, total=total, free=free, note=f"memory as {seen.source} tells it")
    if abs(one.free - seen.free) <= _APART * one.total:
        return one
    note = f"{one.backend} says {gib(one.free)} are free, {seen.source} {gib(seen.free)}"
    return replace(one, free=min(one.free, seen.free), note=f"{note}: the less is believed")


def _sharing(one: Device, ram: Ram) -> Device:
    """A GPU that uses the computer's memory may have most of what is available."""
    share = _SHARE
    if ram.total and (limit := memory.wired_limit()):
        share = max(share, limit / ram.total)
    most = int(share * ram.available)
    free = most if one.free is None else min(one.free, most)
    return replace(one, free=free, others=None)
