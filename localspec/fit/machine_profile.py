"""The profile of a machine: its devices and their speeds.

It describes this computer, or this computer with a simulated GPU, CPU or memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import paths
from localspec.errors import UsageError
from localspec.fit import calibration
from localspec.fit.speed import HardwareSpeed, from_devices, named_cpu, nominal_cpu
from localspec.machine import (
    device_detection,
    gpu_catalog,
    measurements,
    type_speeds,
)
from localspec.machine.device import HOST, Device
from localspec.machine.gpu_catalog import GpuSpec
from localspec.machine.measurements import MemoryMeasurement
from localspec.machine.type_speeds import TypeSpeed
from localspec.sanitize import sanitize
from localspec.units import gib

_GIB = 1 << 30
_MOST_SYSTEM_BYTES = 4 * _GIB
"""The most memory that the operating system and its desktop take."""
_MAX_NAME = 60  # Characters of a CPU's name that are shown.


class MachineProfile(Struct, frozen=True):
    devices: tuple[Device, ...]  # GPUs, real or simulated.
    cpu: Device
    hardware: HardwareSpeed
    past_loads: tuple[MemoryMeasurement, ...] = ()
    """Estimated and used memory of models that were loaded here."""
    types: Mapping[str, TypeSpeed] = field(default_factory=dict)
    """How fast its CPU computes weight types, by name; those that were timed."""

    @property
    def remote_hosts(self) -> tuple[str, ...]:
        """Addresses of the other computers that offer devices."""
        hosts = [device.link.host for device in self.devices if device.link]
        return tuple(dict.fromkeys(hosts))


def detect(refresh: bool = False) -> MachineProfile:
    """This computer, with the speeds measured on it."""
    detected = device_detection.detect_devices(refresh)
    store = measurements.MeasurementStore(paths.DataFile.MEASUREMENTS.path)
    records = store.read_all()
    nominal = from_devices(detected.devices, nominal_cpu(detected.devices))
    types = type_speeds.read_types()
    hardware = calibration.calibrate(nominal, records, types)
    past_loads = tuple(record.memory for record in records if record.memory)
    return MachineProfile(
        devices=detected.devices,
        cpu=detected.cpu,
        hardware=hardware,
        past_loads=past_loads,
        types=types,
    )


def with_remote(machine: MachineProfile, remote: Sequence[Device]) -> MachineProfile:
    """The same computer with the devices of other computers first."""
    devices = (*remote, *machine.devices)
    nominal = {**from_devices(remote).nominal_speeds, **machine.hardware.nominal_speeds}
    hardware = replace(machine.hardware, devices=devices, nominal_speeds=nominal)
    return replace(machine, devices=devices, hardware=hardware)


def without_remote(machine: MachineProfile) -> MachineProfile:
    devices = tuple(device for device in machine.devices if device.link is None)
    hardware = replace(machine.hardware, devices=devices)
    return replace(machine, devices=devices, hardware=hardware)


def take_memory(machine: MachineProfile, taken: Mapping[str, int]) -> MachineProfile:
    """The same machine with so many bytes less free memory, by device name."""

    def take(device: Device) -> Device:
        n_bytes = taken.get(device.name, 0)
        if device.free is None or n_bytes <= 0:
            return device
        return replace(device, free=max(0, device.free - n_bytes))

    devices = tuple(take(device) for device in machine.devices)
    return replace(machine, devices=devices, cpu=take(machine.cpu))


def with_programs_closed(machine: MachineProfile) -> MachineProfile:
    """The same machine with the memory that it has when no other program runs.

    What to download should not depend on what a browser holds at the moment.  System
    memory keeps what the operating system and its desktop take: a quarter, at most
    4 GiB.  Example: of a card of 24 GiB all are free, of 16 GiB of RAM 12.  Of a Mac
    that is simulated, the memory beside the GPU's is given, which is a part of it: the
    reserve for other programs is enough of that.
    """

    def free_all(device: Device) -> Device:
        # The programs of another computer are its user's.
        if device.total is None or device.link is not None:
            return device
        return replace(device, free=device.total)

    cpu = machine.cpu
    is_part = any(device.unified and device.simulated for device in machine.devices)
    if cpu.total is not None and is_part:
        cpu = replace(cpu, free=cpu.total)
    elif cpu.total is not None:
        cpu = replace(cpu, free=cpu.total - _system_bytes(cpu.total))
    devices = tuple(free_all(device) for device in machine.devices)
    return replace(machine, devices=devices, cpu=cpu)


def _system_bytes(total: int) -> int:
    """What the operating system and its desktop take of the memory."""
    return min(total // 4, _MOST_SYSTEM_BYTES)


class SimulatedHardware(Struct, frozen=True):
    """What another computer has; None where it is as this one."""

    gpu: str | None = None  # Its name.
    vram: float | None = None  # GiB of the GPU.
    cpu: str | None = None
    """The name of a CPU, in which the kind of its memory may stand.

    Without a `gpu` or `vram` that computer has no GPU.
    """
    ram: float | None = None  # GiB of system memory.


def simulate(hardware: SimulatedHardware) -> MachineProfile:
    """This computer, with the named hardware in place of its own.

    Raises NotFoundError for a GPU that is not known, and UsageError for a CPU or RAM
    beside a GPU that brings its own.
    """
    machine = with_cpu(detect(), hardware.cpu, hardware.ram)
    if hardware.gpu is not None:
        spec = gpu_catalog.find(hardware.gpu)
        is_own = hardware.cpu is None and hardware.ram is None
        if spec.kind != "gpu" and not is_own:
            what = f"{spec.name} shares its memory with a CPU of its own."
            raise UsageError(what, "Leave out --cpu and --ram; --vram has the size.")
        return with_catalog_gpu(machine, spec, hardware.vram)
    if hardware.vram is not None:
        return _with_unnamed_gpu(machine, hardware.vram)
    return machine


def with_cpu(
    machine: MachineProfile, name: str | None, ram_gib: float | None
) -> MachineProfile:
    """The same computer with another CPU, and then without a GPU, or with other RAM.

    Its RAM is as free as when no other program runs.
    """
    if name is None and ram_gib is None:
        return machine
    cpu = machine.cpu
    total = cpu.total
    if ram_gib is not None:
        total = int(ram_gib * _GIB)
    free = cpu.free
    if total is not None:
        free = total - _system_bytes(total)
    cpu = replace(cpu, free=free, total=total, note="", simulated=True)
    if name is None:
        return replace(machine, cpu=cpu)
    hardware = from_devices((), named_cpu(name))
    shown = sanitize(name[:_MAX_NAME], multiline=False)
    return MachineProfile((), replace(cpu, description=shown), hardware)


def with_gpu(name: str, vram_gib: float | None = None) -> MachineProfile:
    """This computer with that GPU instead of its own.  Raises NotFoundError."""
    return with_catalog_gpu(detect(), gpu_catalog.find(name), vram_gib)


def with_vram(vram_gib: float) -> MachineProfile:
    """This computer with a GPU of unknown speed and this much memory."""
    return _with_unnamed_gpu(detect(), vram_gib)


def _with_unnamed_gpu(machine: MachineProfile, vram_gib: float) -> MachineProfile:
    size = int(vram_gib * _GIB)
    gpu = Device(
        "GPU0",
        f"a GPU with {gib(size)}",
        kind="gpu",
        free=size,
        total=size,
        backend="CUDA",
        simulated=True,
    )
    return _replace_gpu(machine, gpu)


def with_catalog_gpu(
    machine: MachineProfile, spec: GpuSpec, vram_gib: float | None = None
) -> MachineProfile:
    """The same computer with another GPU, which may bring memory of its own."""
    gpu = spec.as_device(vram_gib)
    machine = _replace_gpu(machine, gpu)
    if not gpu.unified:
        return machine
    whole_gib = vram_gib or spec.vram_gib[0]
    rest = int(whole_gib * _GIB)
    if gpu.total:
        rest -= gpu.total
    cpu = replace(
        machine.cpu,
        description="the rest of its memory",
        free=rest,
        total=rest,
        note="",
    )
    return replace(machine, cpu=cpu)


def _replace_gpu(machine: MachineProfile, gpu: Device) -> MachineProfile:
    """Keeps the measured speeds of the CPU, unless the GPU brings a CPU of its own.

    One that shares its memory with a CPU does.
    """
    if gpu.unified:
        hardware = from_devices((gpu,), nominal_cpu((gpu,)))
    else:
        before = machine.hardware
        of_cpu = {}
        for (device, weight_type), speed in before.measured_speeds.items():
            if device == HOST:
                of_cpu[device, weight_type] = speed
        hardware = from_devices((gpu,), before.nominal_speeds[HOST])
        hardware = replace(hardware, measured_speeds=of_cpu)
    return replace(machine, devices=(gpu,), hardware=hardware)
