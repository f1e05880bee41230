"""Calibrates device speeds with passes that were measured here.

The bandwidth, the fixed time of a pass, and the verify curve.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from statistics import geometric_mean
from typing import NamedTuple, TypeGuard

from msgspec.structs import replace

from localspec.fit.speed import (
    ASSUMED_ERROR,
    CALIBRATED_ERROR,
    TABLE_ERROR,
    UNKNOWN_CPU_SPEED,
    UNKNOWN_SPEED,
    DeviceSpeed,
    HardwareSpeed,
    PassReads,
    SpeedEstimate,
)
from localspec.machine.device import HOST
from localspec.machine.measurements import (
    ModelReads,
    PairMeasurement,
    PairReads,
    find_files,
    is_trusted,
)
from localspec.machine.type_speeds import TIMED_WEIGHTS, TypeSpeed
from localspec.protocol.wire import MeasuredCosts
from localspec.units import count

# Minimum ratio of largest to smallest model for a fit of the fixed time.
_MIN_SIZE_RATIO = 1.5
_TYPICAL_LAYERS = 32
_MAX_FIXED_SHARE = 0.3
"""The most of a pass that is fixed time, if only one size was measured."""
# Relative error for other model sizes if only one size was measured.
_SINGLE_SIZE_ERROR = 0.15
_MIN_VERIFIED = 50  # Verified draft tokens from which an acceptance rate is used.
_CPU_CACHE_BYTES = 64e6
"""A pair that reads less may stay in the CPU cache, so it shows no bandwidth."""

_Key = tuple[str, str]  # Device and weight type.


class TimedPass(NamedTuple):
    """A one-token pass: the bytes of weights that it reads, and its time."""

    n_bytes: float
    ms: float


class _MeasuredPair(NamedTuple):
    reads: PairReads
    costs: MeasuredCosts

    @property
    def models(self) -> list[ModelReads]:
        """Target and draft."""
        if self.reads.draft is None:
            return [self.reads.target]
        return [self.reads.target, self.reads.draft]


class FittedLine(NamedTuple):
    """The time of a pass by its bytes: a fixed time, and a bandwidth."""

    fixed_ms: float
    bandwidth: float  # GB/s that were reached.
    error: float  # The largest relative deviation of a point.


def summarize_reads(speed: SpeedEstimate) -> PairReads | None:
    """The bytes a pair reads.

    They are stored with its measurements, which so apply to other models.
    """
    if speed.reads is None:
        return None
    target, draft = speed.reads
    if draft is None or draft.shape.head_kind:  # a head does more than read weights
        return PairReads(_summarize_model(target))
    return PairReads(_summarize_model(target), _summarize_model(draft))


def _summarize_model(reads: PassReads) -> ModelReads:
    return ModelReads(
        read=round(reads.weights),
        devices=tuple(reads.by_device),
        family=reads.shape.weight_type,
        moe=reads.shape.is_moe,
    )


def calibrate(
    hardware: HardwareSpeed,
    records: Sequence[PairMeasurement],
    types: Mapping[str, TypeSpeed] | None = None,
) -> HardwareSpeed:
    """Adds the speeds measured on this machine, and the acceptance rates of pairs.

    Times count only if no other program used the CPUs much.  `records`: the latest
    first; `types`: as timed on its CPU, for those of which no model was measured.
    """
    trusted = []
    for record in records:
        pair = _find_trusted(record)
        if pair is not None:
            trusted.append(pair)
    # CPU speeds are comparable only at the same number of threads.
    usable = []
    for pair in trusted:
        is_on_cpu = any(HOST in model.devices for model in pair.models)
        if not is_on_cpu or pair.costs.threads == trusted[0].costs.threads:
            usable.append(pair)
    speeds = _timed_speeds(types or {}) | _fit_speeds(hardware, usable)
    acceptance = _measured_acceptance(records)
    return replace(hardware, measured_speeds=speeds, acceptance=acceptance)


def _find_trusted(record: PairMeasurement) -> _MeasuredPair | None:
    """The measurement, if it says how fast memory is."""
    if record.reads is None or record.measured is None:
        return None
    if not is_trusted(record.measured):
        return None
    pair = _MeasuredPair(record.reads, record.measured)
    if sum(model.read for model in pair.models) < _CPU_CACHE_BYTES:
        return None
    return pair


def _timed_speeds(types: Mapping[str, TypeSpeed]) -> dict[_Key, DeviceSpeed]:
    speeds = {}
    for name, timed in types.items():
        n_bytes = TIMED_WEIGHTS * timed.bits / 8
        speeds[HOST, name] = replace(
            UNKNOWN_CPU_SPEED,
            bandwidth=n_bytes / timed.write_ms / 1e6,
            efficiency=1.0,
            fixed_ms=0.0,
            verify_curve=timed.verify_curve,
            error=TABLE_ERROR,
            basis=f"{name} timed on this CPU",
        )
    return speeds


def _fit_speeds(
    hardware: HardwareSpeed, pairs: Sequence[_MeasuredPair]
) -> dict[_Key, DeviceSpeed]:
    """By device and weight type; "" is fitted to all, for types not measured."""
    curves = _mean_verify_curves(pairs)
    passes = _measured_passes(pairs)
    speeds: dict[_Key, DeviceSpeed] = {}
    for device in dict.fromkeys(device for device, _ in passes):
        nominal = hardware.nominal_speeds.get(device, UNKNOWN_SPEED)
        suffix = ""
        if device == HOST and pairs[0].costs.threads is not None:
            suffix = f", {count(pairs[0].costs.threads, 'thread')}"
        all_points: list[TimedPass] = []
        curve_of_others: Mapping[int, float] = {}
        for key, points in passes.items():
            if key[0] != device:
                continue
            curve = curves.get(key, {})
            models = count(len(points), f"{key[1]} model")
            speeds[key] = replace(
                _fit_speed(points, nominal, curve),
                basis=f"{models} measured here{suffix}",
                measured=True,
            )
            all_points += points
            # A CPU's verify curve depends on the type.
            if nominal.kind == "gpu" and not curve_of_others:
                curve_of_others = curve
        fitted = _fit_speed(all_points, nominal, curve_of_others)
        speeds[device, ""] = replace(
            fitted,
            error=max(TABLE_ERROR, fitted.error),
            basis="from other models measured here",
        )
    return speeds


def _fit_speed(
    points: Sequence[TimedPass],
    nominal: DeviceSpeed,
    verify_curve: Mapping[int, float],
) -> DeviceSpeed:
    usual_fixed_ms = nominal.fixed_ms + _TYPICAL_LAYERS * nominal.layer_ms
    line = fit_line(points, usual_fixed_ms)
    sizes = [point.n_bytes for point in points]
    return replace(
        nominal,
        bandwidth=line.bandwidth,
        efficiency=1.0,
        fixed_ms=line.fixed_ms,
        layer_ms=0.0,
        verify_curve=verify_curve,
        error=min(max(line.error, CALIBRATED_ERROR), ASSUMED_ERROR),
        largest_measured=max(sizes),
        smallest_measured=min(sizes),
    )


def _measured_acceptance(
    records: Iterable[PairMeasurement],
) -> dict[tuple[str, ...], dict[str, float]]:
    """Accepted of verified tokens of each pair's draft, by paths.

    The latest record of a pair counts.
    """
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for record in records:
        if record.measured is None:
            continue
        rates = {}
        for name in ("greedy", "usual temperature"):
            n_accepted = 0
            n_drafted = 0
            by_confidence = record.measured.survival.get(name, {}).get("drafts", ())
            for accepted, drafted in by_confidence:
                n_accepted += accepted
                n_drafted += drafted
            if n_drafted >= _MIN_VERIFIED:
                rates[name] = n_accepted / n_drafted
        paths = find_files(record.key)
        if rates and len(paths) == 2:
            found.setdefault(paths, rates)
    return found


def _measured_passes(
    pairs: Iterable[_MeasuredPair],
) -> dict[_Key, list[TimedPass]]:
    """For each size the fastest, as other programs slow the rest."""
    fastest: defaultdict[_Key, dict[float, float]] = defaultdict(dict)
    for pair in pairs:
        t1_ms = pair.costs.t1_ms
        times: list[float | None] = [t1_ms, None]
        if pair.costs.c is not None:
            times[1] = pair.costs.c * t1_ms
        for model, ms in zip(pair.models, times, strict=False):
            if _is_time(ms) and len(model.devices) == 1 and model.read > 0:
                by_size = fastest[model.devices[0], model.family]
                by_size[model.read] = min(ms, by_size.get(model.read, ms))
    passes = {}
    for key, by_size in fastest.items():
        passes[key] = [TimedPass(n_bytes, ms) for n_bytes, ms in by_size.items()]
    return passes


def _is_time(ms: object) -> TypeGuard[float]:
    return isinstance(ms, int | float) and isfinite(ms) and ms > 0


def _mean_verify_curves(
    pairs: Iterable[_MeasuredPair],
) -> dict[_Key, dict[int, float]]:
    """The geometric mean of the measured verify curves.

    Mixtures of experts are left out: their curves do not apply to dense models.
    """
    costs: dict[_Key, dict[int, list[float]]] = {}
    for pair in pairs:
        target = pair.reads.target
        if len(target.devices) != 1 or target.moe:
            continue
        for width, cost in pair.costs.curve.items():
            if width.isdecimal() and _is_time(cost):
                by_width = costs.setdefault((target.devices[0], target.family), {})
                by_width.setdefault(int(width), []).append(cost)
    curves = {}
    for key, by_width in costs.items():
        curves[key] = {
            width: geometric_mean(by_width[width]) for width in sorted(by_width)
        }
    return curves


def fit_line(points: Sequence[TimedPass], usual_fixed_ms: float) -> FittedLine:
    """Fits time = fixed + slope × bytes, by least squares of relative errors.

    `usual_fixed_ms` applies if the sizes are too close to tell the two apart.  Example:
    passes of 1 GB in 60 ms and 2 GB in 110 ms have a fixed time of 10 ms, and 50 ms a
    GB are 20 GB/s.
    """
    sizes = [point.n_bytes for point in points]
    # Minimises Σ (fixed·u + slope·v − 1)², with u = 1 / ms and v = bytes / ms.
    u = [1 / point.ms for point in points]
    v = [point.n_bytes / point.ms for point in points]
    uu = _dot(u, u)
    uv = _dot(u, v)
    vv = _dot(v, v)
    longest_fixed = _MAX_FIXED_SHARE * min(point.ms for point in points)

    determinant = uu * vv - uv * uv
    are_sizes_apart = max(sizes) >= _MIN_SIZE_RATIO * min(sizes)
    if are_sizes_apart and determinant != 0:
        least_error = 0.0
        fixed = max(0.0, (sum(u) * vv - sum(v) * uv) / determinant)
        if fixed * uv >= sum(v):  # The larger models were the faster ones.
            fixed = longest_fixed
    else:
        least_error = _SINGLE_SIZE_ERROR
        fixed = min(usual_fixed_ms, longest_fixed)

    slope = (sum(v) - fixed * uv) / vv
    deviations = [abs((fixed + slope * size) / ms - 1) for size, ms in points]
    return FittedLine(fixed, 1e-6 / slope, max(*deviations, least_error))


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))
