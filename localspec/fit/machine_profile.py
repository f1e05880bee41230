"""The profile of a machine: its devices and their speeds.

It describes this computer, or this computer with a simulated GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from localspec import paths
from localspec.fit import calibration
from localspec.fit.speed import HardwareSpeed, from_devices, nominal_cpu
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
from localspec.units import gib

_GIB = 1 << 30
_MOST_SYSTEM_BYTES = 4 * _GIB  # Of memory, for the operating system and its desktop.


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
        system = min(cpu.total // 4, _MOST_SYSTEM_BYTES)
        cpu = replace(cpu, free=cpu.total - system)
    devices = tuple(free_all(device) for device in machine.devices)
    return replace(machine, devices=devices, cpu=cpu)


def simulate(gpu: str | None, vram: float | None) -> MachineProfile:
    """This computer, with a named GPU or one of `vram` GiB if they are given."""
    if gpu is not None:
        return with_gpu(gpu, vram)
    return detect() if vram is None else with_vram(vram)


def with_gpu(name: str, vram_gib: float | None = None) -> MachineProfile:
    """This computer with that GPU instead of its own.  Raises NotFoundError."""
    return with_catalog_gpu(detect(), gpu_catalog.find(name), vram_gib)


def with_vram(vram_gib: float) -> MachineProfile:
    """This computer with a GPU of unknown speed and this much memory."""
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
    return _replace_gpu(detect(), gpu)


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
