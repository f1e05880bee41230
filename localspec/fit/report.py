"""Fit report of a pair: memory on each device, a verdict, and estimated speed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.errors import ModelFileError
from localspec.fit import memory, speed_estimate
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed_estimate import SpeedEstimate, UseCase
from localspec.machine.device import Device, reserve_bytes
from localspec.machine.memory_by_device import HOST, DeviceMemory, MemoryEstimate
from localspec.models.gguf.header import Header
from localspec.protocol.wire import LoadCommand

FitVerdict = Literal["fits", "tight", "no", "unknown"]

_VERDICTS_WORST_FIRST: tuple[FitVerdict, ...] = ("no", "unknown", "tight", "fits")
_MIB = 1 << 20
_TIGHT_SHARE = 0.03
"""Less headroom than this share of usable memory counts as tight: other programs may need it."""
_COMPUTE_SAFETY = 1.05
"""Factor on compute buffers: backends allocate a little more than llama.cpp reports."""
_BACKEND_RUNTIME_BYTES = {
    "CUDA": 330 * _MIB,
    "ROCm": 330 * _MIB,
    "Vulkan": 200 * _MIB,
    "Metal": 150 * _MIB,
}
"""Memory of the backend itself.  Added for simulated GPUs only: on a real one it is already in use
when llama.cpp reports free memory."""
_ENGINE_PROCESS_BYTES = 160 * _MIB
"""The engine process without the model: Python, llama.cpp, vocabulary."""


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """Memory of a pair on one device, in bytes."""

    device: Device
    reserve: int
    """Reserved for other programs."""
    target: DeviceMemory
    draft: DeviceMemory
    output: int = 0
    overhead: int = 0
    """Memory of the backend, and a safety margin."""
    error: int = 0

    @property
    def total(self) -> int:
        return self.target.total + self.draft.total + self.output + self.overhead

    @property
    def headroom(self) -> int | None:
        """Bytes left above the reserve, negative if missing; None if free memory is unknown."""
        return None if self.device.free is None else self.device.free - self.reserve - self.total

    @property
    def verdict(self) -> FitVerdict:
        """tight: uses the reserve, or nearly; no: exceeds the free memory."""
        if not self.total:
            return "fits"
        if self.device.free is None or self.headroom is None:
            return "unknown"
        if self.total > self.device.free:
            return "no"
        return (
            "fits" if self.headroom >= _TIGHT_SHARE * (self.device.free - self.reserve) else "tight"
        )


@dataclass(frozen=True, slots=True)
class FitReport:
    """Memory and speed of a pair with its settings."""

    load: LoadCommand
    device_fits: tuple[DeviceFit, ...]
    """Devices that layers can be offloaded to."""
    host: DeviceFit
    """System memory."""
    memory_estimate: MemoryEstimate
    speed: SpeedEstimate

    @property
    def all_fits(self) -> tuple[DeviceFit, ...]:
        return (*self.device_fits, self.host)

    @property
    def verdict(self) -> FitVerdict:
        """The worst verdict of any device."""
        return worst_verdict(each.verdict for each in self.all_fits)

    @property
    def tightest(self) -> DeviceFit:
        """The device with the least headroom; system memory counts only if it is missing some."""
        known = [each for each in self.all_fits if each.total and each.headroom is not None]
        gpus = [each for each in known if each is not self.host]
        short = [each for each in known if (each.headroom or 0) < 0]
        return min(short or gpus or known, key=lambda each: each.headroom or 0, default=self.host)

    @property
    def missing_bytes(self) -> int:
        """Bytes beyond the free memory, over all devices."""
        return sum(max(0, each.total - (each.device.free or each.total)) for each in self.all_fits)

    @property
    def total(self) -> int:
        return sum(each.total for each in self.all_fits)


def estimate_fit(
    load: LoadCommand,
    target: Header,
    draft: Header | None,
    machine: MachineProfile,
    use: UseCase | None = None,
) -> FitReport:
    """Estimated from headers, in a few milliseconds.

    Raises UsageError for an impossible context, ModelFileError for inconsistent headers.
    """
    try:
        estimate = memory.estimate_pair(
            load, target, draft if load.draft else None, machine.devices
        )
        return from_memory_estimate(load, (target, draft), estimate, machine, use)
    except (ArithmeticError, LookupError, ValueError) as error:
        what = "The sizes in the model file are inconsistent."
        raise ModelFileError(what, "Download it again, or try another file.") from error


def from_memory_estimate(
    load: LoadCommand,
    headers: tuple[Header, Header | None],
    memory_estimate: MemoryEstimate,
    machine: MachineProfile,
    use: UseCase | None = None,
) -> FitReport:
    """With a given memory estimate, such as the probe's."""
    target, draft = headers
    if memory_estimate.draft is None:
        draft = None
    speed = speed_estimate.estimate_speed(load, target, draft, machine.hardware, use)
    device_fits = tuple(_device_fit(device, memory_estimate) for device in machine.devices)
    host = _device_fit(replace(machine.cpu, name=HOST), memory_estimate)
    host = replace(
        host, output=memory_estimate.output, overhead=host.overhead + _ENGINE_PROCESS_BYTES
    )
    return FitReport(load, device_fits, host, memory_estimate, speed)


def _device_fit(device: Device, memory_estimate: MemoryEstimate) -> DeviceFit:
    target = memory_estimate.target.of(device.name)
    draft = memory_estimate.draft.of(device.name) if memory_estimate.draft else DeviceMemory()
    used = target.total + draft.total
    overhead = int((_COMPUTE_SAFETY - 1) * (target.compute + draft.compute))
    if used and device.simulated:
        overhead += _BACKEND_RUNTIME_BYTES.get(device.backend, 0)
    return DeviceFit(
        device, reserve_bytes(device), target, draft, 0, overhead, memory_estimate.error
    )


def worst_verdict(verdicts: Iterable[FitVerdict]) -> FitVerdict:
    return min(verdicts, key=_VERDICTS_WORST_FIRST.index, default="fits")


def usable_bytes(devices: Sequence[Device]) -> int:
    """Free bytes above the reserve, over all devices."""
    return sum(max(0, (device.free or 0) - reserve_bytes(device)) for device in devices)
