"""What a pair takes of each device, whether that fits, and how fast it would be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from localspec.errors import ModelFileError
from localspec.fit import memory
from localspec.fit import speed as fast
from localspec.fit.hardware import Hardware
from localspec.fit.speed import Speed, Use
from localspec.machine.device import Device, reserve
from localspec.machine.ledger import HOST, Bytes, Projection
from localspec.models.header import Header
from localspec.protocol.wire import Load

Verdict = Literal["fits", "tight", "no", "unknown"]

_WORST: tuple[Verdict, ...] = ("no", "unknown", "tight", "fits")
_MIB = 1 << 20
_TIGHT = 0.03
"""Of what may be used: closer than that, other programs decide."""
_SAFETY = 1.05
"""On compute buffers: backends take a little more than llama.cpp foretells."""
_RUNTIME = {"CUDA": 330 * _MIB, "ROCm": 330 * _MIB, "Vulkan": 200 * _MIB, "Metal": 150 * _MIB}
"""A backend's own memory; of a card that is here it is taken before llama.cpp says what is free."""
_PROCESS = 160 * _MIB
"""The engine's process beside the model: Python, llama.cpp, tokens."""


@dataclass(frozen=True, slots=True)
class Room:
    """One device: what there is, and what the pair takes of it."""

    device: Device
    reserve: int
    """Bytes that are left to others."""
    target: Bytes
    draft: Bytes
    output: int = 0
    overhead: int = 0
    """The runtime's own, and what is added for safety."""
    error: int = 0

    @property
    def total(self) -> int:
        return self.target.total + self.draft.total + self.output + self.overhead

    @property
    def spare(self) -> int | None:
        """Bytes to spare above the reserve; negative: missing.  None: nobody knows what is free."""
        return None if self.device.free is None else self.device.free - self.reserve - self.total

    @property
    def verdict(self) -> Verdict:
        """Tight: into the reserve, or nearly; no: beyond what is free."""
        if not self.total:
            return "fits"
        if self.device.free is None or self.spare is None:
            return "unknown"
        if self.total > self.device.free:
            return "no"
        return "fits" if self.spare >= _TIGHT * (self.device.free - self.reserve) else "tight"


@dataclass(frozen=True, slots=True)
class Fit:
    """A pair with its settings, priced."""

    load: Load
    rooms: tuple[Room, ...]
    """Of the devices that layers go to."""
    host: Room
    """Of the computer's own memory."""
    projection: Projection
    speed: Speed

    @property
    def verdict(self) -> Verdict:
        """The worst of any device."""
        return min((room.verdict for room in (*self.rooms, self.host)), key=_WORST.index)

    @property
    def tightest(self) -> Room:
        """Where the least is to spare."""
        known = [room for room in (*self.rooms, self.host) if room.total and room.spare is not None]
        cards = [room for room in known if room is not self.host]
        short = [room for room in known if (room.spare or 0) < 0]
        return min(short or cards or known, key=lambda room: room.spare or 0, default=self.host)

    @property
    def missing(self) -> int:
        """Bytes beyond what is free, over all devices."""
        over = (room.total - (room.device.free or room.total) for room in (*self.rooms, self.host))
        return sum(max(0, one) for one in over)

    @property
    def total(self) -> int:
        return sum(room.total for room in (*self.rooms, self.host))


@dataclass(frozen=True, slots=True)
class Place:
    """What there is to run on: devices of this machine, or pretend ones, and its own memory."""

    devices: tuple[Device, ...]
    cpu: Device
    hardware: Hardware


def price(
    load: Load, target: Header, draft: Header | None, place: Place, use: Use | None = None
) -> Fit:
    """By formulas, in some milliseconds.

    Raises UsageError: the context is absurd; ModelFileError: a header's numbers are.
    """
    try:
        found = memory.estimate(load, target, draft if load.draft else None, place.devices)
        return judged(load, (target, draft), found, place, use)
    except (ArithmeticError, LookupError, ValueError) as error:
        what = "What the file says of its sizes does not go together."
        raise ModelFileError(what, "Download it again, or try another file.") from error


def judged(
    load: Load,
    headers: tuple[Header, Header | None],
    projection: Projection,
    place: Place,
    use: Use | None = None,
) -> Fit:
    """With bytes that are known already: from llama.cpp itself, say."""
    target, draft = headers
    dropped = projection.draft is None
    quick = fast.speed(load, target, None if dropped else draft, place.hardware, use)
    rooms = tuple(_room(device, projection) for device in place.devices)
    host = _room(replace(place.cpu, name=HOST), projection)
    host = replace(host, output=projection.output, overhead=host.overhead + _PROCESS)
    return Fit(load, rooms, host, projection, quick)


def _room(device: Device, projection: Projection) -> Room:
    target = projection.target.of(device.name)
    draft = projection.draft.of(device.name) if projection.draft else Bytes()
    taken = target.total + draft.total
    overhead = int((_SAFETY - 1) * (target.compute + draft.compute))
    if taken and device.pretend:
        overhead += _RUNTIME.get(device.backend, 0)
    return Room(device, reserve(device), target, draft, 0, overhead, projection.error)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=_WORST.index, default="fits")


def used(devices: Sequence[Device]) -> int:
    """Bytes that may be used on all of them together."""
    return sum(max(0, (device.free or 0) - reserve(device)) for device in devices)
