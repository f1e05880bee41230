"""Speed of each device: memory bandwidth, fixed time per pass and verify curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import inf
from typing import Literal

from localspec.fit import speedup_model
from localspec.lazy_dataclass import dataclass
from localspec.machine import gpu_catalog
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST

CurveKind = Literal["gpu", "metal", "cpu"]
"""Selects the typical verify curve."""

EFFICIENCY = 0.75
"""Typical share of peak bandwidth reached: 0.68 to 0.84 on the GPUs examined."""
FIXED_MS = {"gpu": 1.5, "metal": 1.5, "cpu": 0.3}
"""Fixed time of a pass, whatever the model size: kernel launches."""

TABLE_ERROR = 0.25
"""Relative error of a one-token pass estimated from gpus.yaml."""
CALIBRATED_ERROR = 0.08
"""The same if passes were measured on this machine."""
ASSUMED_ERROR = 0.5
"""The same if the bandwidth is only typical of such computers."""

_MAX_EXTRAPOLATION = 10
"""A measured speed is accurate for models up to this many times larger."""

UNQUANTIZED_TYPES = ("F32", "F16", "BF16")
_TYPICAL_VERIFY_CURVES: dict[tuple[CurveKind, bool], Mapping[int, float]] = {
    ("gpu", True): {1: 1.0, 8: 2.26, 17: 3.16},
    ("gpu", False): {1: 1.0, 8: 1.9, 17: 2.5},
    ("metal", True): {1: 1.0, 17: 11.9},
    ("metal", False): {1: 1.0, 8: 1.6, 17: 2.4},
    ("cpu", True): {1: 1.0, 2: 1.5, 4: 2.0, 5: 3.0, 8: 3.2, 17: 6.0},
    ("cpu", False): {1: 1.0, 2: 1.0, 4: 1.25, 8: 1.7, 17: 2.8},
}
"""Verify curves used until one is measured, by kind and whether the weights are quantised.

GPU: 2.39 at 8 (RTX 3090, 27B), 2.08 (0.6B), and nearly flat from there to 16.  Metal: 6.5 at 8
(M4, 27B), 4.6 and in BF16 1.6 (0.6B).  CPU: 1.15 to 2.5 at 2 with one thread; quantised weights
have a step from 4 to 5.
"""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    bandwidth: float | None
    """Peak GB/s; None if unknown: then models on this device have no speed estimate."""
    efficiency: float = EFFICIENCY
    """Share of the bandwidth reached."""
    fixed_ms: float = FIXED_MS["gpu"]
    kind: CurveKind = "gpu"
    verify_curve: Mapping[int, float] = field(default_factory=dict)
    """As measured; empty for the typical one."""
    error: float = TABLE_ERROR
    basis: str = ""
    """The source of these numbers, shown to the user."""
    measured: bool = False
    largest_measured: float = inf
    """Bytes of the largest model measured."""

    def read_ms(self, n_bytes: float) -> float:
        """Milliseconds to read `n_bytes`, without the fixed time.  Requires a known bandwidth."""
        assert self.bandwidth is not None
        return n_bytes / (self.efficiency * self.bandwidth * 1e6)

    def verify_cost(self, width: float, weight_type: str) -> float:
        """Cost of a pass of `width` tokens, in one-token passes."""
        curve = (
            self.verify_curve
            or _TYPICAL_VERIFY_CURVES[self.kind, weight_type not in UNQUANTIZED_TYPES]
        )
        return speedup_model.interpolate_curve(curve, width)


UNKNOWN_SPEED = DeviceSpeed(None, error=ASSUMED_ERROR, basis="memory bandwidth unknown")
UNKNOWN_CPU_SPEED = DeviceSpeed(
    None, 0.7, FIXED_MS["cpu"], "cpu", error=ASSUMED_ERROR, basis="not measured yet"
)
TYPICAL_CPU_SPEED = DeviceSpeed(
    50.0,
    0.6,
    FIXED_MS["cpu"],
    "cpu",
    error=ASSUMED_ERROR,
    basis="50 GB/s assumed (dual-channel DDR4), not measured yet",
)
"""A rough assumption; show it with its basis."""


@dataclass(frozen=True, slots=True)
class NetworkLine:
    """The line to a worker, as measured before loading."""

    round_trip_ms: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class HardwareSpeed:
    """Speeds of all devices of a machine."""

    devices: tuple[Device, ...]
    """Devices that layers can be offloaded to."""
    nominal_speeds: Mapping[str, DeviceSpeed]
    """By device name; the CPU under HOST."""
    lines: Mapping[str, NetworkLine] = field(default_factory=dict)
    """By name of a worker's device."""
    measured_speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    """By device and weight type; the type "" applies to types not measured."""
    acceptance: Mapping[tuple[str, ...], Mapping[str, float]] = field(default_factory=dict)
    """Rates that drafts reached here, by the paths of the pair; by `greedy` and `coupled`."""

    def find_speed(self, device: str, weight_type: str, n_bytes: float = 0) -> DeviceSpeed:
        """The speed for a model with this weight type that reads `n_bytes` per token here.

        Once a device was measured, all models are estimated from its measurements: those of a list
        are comparable.
        """
        for key in ((device, weight_type), (device, "")):
            if (speed := self.measured_speeds.get(key)) is None:
                continue
            if n_bytes <= _MAX_EXTRAPOLATION * speed.largest_measured:
                return speed
            basis = f"{speed.basis}, far smaller"
            return replace(speed, error=ASSUMED_ERROR, measured=False, basis=basis)
        return self.nominal_speeds.get(device, UNKNOWN_SPEED)


def from_devices(devices: Sequence[Device], cpu: DeviceSpeed = UNKNOWN_CPU_SPEED) -> HardwareSpeed:
    """Nominal speeds from gpus.yaml; without devices, the CPU computes everything."""
    return HardwareSpeed(
        tuple(devices), {device.name: _nominal_speed(device) for device in devices} | {HOST: cpu}
    )


def _nominal_speed(device: Device) -> DeviceSpeed:
    if device.worker and device.backend == HOST:
        return TYPICAL_CPU_SPEED
    kind: CurveKind = "metal" if device.backend in ("Metal", "MTL") else "gpu"
    spec = gpu_catalog.match_device(device)
    if spec is None:
        return DeviceSpeed(None, kind=kind, error=ASSUMED_ERROR, basis="memory bandwidth unknown")
    caveat = ", unconfirmed" if "bandwidth" in spec.unconfirmed else ""
    basis = f"{spec.bandwidth:g} GB/s{caveat} ({spec.name})"
    return DeviceSpeed(spec.bandwidth, fixed_ms=FIXED_MS[kind], kind=kind, basis=basis)
