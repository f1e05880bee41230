"""Profile of a machine: its devices and speeds, of this computer or with a simulated GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from localspec import paths
from localspec.fit import calibration, device_speed
from localspec.fit.device_speed import TYPICAL_CPU_SPEED, HardwareSpeed
from localspec.machine import device_detection, gpu_catalog, measurements
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST
from localspec.units import gib

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MachineProfile:
    devices: tuple[Device, ...]
    """GPUs, real or simulated."""
    cpu: Device
    hardware: HardwareSpeed


def detect(refresh: bool = False) -> MachineProfile:
    """This computer, with the speeds measured on it."""
    detected = device_detection.detect_devices(refresh)
    return _profile(detected.devices, detected.cpu, keep_gpu_measurements=True)


def with_gpu(name: str, vram_gib: float | None = None) -> MachineProfile:
    """This computer with that GPU instead of its own.  Raises NotFoundError."""
    return _profile(
        (gpu_catalog.find(name).as_device(vram_gib),), device_detection.detect_devices().cpu
    )


def with_vram(vram_gib: float) -> MachineProfile:
    """This computer with a GPU of unknown speed and this much memory."""
    size = int(vram_gib * _GIB)
    gpu = Device("GPU0", f"a GPU with {gib(size)}", "gpu", size, size, "CUDA", simulated=True)
    return _profile((gpu,), device_detection.detect_devices().cpu)


def _profile(
    gpus: tuple[Device, ...], cpu: Device, keep_gpu_measurements: bool = False
) -> MachineProfile:
    records = measurements.MeasurementStore(paths.data_dir() / "measured.sqlite").read_all()
    hardware = calibration.calibrate(device_speed.from_devices(gpus, TYPICAL_CPU_SPEED), records)
    if not keep_gpu_measurements:  # they were made on the real GPU
        speeds = hardware.measured_speeds
        cpu_speeds = {key: speed for key, speed in speeds.items() if key[0] == HOST}
        hardware = replace(hardware, measured_speeds=cpu_speeds)
    return MachineProfile(gpus, cpu, hardware)
