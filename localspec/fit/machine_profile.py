"""Where a pair may run: this computer as it is, or with a card that is not here."""

from __future__ import annotations

from dataclasses import replace

from localspec import paths
from localspec.fit import calibration, device_speed
from localspec.fit.device_speed import TYPICAL_CPU_SPEED
from localspec.fit.report import MachineProfile
from localspec.machine import device_detection, gpu_catalog, measurements
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST
from localspec.units import gib

_GIB = 1 << 30


def detect(refresh: bool = False) -> MachineProfile:
    """This computer, with what it has run."""
    found = device_detection.detect_devices(refresh)
    return _profile(found.devices, found.cpu, keep_gpu_measurements=True)


def with_gpu(name: str, vram_gib: float | None = None) -> MachineProfile:
    """This computer, had it that card instead of its own.  Raises NotFoundError."""
    return _profile(
        (gpu_catalog.find(name).as_device(vram_gib),), device_detection.detect_devices().cpu
    )


def with_vram(vram_gib: float) -> MachineProfile:
    """This computer, had it a card of so many GiB of which nothing else is known."""
    size = int(vram_gib * _GIB)
    card = Device("GPU0", f"a card of {gib(size)}", "gpu", size, size, "CUDA", simulated=True)
    return _profile((card,), device_detection.detect_devices().cpu)


def _profile(
    gpus: tuple[Device, ...], cpu: Device, keep_gpu_measurements: bool = False
) -> MachineProfile:
    known = device_speed.from_devices(gpus, TYPICAL_CPU_SPEED)
    shown = measurements.MeasurementStore(paths.data_dir() / "measured.sqlite").read_all()
    known = calibration.calibrate(known, shown)
    if not keep_gpu_measurements:  # what the card that is here has shown says nothing of another
        kept = {where: rate for where, rate in known.measured_speeds.items() if where[0] == HOST}
        known = replace(known, measured_speeds=kept)
    return MachineProfile(gpus, cpu, known)
