"""Calibrates device speeds with passes measured here: bandwidth, fixed time, verify
curve.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from operator import mul
from statistics import geometric_mean
from typing import TypeGuard

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
"""Upper limit of the fixed time, as a share of a pass, if only one size was measured.
"""
# Relative error for other model sizes if only one size was measured.
_SINGLE_SIZE_ERROR = 0.15
_MIN_VERIFIED = 50  # Verified draft tokens from which an acceptance rate is used.
_CPU_CACHE_BYTES = 64e6
"""A pair that reads less may stay in the CPU cache, so it does not show memory
bandwidth.
"""

_Key = tuple[str, str]  # Device and weight type.
# Bytes of weights that a one-token pass reads, and its milliseconds.
_Pass = tuple[float, float]
_Measured = Sequence[tuple[PairReads, MeasuredCosts]]


def summarize_reads(speed: SpeedEstimate) -> PairReads | None:
    """The bytes a pair reads, stored with its measurements so that they apply to other
    models.
    """
    if speed.reads is None:
        return None
    target, draft = speed.reads
    if draft is None or draft.shape.head_kind:  # a head does more than read weights
        return PairReads(_summarize_model(target))
    return PairReads(_summarize_model(target), _summarize_model(draft))


def _summarize_model(reads: PassReads) -> ModelReads:
    return ModelReads(
        round(reads.weights),
        tuple(reads.by_device),
        reads.shape.weight_type,
        reads.shape.is_moe,
    )


def calibrate(
    hardware: HardwareSpeed,
    records: Sequence[PairMeasurement],
    types: Mapping[str, TypeSpeed] | None = None,
) -> HardwareSpeed:
    """Adds the speeds measured on this machine, while no other program used the CPUs much, and the
    acceptance rates of pairs.  `records`: the latest first; `types`: as timed on its CPU, for those
    of which no model was measured.
    """
    usable = [
        (record.reads, record.measured)
        for record in records
        if record.reads is not None
        and record.measured is not None
        and is_trusted(record.measured)
        and sum(model.read for model in _models(record.reads)) >= _CPU_CACHE_BYTES
    ]
    # CPU speeds are comparable only at the same number of threads.
    usable = [
        (reads, measured)
        for reads, measured in usable
        if measured.threads == usable[0][1].threads
        or all(HOST not in model.devices for model in _models(reads))
    ]
    speeds = _timed_speeds(types or {}) | _fit_speeds(hardware, usable)
    acceptance = _measured_acceptance(records)
    return replace(hardware, measured_speeds=speeds, acceptance=acceptance)


def _timed_speeds(types: Mapping[str, TypeSpeed]) -> dict[_Key, DeviceSpeed]:
    return {
        (HOST, name): replace(
            UNKNOWN_CPU_SPEED,
            bandwidth=TIMED_WEIGHTS * timed.bits / 8 / timed.write_ms / 1e6,
            efficiency=1.0,
            fixed_ms=0.0,
            verify_curve=timed.verify_curve,
            error=TABLE_ERROR,
            basis=f"{name} timed on this CPU",
        )
        for name, timed in types.items()
    }


def _models(reads: PairReads) -> list[ModelReads]:
    return [model for model in (reads.target, reads.draft) if model is not None]


def _fit_speeds(hardware: HardwareSpeed, usable: _Measured) -> dict[_Key, DeviceSpeed]:
    """By device and weight type; the type "" is fitted to all, for types not measured."""
    curves, passes = _mean_verify_curves(usable), _measured_passes(hardware, usable)
    speeds: dict[_Key, DeviceSpeed] = {}
    for device in dict.fromkeys(device for device, _ in passes):
        nominal = hardware.nominal_speeds.get(device, UNKNOWN_SPEED)
        threads = usable[0][1].threads if device == HOST else None
        suffix = "" if threads is None else f", {count(threads, 'thread')}"
        keys = [key for key in passes if key[0] == device]
        for key in keys:
            points = passes[key]
            basis = f"{count(len(points), f'{key[1]} model')} measured here{suffix}"
            fitted = _fit_speed(points, nominal, curves.get(key, {}))
            speeds[key] = replace(fitted, basis=basis, measured=True)
        # A CPU's verify curve depends on the type.
        curve = next((curves[key] for key in keys if key in curves), {})
        fitted = _fit_speed(
            [point for key in keys for point in passes[key]],
            nominal,
            curve if nominal.kind == "gpu" else {},
        )
        error, basis = max(TABLE_ERROR, fitted.error), "from other models measured here"
        speeds[device, ""] = replace(fitted, error=error, basis=basis)
    return speeds


def _fit_speed(
    points: Sequence[_Pass], nominal: DeviceSpeed, verify_curve: Mapping[int, float]
) -> DeviceSpeed:
    fixed_ms = nominal.fixed_ms + _TYPICAL_LAYERS * nominal.layer_ms
    fixed_ms, bandwidth, error = fit_line(points, fixed_ms)
    return replace(
        nominal,
        bandwidth=bandwidth,
        efficiency=1.0,
        fixed_ms=fixed_ms,
        layer_ms=0.0,
        verify_curve=verify_curve,
        error=min(max(error, CALIBRATED_ERROR), ASSUMED_ERROR),
        largest_measured=max(size for size, _ in points),
        smallest_measured=min(size for size, _ in points),
    )


def _measured_acceptance(
    records: Iterable[PairMeasurement],
) -> dict[tuple[str, ...], dict[str, float]]:
    """Accepted of verified tokens of each pair's draft, by paths; the latest record
    counts.
    """
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for record in records:
        survival = record.measured.survival if record.measured else {}
        rates = {}
        for name in ("greedy", "coupled"):
            counts = survival.get(name, {}).get("place", {}).values()
            accepted, drafted = map(sum, zip((0, 0), *counts, strict=True))
            if drafted >= _MIN_VERIFIED:
                rates[name] = accepted / drafted
        if rates and len(paths := find_files(record.key)) == 2:
            found.setdefault(paths, rates)
    return found


def _measured_passes(
    hardware: HardwareSpeed, records: _Measured
) -> dict[_Key, list[_Pass]]:
    """For each size the fastest, as other programs slow the rest."""
    fastest: defaultdict[_Key, dict[float, float]] = defaultdict(dict)
    for reads, measured in records:
        times = (
            measured.t1_ms,
            None if measured.c is None else measured.c * measured.t1_ms,
        )
        for model, ms in zip(_models(reads), times, strict=False):
            if _is_time(ms) and len(model.devices) == 1 and model.read > 0:
                by_size = fastest[model.devices[0], model.family]
                by_size[model.read] = min(ms, by_size.get(model.read, ms))
    return {key: [*by_size.items()] for key, by_size in fastest.items()}


def _is_time(ms: object) -> TypeGuard[float]:
    return isinstance(ms, int | float) and isfinite(ms) and ms > 0


def _mean_verify_curves(records: _Measured) -> dict[_Key, dict[int, float]]:
    """Geometric mean of the measured verify curves.

    Mixtures of experts are left out: their curves do not apply to dense models.
    """
    costs: defaultdict[_Key, defaultdict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for reads, measured in records:
        target = reads.target
        if len(target.devices) == 1 and not target.moe:
            for width, v in measured.curve.items():
                if width.isdecimal() and _is_time(v):
                    costs[target.devices[0], target.family][int(width)].append(v)
    return {
        key: {
            width: geometric_mean(values) for width, values in sorted(by_width.items())
        }
        for key, by_width in costs.items()
    }


def fit_line(points: Sequence[_Pass], fixed_ms: float) -> tuple[float, float, float]:
    """Fixed milliseconds, the bandwidth reached in GB/s, and the largest relative
    deviation.

    Least squares of relative errors; `fixed_ms` applies if the sizes are too close to
    fit it.
    """
    sizes = [size for size, _ in points]
    longest_fixed = _MAX_FIXED_SHARE * min(ms for _, ms in points)
    # Minimises Σ (a/t + s·B/t − 1)² for the fixed time a and the slope s.
    u, v = [1 / ms for _, ms in points], [size / ms for size, ms in points]
    uu, uv, vv = (sum(map(mul, a, b)) for a, b in ((u, u), (u, v), (v, v)))
    fixed, least_error = min(fixed_ms, longest_fixed), _SINGLE_SIZE_ERROR
    if max(sizes) >= _MIN_SIZE_RATIO * min(sizes):
        fixed, least_error = (
            max(0.0, (sum(u) * vv - sum(v) * uv) / (uu * vv - uv * uv)),
            0.0,
        )
        if fixed * uv >= sum(v):  # the larger models were the faster ones
            fixed = longest_fixed
    slope = (sum(v) - fixed * uv) / vv
    worst = max(abs((fixed + slope * size) / ms - 1) for size, ms in points)
    return fixed, 1e-6 / slope, max(worst, least_error)
