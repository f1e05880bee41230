"""Calls `localspec.fit`, which takes shapes, with headers; pairs and machines."""

from collections.abc import Sequence

from msgspec.structs import replace

from localspec.fit import memory, pair_shapes, placement, plan, shape, speed
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.memory import MemoryEstimate
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.placement import Placements
from localspec.fit.plan import Plan
from localspec.fit.shape import ModelShape, for_target
from localspec.fit.speed import (
    TYPICAL_CPU_SPEED,
    HardwareSpeed,
    PassReads,
    SpeedEstimate,
    UseCase,
)
from localspec.machine import gpu_catalog
from localspec.machine.device import Device
from localspec.machine.measurements import MemoryMeasurement
from localspec.machine.memory_probe import PairBuffers
from localspec.models import catalog
from localspec.models.gguf.header import Header
from localspec.protocol.wire import ContextSettings, LoadCommand

_GIB = 2**30
_SHAPES: dict[int, tuple[Header, ModelShape]] = {}


def from_header(header: Header) -> ModelShape:
    """Once for each header."""
    if id(header) not in _SHAPES:
        _SHAPES[id(header)] = header, shape.from_header(header)
    return _SHAPES[id(header)][1]


def from_headers(
    target: Header, draft: Header | None
) -> tuple[ModelShape, ModelShape | None]:
    head = for_target(from_header(draft), target, draft) if draft else None
    return from_header(target), head


def estimate_pair(
    load: LoadCommand, target: Header, draft: Header | None, devices: Sequence[Device]
) -> MemoryEstimate:
    return memory.estimate_pair(load, *from_headers(target, draft), devices)


def replace_counted(
    estimate: MemoryEstimate,
    load: LoadCommand,
    headers: tuple[Header, Header | None],
    counted: PairBuffers,
) -> MemoryEstimate:
    return memory.replace_counted(estimate, load, from_headers(*headers), counted)


def estimate_plan(
    load: LoadCommand,
    target: Header,
    draft: Header | None,
    machine: MachineProfile,
    use: UseCase | None = None,
) -> Plan:
    return plan.estimate_plan(load, *from_headers(target, draft), machine, use)


def estimate_speed(
    load: LoadCommand,
    target: Header,
    draft: Header | None,
    hardware: HardwareSpeed,
    use: UseCase | None = None,
) -> SpeedEstimate:
    found = from_headers(target, draft)
    placements = place(load, *found, hardware.devices)
    return speed.estimate_speed(load, *found, hardware, placements, use)


def place(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    devices: Sequence[Device],
) -> Placements:
    """Of target and draft, each as if the other were not there."""
    first = placement.place_layers(target, load.target_settings, devices, {})
    if draft is None:
        return first, None
    return first, placement.place_layers(draft, load.draft_settings, devices, {})


def count_reads(
    header: Header,
    settings: ContextSettings,
    devices: Sequence[Device],
    context: int = 0,
) -> PassReads:
    shape = from_header(header)
    placed = placement.place_layers(shape, settings, devices, {})
    return speed.count_reads(shape, settings, placed, context)


def catalog_pair(name: str) -> PairShapes:
    found = pair_shapes.from_catalog(catalog.load().pairs[name])
    assert found is not None, name
    return found


CPU = Device("CPU", kind="cpu", free=28 << 30, total=32 << 30, unified=True)


def machine(
    *devices: Device, cpu: Device = CPU, past: tuple[MemoryMeasurement, ...] = ()
) -> MachineProfile:
    """With nominal speeds."""
    return MachineProfile(
        devices, cpu, speed.from_devices(devices, TYPICAL_CPU_SPEED), past
    )


def computer(gib: float) -> MachineProfile:
    """Without a GPU."""
    size = int(gib * _GIB)
    return machine(cpu=replace(CPU, free=size, total=size))


def with_card(name: str, gib: int | None = None, n: int = 1) -> MachineProfile:
    """With a typical CPU, and 32 GiB of RAM beside `n` cards."""
    one = gpu_catalog.find(name).as_device(gib)
    devices = tuple(replace(one, name=f"{one.backend}{i}") for i in range(n))
    ram = 32 * _GIB
    if one.unified:
        assert gib is not None
        assert one.total is not None
        ram = gib * _GIB - one.total  # What the GPU may not use.
    return machine(*devices, cpu=replace(CPU, free=ram, total=ram))


def with_free(machine: MachineProfile, free: int) -> MachineProfile:
    """With so many bytes free on its first card."""
    first, *others = machine.devices
    return replace(machine, devices=(replace(first, free=free), *others))
