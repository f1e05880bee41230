"""Whether a pair fits: memory on each device, the verdict, and estimated speed."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from localspec.fit import memory
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.memory import MemoryEstimate
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.shape import ModelShape, refuse_inconsistent
from localspec.fit.speed import SpeedEstimate, UseCase, estimate_speed
from localspec.machine import memory_probe
from localspec.machine.device import HOST, Device, DeviceMemory, reserve_bytes
from localspec.machine.memory_probe import ProbeError
from localspec.protocol.wire import LoadCommand

FitVerdict = Literal["fits", "tight", "no", "unknown"]

WORST_FIRST: tuple[FitVerdict, ...] = ("no", "unknown", "tight", "fits")
LONG_CONTEXT = 16_384  # Tokens; what has room for less ranks after what has it.
_LEAST_LEFT = 0.01  # Of the memory, beside the reserve.
_MIB = 1 << 20
_COMPUTE_SAFETY = 0.05  # Backends allocate a little more than llama.cpp reports.
_BACKEND_RUNTIME_MIB = {"CUDA": 330, "ROCm": 330, "Vulkan": 200, "Metal": 150}
"""Memory of the backend itself.  Added for simulated GPUs only: on a real one it is already in use
when llama.cpp reports free memory.
"""
_ENGINE_PROCESS_BYTES = 160 * _MIB
"""The engine process without the model: Python, llama.cpp, vocabulary."""
_COMPARABLE_SHARE = 0.25
"""Loads of at least this share of the memory say how far an estimate is too low."""


def judge(needed: float, free: int | None, reserve: int) -> FitVerdict:
    """no: exceeds the free memory; tight: uses what is reserved for other programs."""
    if not needed:
        return "fits"
    if free is None:
        return "unknown"
    if needed > free:
        return "no"
    return "fits" if needed <= free - reserve else "tight"


class DeviceFit(Struct, frozen=True):
    """Memory of a pair on one device, in bytes."""

    device: Device
    reserve: int  # Reserved for other programs.
    target: DeviceMemory
    draft: DeviceMemory
    output: int = 0
    overhead: int = 0  # Memory of the backend, and a safety margin.
    sharing: tuple[DeviceFit, ...] = ()
    """GPUs that allocate in this memory: integrated ones, and Apple's."""
    has_head: bool = False  # The draft is a head.

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
        target = sum((each.target for each in fits), DeviceMemory())
        draft = sum((each.draft for each in fits), DeviceMemory())
        both = target if self.has_head else target + draft
        parts = {
            "target": target.weights,
            "head" if self.has_head else "draft": draft.total
            if self.has_head
            else draft.weights,
            "KV": both.kv - both.states - both.window,
            "recurrent states": both.states,
            "window cache": both.window,
        }
        return parts | {"compute buffers": self.needed - sum(parts.values())}

    @property
    def headroom(self) -> int | None:
        """Bytes left above the reserve, negative if missing; None if free memory is
        unknown.
        """
        return (
            None
            if self.device.free is None
            else self.device.free - self.reserve - self.needed
        )

    @property
    def missing(self) -> int:
        """Bytes beyond the free memory."""
        return 0 if self.device.free is None else max(0, self.needed - self.device.free)

    @property
    def verdict(self) -> FitVerdict:
        return judge(self.needed, self.device.free, self.reserve)


class FitReport(Struct, frozen=True):
    """Memory and speed of a pair with its settings."""

    load: LoadCommand
    device_fits: tuple[DeviceFit, ...]  # Devices that layers can be offloaded to.
    host: DeviceFit  # System memory.
    memory_estimate: MemoryEstimate
    speed: SpeedEstimate
    n_ctx_train: int = 0

    @property
    def all_fits(self) -> tuple[DeviceFit, ...]:
        return (*self.device_fits, self.host)

    @property
    def verdict(self) -> FitVerdict:
        """The worst verdict of any device."""
        return min((each.verdict for each in self.all_fits), key=WORST_FIRST.index)

    @property
    def loses(self) -> bool:
        """Whether the draft is not expected to make it faster."""
        chat, is_known = (
            self.speed.by_workload.get("chat"),
            self.speed.plain is not None,
        )
        return (
            is_known
            and bool(self.memory_estimate.draft)
            and not (chat and chat.speedup[1] > 1)
        )

    @property
    def has_long_context(self) -> bool:
        n_ctx = self.load.target_settings.n_ctx or 0
        return n_ctx >= min(LONG_CONTEXT, self.n_ctx_train or LONG_CONTEXT)

    @property
    def is_partly_in_ram(self) -> bool:
        settings = self.load.target_settings
        return bool(self.device_fits) and (
            settings.cpu_moe != 0 or settings.n_gpu_layers >= 0
        )

    @property
    def is_full(self) -> bool:
        """Whether one more small program would not fit; what is partly in RAM was made
        to fill.
        """
        headroom, total = self.tightest.headroom, self.tightest.device.total or 0
        is_known = headroom is not None and not self.is_partly_in_ram
        return is_known and (headroom or 0) < _LEAST_LEFT * total

    @property
    def is_too_close(self) -> bool:
        """Whether a count by llama.cpp, which takes a second, could change the verdict.

        With remote devices nothing is counted: they serve one process at a time.
        """
        are_close = (
            each.verdict == "tight" or each.missing <= self.error >= each.headroom
            for each in self.all_fits
            if each.needed and each.headroom is not None
        )
        return any(are_close) and not self.load.target_settings.remote_hosts

    @property
    def tightest(self) -> DeviceFit:
        """The device with the least headroom; system memory counts only if it is
        missing some, or if a GPU shares it.
        """
        known = [
            each for each in self.all_fits if each.needed and each.headroom is not None
        ]
        gpus = [each for each in known if each is not self.host or each.sharing]
        short = [each for each in known if (each.headroom or 0) < 0]
        return min(
            short or gpus or known,
            key=lambda each: each.headroom or 0,
            default=self.host,
        )

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
        return self.memory_estimate.error


def estimate_fit(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    machine: MachineProfile,
    use: UseCase | None = None,
    *,
    with_speed: bool = True,
) -> FitReport:
    """In a few milliseconds, in half of them without the speed.

    Raises UsageError for an impossible context, ModelFileError for inconsistent
    headers.
    """
    speed = SpeedEstimate()
    with refuse_inconsistent():
        estimate = memory.estimate_pair(
            load, target, draft if load.draft else None, machine.devices
        )
        draft = draft if estimate.draft else None
        if with_speed:
            placements = estimate.placements
            speed = estimate_speed(
                load, target, draft, machine.hardware, placements, use
            )
    has_head = draft is not None and bool(draft.head_kind)
    parts = _fit_devices(estimate, machine, has_head=has_head)
    return FitReport(load, *parts, estimate, speed, target.n_ctx_train)


def _fit_devices(
    estimate: MemoryEstimate, machine: MachineProfile, *, has_head: bool
) -> tuple[tuple[DeviceFit, ...], DeviceFit]:
    """Of the GPUs, and of system memory."""
    devices = (*machine.devices, replace(machine.cpu, name=HOST))
    *gpus, host = (
        replace(_fit(each, estimate, machine), has_head=has_head) for each in devices
    )
    return tuple(gpus), replace(
        host,
        output=estimate.output,
        overhead=host.overhead + _ENGINE_PROCESS_BYTES,
        sharing=tuple(each for each in gpus if is_in_system_memory(each.device)),
    )


def _fit(
    device: Device, estimate: MemoryEstimate, machine: MachineProfile
) -> DeviceFit:
    name = device.name
    target, used = estimate.target.of(name), estimate.of(name)
    draft = estimate.draft.of(name) if estimate.draft else DeviceMemory()
    overhead = int(_COMPUTE_SAFETY * used.compute)
    if used.total and device.simulated:
        overhead += _MIB * _BACKEND_RUNTIME_MIB.get(device.backend, 0)
    elif used.total:
        # Bytes by which the estimate was too low, in the worst comparable load here.
        shares = [
            load.used[name] / load.predicted[name] - 1
            for load in machine.past_loads
            if name in load.used
            and load.predicted.get(name, 0) > _COMPARABLE_SHARE * used.total
        ]
        overhead = max(overhead, int(used.total * max(shares, default=0.0)))
    overhead += estimate.scratch.get(name, 0)
    return DeviceFit(device, reserve_bytes(device), target, draft, 0, overhead)


def is_in_system_memory(device: Device) -> bool:
    """Whether its memory is this computer's own.  A simulated one brings its own."""
    return device.unified and not device.simulated and device.link is None


def confirm_fit(fit: FitReport, pair: PairShapes, machine: MachineProfile) -> FitReport:
    """The same settings with llama.cpp's counts; if the probe fails, the given fit with
    a note.

    Takes about a second the first time, then less than a tenth.  A fit from the
    catalogue, or with remote devices, stays an estimate.
    """
    if pair.headers is None or machine.remote_hosts:
        return fit
    try:
        return count_fit(fit, pair, machine)
    except (ProbeError, OSError) as error:
        note = f"estimated: {error}"
        return replace(fit, memory_estimate=replace(fit.memory_estimate, note=note))


def count_fit(fit: FitReport, pair: PairShapes, machine: MachineProfile) -> FitReport:
    """As `confirm_fit`.

    Raises ProbeError, also if llama.cpp uses other devices than the fit.
    """
    if pair.headers is None:
        raise ProbeError("there is no file")
    target, draft = pair.headers
    estimate = fit.memory_estimate
    counted = memory_probe.count_buffers(
        fit.load,
        target,
        draft,
        simulated=[device for device in machine.devices if device.simulated],
        used_by_target={name: part.total for name, part in estimate.target.on.items()},
    )
    exact = memory.replace_counted(estimate, fit.load, pair.shapes, counted)
    if _computing_devices(exact) != _computing_devices(estimate):
        raise ProbeError("llama.cpp uses other devices")
    device_fits, host = _fit_devices(exact, machine, has_head=fit.host.has_head)
    return replace(fit, device_fits=device_fits, host=host, memory_estimate=exact)


def _computing_devices(estimate: MemoryEstimate) -> set[str]:
    return {name for name, part in estimate.target.on.items() if part.compute}
