"""Whether a pair fits: memory on each device, the verdict, and estimated speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from localspec.errors import ModelFileError
from localspec.fit import memory, speed_estimate
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.shape import ModelShape
from localspec.fit.speed_estimate import SpeedEstimate, UseCase
from localspec.lazy_dataclass import dataclass
from localspec.machine.device import Device, reserve_bytes
from localspec.machine.measurements import MemoryMeasurement
from localspec.machine.memory_by_device import HOST, DeviceMemory, MemoryEstimate
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
_MIN_PAST_LOADS = 3  # Loads after which the error is narrowed.
_MIN_ERROR_SHARE = 0.25
"""The error is narrowed to this share at most: other settings use other terms of the formula."""
_DEVIATION_MARGIN = 2.0  # Factor on the largest deviation seen.
_COMPARABLE_SHARE = 0.25
"""Loads of at least this share of the memory say how far an estimate is too low."""


def judge(needed: float, free: int | None, reserve: int) -> FitVerdict:
    """no: exceeds the free memory; tight: uses what is reserved for other programs, or nearly."""
    if not needed:
        return "fits"
    if free is None:
        return "unknown"
    usable = free - reserve
    if needed > free:
        return "no"
    return "fits" if usable - needed >= _TIGHT_SHARE * usable else "tight"


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """Memory of a pair on one device, in bytes."""

    device: Device
    reserve: int  # Reserved for other programs.
    target: DeviceMemory
    draft: DeviceMemory
    output: int = 0
    overhead: int = 0  # Memory of the backend, and a safety margin.
    error: int = 0
    sharing: tuple[DeviceFit, ...] = ()
    """GPUs that allocate in this memory: integrated ones, and Apple's."""

    @property
    def total(self) -> int:
        """Allocated by this device itself."""
        return self.target.total + self.draft.total + self.output + self.overhead

    @property
    def needed(self) -> int:
        """Allocated in its memory, with what other devices allocate there."""
        return self.total + sum(each.total for each in self.sharing)

    @property
    def memory_parts(self) -> dict[str, int]:
        """Bytes by what uses them; together `needed`."""
        fits = (self, *self.sharing)
        weights = sum(each.target.weights for each in fits)
        draft_weights = sum(each.draft.weights for each in fits)
        kv = sum(each.target.kv + each.draft.kv for each in fits)
        return {
            "target": weights,
            "draft": draft_weights,
            "KV": kv,
            "compute buffers": self.needed - weights - draft_weights - kv,
        }

    @property
    def headroom(self) -> int | None:
        """Bytes left above the reserve, negative if missing; None if free memory is unknown."""
        return None if self.device.free is None else self.device.free - self.reserve - self.needed

    @property
    def missing(self) -> int:
        """Bytes beyond the free memory."""
        return max(0, self.needed - (self.device.free or self.needed))

    @property
    def verdict(self) -> FitVerdict:
        return judge(self.needed, self.device.free, self.reserve)

    @property
    def is_close(self) -> bool:
        """Whether the error of the estimate could change the verdict."""
        if self.headroom is None or self.device.free is None or not self.needed:
            return False
        is_within = self.needed - self.device.free <= self.error and self.headroom <= self.error
        return is_within or self.verdict == "tight"


@dataclass(frozen=True, slots=True)
class FitReport:
    """Memory and speed of a pair with its settings."""

    load: LoadCommand
    device_fits: tuple[DeviceFit, ...]  # Devices that layers can be offloaded to.
    host: DeviceFit  # System memory.
    memory_estimate: MemoryEstimate
    speed: SpeedEstimate

    @property
    def all_fits(self) -> tuple[DeviceFit, ...]:
        return (*self.device_fits, self.host)

    @property
    def verdict(self) -> FitVerdict:
        """The worst verdict of any device."""
        return min((each.verdict for each in self.all_fits), key=_VERDICTS_WORST_FIRST.index)

    @property
    def tightest(self) -> DeviceFit:
        """The device with the least headroom; system memory counts only if it is missing some, or
        if a GPU shares it."""
        known = [each for each in self.all_fits if each.needed and each.headroom is not None]
        gpus = [each for each in known if each is not self.host or each.sharing]
        short = [each for each in known if (each.headroom or 0) < 0]
        return min(short or gpus or known, key=lambda each: each.headroom or 0, default=self.host)

    @property
    def missing_bytes(self) -> int:
        """Bytes beyond the free memory, over all devices."""
        shared = self.host.sharing
        own = sum(each.missing for each in self.device_fits if each not in shared)
        return own + max(self.host.missing, sum(each.missing for each in shared))

    @property
    def total(self) -> int:
        return sum(each.total for each in self.all_fits)

    @property
    def error(self) -> int:
        """Bytes by which the estimate of a device may be off."""
        return max(each.error for each in self.all_fits)


def estimate_fit(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    machine: MachineProfile,
    use: UseCase | None = None,
) -> FitReport:
    """Estimated from shapes, in a few milliseconds.

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
    shapes: tuple[ModelShape, ModelShape | None],
    memory_estimate: MemoryEstimate,
    machine: MachineProfile,
    use: UseCase | None = None,
) -> FitReport:
    """With a given memory estimate, such as the probe's."""
    target, draft = shapes
    if memory_estimate.draft is None:
        draft = None
    speed = speed_estimate.estimate_speed(load, target, draft, machine.hardware, use)
    loads = machine.past_loads
    device_fits = tuple(_device_fit(device, memory_estimate, loads) for device in machine.devices)
    host = _device_fit(replace(machine.cpu, name=HOST), memory_estimate, loads)
    host = replace(
        host,
        output=memory_estimate.output,
        overhead=host.overhead + _ENGINE_PROCESS_BYTES,
        sharing=tuple(each for each in device_fits if is_in_system_memory(each.device)),
    )
    return FitReport(load, device_fits, host, memory_estimate, speed)


def _device_fit(
    device: Device, memory_estimate: MemoryEstimate, past_loads: Sequence[MemoryMeasurement]
) -> DeviceFit:
    target = memory_estimate.target.of(device.name)
    draft = memory_estimate.draft.of(device.name) if memory_estimate.draft else DeviceMemory()
    used = target.total + draft.total
    overhead = int((_COMPUTE_SAFETY - 1) * (target.compute + draft.compute))
    scratch = memory_estimate.scratch.get(device.name, 0)
    error = memory_estimate.error
    if used and device.simulated:
        overhead += _BACKEND_RUNTIME_BYTES.get(device.backend, 0)
    elif used:
        overhead = max(overhead, _missing_in_past_loads(device.name, used, past_loads))
        error = int(error * _error_factor(device.name, memory_estimate, past_loads))
    return DeviceFit(device, reserve_bytes(device), target, draft, 0, overhead + scratch, error)


def _missing_in_past_loads(
    device: str, estimated: int, past_loads: Sequence[MemoryMeasurement]
) -> int:
    """Bytes by which an estimate of this size is too low, in the worst comparable load here."""
    shares = [
        load.used[device] / load.predicted[device] - 1
        for load in past_loads
        if device in load.used and load.predicted.get(device, 0) > _COMPARABLE_SHARE * estimated
    ]
    return int(estimated * max(0.0, max(shares, default=0.0)))


def _error_factor(
    device: str, estimate: MemoryEstimate, past_loads: Sequence[MemoryMeasurement]
) -> float:
    """Corrects the error by how much of it the same architectures needed on this device."""
    needed = [
        abs(load.used[device] - load.predicted[device]) / load.error
        for load in past_loads
        if load.architectures == estimate.architectures
        and load.error > 0
        and device in load.used.keys() & load.predicted.keys()
    ]
    worst = _DEVIATION_MARGIN * max(needed, default=0.0)
    if len(needed) < _MIN_PAST_LOADS:
        return max(1.0, worst)
    return max(_MIN_ERROR_SHARE, worst)


def is_in_system_memory(device: Device) -> bool:
    """Whether its memory is this computer's own.  A simulated one brings its own."""
    return device.unified and not device.simulated and not device.worker
