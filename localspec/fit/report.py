"""What a pair takes of each device, whether that fits, and how fast it would be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.errors import ModelFileError
from localspec.fit import memory
from localspec.fit import speed_estimate as fast
from localspec.fit.device_speed import HardwareSpeed
from localspec.fit.speed_estimate import SpeedEstimate, UseCase
from localspec.machine.device import Device, reserve_bytes
from localspec.machine.memory_by_device import HOST, DeviceMemory, MemoryEstimate
from localspec.models.gguf.header import Header
from localspec.protocol.wire import LoadCommand

FitVerdict = Literal["fits", "tight", "no", "unknown"]

_VERDICTS_WORST_FIRST: tuple[FitVerdict, ...] = ("no", "unknown", "tight", "fits")
_MIB = 1 << 20
_TIGHT_SHARE = 0.03
"""Of what may be used: closer than that, other programs decide."""
_COMPUTE_SAFETY = 1.05
"""On compute buffers: backends take a little more than llama.cpp foretells."""
_BACKEND_RUNTIME_BYTES = {
    "CUDA": 330 * _MIB,
    "ROCm": 330 * _MIB,
    "Vulkan": 200 * _MIB,
    "Metal": 150 * _MIB,
}
"""A backend's own memory; of a card that is here it is taken before llama.cpp says what is free."""
_ENGINE_PROCESS_BYTES = 160 * _MIB
"""The engine's process beside the model: Python, llama.cpp, tokens."""


@dataclass(frozen=True, slots=True)
class DeviceFit:
    """One device: what there is, and what the pair takes of it."""

    device: Device
    reserve: int
    """Bytes that are left to others."""
    target: DeviceMemory
    draft: DeviceMemory
    output: int = 0
    overhead: int = 0
    """The runtime's own, and what is added for safety."""
    error: int = 0

    @property
    def total(self) -> int:
        return self.target.total + self.draft.total + self.output + self.overhead

    @property
    def headroom(self) -> int | None:
        """Bytes to spare above the reserve; negative: missing.  None: nobody knows what is free."""
        return None if self.device.free is None else self.device.free - self.reserve - self.total

    @property
    def verdict(self) -> FitVerdict:
        """Tight: into the reserve, or nearly; no: beyond what is free."""
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
    """A pair with its settings, priced."""

    load: LoadCommand
    device_fits: tuple[DeviceFit, ...]
    """Of the devices that layers go to."""
    host: DeviceFit
    """Of the computer's own memory."""
    memory_estimate: MemoryEstimate
    speed: SpeedEstimate

    @property
    def verdict(self) -> FitVerdict:
        """The worst of any device."""
        return min(
            (room.verdict for room in (*self.device_fits, self.host)),
            key=_VERDICTS_WORST_FIRST.index,
        )

    @property
    def tightest(self) -> DeviceFit:
        """Where the least is to spare."""
        known = [
            room
            for room in (*self.device_fits, self.host)
            if room.total and room.headroom is not None
        ]
        cards = [room for room in known if room is not self.host]
        short = [room for room in known if (room.headroom or 0) < 0]
        return min(short or cards or known, key=lambda room: room.headroom or 0, default=self.host)

    @property
    def missing_bytes(self) -> int:
        """Bytes beyond what is free, over all devices."""
        over = (
            room.total - (room.device.free or room.total) for room in (*self.device_fits, self.host)
        )
        return sum(max(0, one) for one in over)

    @property
    def total(self) -> int:
        return sum(room.total for room in (*self.device_fits, self.host))


@dataclass(frozen=True, slots=True)
class MachineProfile:
    """What there is to run on: devices of this machine, or pretend ones, and its own memory."""

    devices: tuple[Device, ...]
    cpu: Device
    hardware: HardwareSpeed


def estimate_fit(
    load: LoadCommand,
    target: Header,
    draft: Header | None,
    machine: MachineProfile,
    use: UseCase | None = None,
) -> FitReport:
    """By formulas, in some milliseconds.

    Raises UsageError: the context is absurd; ModelFileError: a header's numbers are.
    """
    try:
        found = memory.estimate_pair(load, target, draft if load.draft else None, machine.devices)
        return from_memory_estimate(load, (target, draft), found, machine, use)
    except (ArithmeticError, LookupError, ValueError) as error:
        what = "What the file says of its sizes does not go together."
        raise ModelFileError(what, "Download it again, or try another file.") from error


def from_memory_estimate(
    load: LoadCommand,
    headers: tuple[Header, Header | None],
    memory_estimate: MemoryEstimate,
    machine: MachineProfile,
    use: UseCase | None = None,
) -> FitReport:
    """With bytes that are known already: from llama.cpp itself, say."""
    target, draft = headers
    dropped = memory_estimate.draft is None
    quick = fast.estimate_speed(load, target, None if dropped else draft, machine.hardware, use)
    rooms = tuple(_device_fit(device, memory_estimate) for device in machine.devices)
    host = _device_fit(replace(machine.cpu, name=HOST), memory_estimate)
    host = replace(
        host, output=memory_estimate.output, overhead=host.overhead + _ENGINE_PROCESS_BYTES
    )
    return FitReport(load, rooms, host, memory_estimate, quick)


def _device_fit(device: Device, memory_estimate: MemoryEstimate) -> DeviceFit:
    target = memory_estimate.target.of(device.name)
    draft = memory_estimate.draft.of(device.name) if memory_estimate.draft else DeviceMemory()
    taken = target.total + draft.total
    overhead = int((_COMPUTE_SAFETY - 1) * (target.compute + draft.compute))
    if taken and device.simulated:
        overhead += _BACKEND_RUNTIME_BYTES.get(device.backend, 0)
    return DeviceFit(
        device, reserve_bytes(device), target, draft, 0, overhead, memory_estimate.error
    )


def worst_verdict(verdicts: Iterable[FitVerdict]) -> FitVerdict:
    return min(verdicts, key=_VERDICTS_WORST_FIRST.index, default="fits")


def usable_bytes(devices: Sequence[Device]) -> int:
    """Bytes that may be used on all of them together."""
    return sum(max(0, (device.free or 0) - reserve_bytes(device)) for device in devices)
