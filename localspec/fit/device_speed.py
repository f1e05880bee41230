"""How fast a computer's devices read, and what wider passes cost on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from localspec.fit import speedup_model
from localspec.machine import gpu_catalog
from localspec.machine.device import Device
from localspec.machine.memory_by_device import HOST

CurveKind = Literal["gpu", "metal", "cpu"]
"""What decides on the usual verify curve."""

EFFICIENCY = 0.75
"""The usual share of the peak that is reached: 0.68 to 0.84 on cards that were looked at."""
FIXED_MS = {"gpu": 1.5, "metal": 1.5, "cpu": 0.3}
"""What a pass takes however small the model: starting the graph's kernels, one after the other."""

TABLE_ERROR = 0.25
"""How far a one-token pass may be from what the table of cards says."""
CALIBRATED_ERROR = 0.08
"""The same where passes were measured on this machine."""
ASSUMED_ERROR = 0.5
"""The same where not even the bandwidth is known, only what computers of the kind have."""

_MAX_EXTRAPOLATION = 10
"""How many times larger a model may be than what was measured."""

UNQUANTIZED_TYPES = ("F32", "F16", "BF16")
_TYPICAL_VERIFY_CURVES: dict[tuple[CurveKind, bool], Mapping[int, float]] = {
    ("gpu", True): {1: 1.0, 8: 2.26, 17: 3.16},
    ("gpu", False): {1: 1.0, 8: 1.9, 17: 2.5},
    ("metal", True): {1: 1.0, 17: 11.9},
    ("metal", False): {1: 1.0, 8: 1.6, 17: 2.4},
    ("cpu", True): {1: 1.0, 2: 1.5, 4: 2.0, 5: 3.0, 8: 3.2, 17: 6.0},
    ("cpu", False): {1: 1.0, 2: 1.0, 4: 1.25, 8: 1.7, 17: 2.8},
}
"""Verify curves where none was measured, by kind and whether weights are quantised.

GPU: 2.39 at 8 (RTX 3090, 27B), 2.08 (0.6B), and nearly flat from there to 16.  Metal: 6.5 at 8
(M4, 27B), 4.6 and in BF16 1.6 (0.6B).  CPU: processors at one thread have 1.15 to 2.5 at 2;
from 4 to 5 quantised weights climb a step.
"""


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """How fast one device reads."""

    bandwidth: float | None
    """GB/s at best; None: unknown, and nothing is said of models that need this device."""
    efficiency: float = EFFICIENCY
    """The share of it that is reached."""
    fixed_ms: float = FIXED_MS["gpu"]
    """Of every pass."""
    kind: CurveKind = "gpu"
    verify_curve: Mapping[int, float] = field(default_factory=dict)
    """Verify curve, as measured; empty: the usual one."""
    error: float = TABLE_ERROR
    basis: str = ""
    """Where this comes from, in words."""
    measured: bool = False
    largest_measured: float = inf
    """Bytes of the largest model that was measured."""

    def read_ms(self, n_bytes: float) -> float:
        """Milliseconds to read them, beside the fixed part.  Only where the bandwidth is known."""
        assert self.bandwidth is not None
        return n_bytes / (self.efficiency * self.bandwidth * 1e6)

    def verify_cost(self, width: float, weight_type: str) -> float:
        """A pass of so many tokens, in passes of one."""
        curve = (
            self.verify_curve
            or _TYPICAL_VERIFY_CURVES[self.kind, weight_type not in UNQUANTIZED_TYPES]
        )
        return speedup_model.interpolate_curve(curve, width)


UNKNOWN_SPEED = DeviceSpeed(None, error=ASSUMED_ERROR, basis="its bandwidth is unknown")
UNKNOWN_CPU_SPEED = DeviceSpeed(
    None, 0.7, FIXED_MS["cpu"], "cpu", error=ASSUMED_ERROR, basis="was never measured"
)
TYPICAL_CPU_SPEED = DeviceSpeed(
    50.0,
    0.6,
    FIXED_MS["cpu"],
    "cpu",
    error=ASSUMED_ERROR,
    basis="assumed: 50 GB/s, two channels of DDR4, nothing was measured",
)
"""For who wants a figure nevertheless: to be shown with its basis."""


@dataclass(frozen=True, slots=True)
class HardwareSpeed:
    """What there is to compute on."""

    devices: tuple[Device, ...]
    """Those that layers may be offloaded to."""
    nominal_speeds: Mapping[str, DeviceSpeed]
    """By the device's name, the computer's own memory under HOST."""
    measured_speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    """What was measured, by device and type of weights; by no type what others may borrow."""

    def find_speed(self, device: str, weight_type: str, n_bytes: float = 0) -> DeviceSpeed:
        """For a model of this type of weights that reads so much from this device.

        What small models have shown is not believed of far larger ones: they may have stood in a
        cache.
        """
        told = self.nominal_speeds.get(device, UNKNOWN_SPEED)
        for known in ((device, weight_type), (device, "")):
            if (rate := self.measured_speeds.get(known)) is None:
                continue
            if n_bytes <= _MAX_EXTRAPOLATION * rate.largest_measured:
                return rate
            if told.bandwidth is None:
                basis = f"{rate.basis}, far smaller"
                return replace(rate, error=ASSUMED_ERROR, measured=False, basis=basis)
        return told


def from_devices(devices: Sequence[Device], cpu: DeviceSpeed = UNKNOWN_CPU_SPEED) -> HardwareSpeed:
    """By the table of cards; without devices everything is computed by the CPU."""
    return HardwareSpeed(
        tuple(devices), {one.name: _nominal_speed(one) for one in devices} | {HOST: cpu}
    )


def _nominal_speed(device: Device) -> DeviceSpeed:
    kind: CurveKind = "metal" if device.backend in ("Metal", "MTL") else "gpu"
    card = gpu_catalog.match_device(device)
    if card is None:
        return DeviceSpeed(None, kind=kind, error=ASSUMED_ERROR, basis="its bandwidth is unknown")
    sure = "" if "bandwidth" not in card.unconfirmed else ", unconfirmed"
    basis = f"{card.bandwidth:g} GB/s{sure} ({card.name})"
    return DeviceSpeed(card.bandwidth, fixed_ms=FIXED_MS[kind], kind=kind, basis=basis)
