"""Calibrates device speeds with passes measured here: bandwidth, fixed time, verify curve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, isfinite, log

from localspec.fit import pass_cost
from localspec.fit.pass_cost import (
    CALIBRATED_ERROR,
    TABLE_ERROR,
    UNKNOWN_SPEED,
    DeviceSpeed,
    HardwareSpeed,
    PassReads,
)
from localspec.fit.shape import ModelShape
from localspec.lazy_dataclass import dataclass
from localspec.machine.measurements import (
    ModelReads,
    PairMeasurement,
    PairReads,
    find_files,
    is_trusted,
)
from localspec.machine.memory_by_device import HOST
from localspec.protocol.wire import LoadCommand, MeasuredCosts

_MIN_SIZE_RATIO = 1.5  # Minimum ratio of largest to smallest model for a fit of the fixed time.
_MAX_FIXED_SHARE = 0.3
"""Upper limit of the fixed time, as a share of a pass, if only one size was measured."""
_SINGLE_SIZE_ERROR = 0.15  # Relative error for other model sizes if only one size was measured.
_MAX_ERROR = 0.5
_MIN_VERIFIED = 50  # Verified draft tokens from which an acceptance rate is used.
_CPU_CACHE_BYTES = 64e6
"""A pair that reads less may stay in the CPU cache, so it does not show memory bandwidth."""

_Key = tuple[str, str]  # Device and weight type.
_Measured = Sequence[tuple[PairReads, MeasuredCosts]]


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """A measured one-token pass."""

    weight_bytes: float
    ms: float


@dataclass(frozen=True, slots=True)
class LinearFit:
    """ms = fixed_ms + weight_bytes / (bandwidth · 10⁶)."""

    fixed_ms: float
    bandwidth: float  # GB/s, as reached in practice.
    error: float  # Largest relative deviation of a point.


def summarize_reads(
    load: LoadCommand, target: ModelShape, draft: ModelShape | None, hardware: HardwareSpeed
) -> PairReads:
    """The bytes a pair reads, stored with its measurements so that they apply to other models."""

    def summarize(reads: PassReads) -> ModelReads:
        return ModelReads(round(reads.weights), reads.devices, reads.weight_type, reads.is_moe)

    first = pass_cost.count_reads(target, load.target_settings, hardware.devices)
    if draft is None or draft.head_kind:  # a head's pass does more than read weights
        return PairReads(summarize(first))
    second = pass_cost.count_reads(draft, load.draft_settings, hardware.devices)
    return PairReads(summarize(first), summarize(second))


def calibrate(
    hardware: HardwareSpeed, records: Iterable[PairMeasurement], threads: int | None = None
) -> HardwareSpeed:
    """Adds the speeds measured on this machine, while no other program used the CPUs much, and the
    acceptance rates of pairs.

    `threads`: CPU threads to be used; None for those of the latest record.
    """
    records = tuple(records)
    usable = [
        (record.reads, record.measured)
        for record in records
        if record.reads is not None
        and record.measured is not None
        and is_trusted(record.measured)
        and sum(model.read for model in _models(record.reads)) >= _CPU_CACHE_BYTES
    ]
    if threads is None and usable:
        threads = usable[0][1].threads
    # CPU speeds are comparable only at the same number of threads.
    usable = [
        (reads, measured)
        for reads, measured in usable
        if measured.threads == threads or all(HOST not in m.devices for m in _models(reads))
    ]
    acceptance = _measured_acceptance(records)
    return replace(
        hardware, measured_speeds=_fit_speeds(hardware, usable, threads), acceptance=acceptance
    )


def _models(reads: PairReads) -> list[ModelReads]:
    return [model for model in (reads.target, reads.draft) if model is not None]


def _fit_speeds(
    hardware: HardwareSpeed, usable: _Measured, threads: int | None
) -> dict[_Key, DeviceSpeed]:
    """By device and weight type; the type "" is fitted to all, for types not measured."""
    curves, passes = _mean_verify_curves(usable), _measured_passes(usable)
    speeds: dict[_Key, DeviceSpeed] = {}
    for device in dict.fromkeys(device for device, _ in passes):
        nominal = hardware.nominal_speeds.get(device, UNKNOWN_SPEED)
        suffix = ""
        if device == HOST and threads is not None:
            suffix = f", {threads} thread{'s' * (threads != 1)}"
        keys = [key for key in passes if key[0] == device]
        for key in keys:
            points = passes[key]
            basis = f"{len(points)} {key[1]} model{'s' * (len(points) != 1)} measured here{suffix}"
            speed = _fit_speed(points, nominal, curves.get(key, {}))
            speeds[key] = replace(speed, basis=basis, measured=True)
        # A CPU's verify curve depends on the type.
        curve = next((curves[key] for key in keys if key in curves), {})
        speed = _fit_speed(
            [point for key in keys for point in passes[key]],
            nominal,
            curve if nominal.kind == "gpu" else {},
        )
        error = max(TABLE_ERROR, speed.error)
        basis = "from other models measured here"
        speeds[device, ""] = replace(speed, error=error, basis=basis)
    return speeds


def _fit_speed(
    points: Sequence[MeasuredPass], nominal: DeviceSpeed, verify_curve: Mapping[int, float]
) -> DeviceSpeed:
    line = fit_line(points, nominal.fixed_ms)
    return replace(
        nominal,
        bandwidth=line.bandwidth,
        efficiency=1.0,
        fixed_ms=line.fixed_ms,
        verify_curve=verify_curve,
        error=min(max(line.error, CALIBRATED_ERROR), _MAX_ERROR),
        largest_measured=max(point.weight_bytes for point in points),
    )


def _measured_acceptance(
    records: Iterable[PairMeasurement],
) -> dict[tuple[str, ...], dict[str, float]]:
    """Accepted of verified tokens of each pair's draft, by paths; the latest record counts."""
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for record in records:
        survival = record.measured.survival if record.measured else {}
        rates = {}
        for name in ("greedy", "coupled"):
            counts = survival.get(name, {}).get("place", {}).values()
            accepted, drafted = (sum(count) for count in zip((0, 0), *counts, strict=True))
            if drafted >= _MIN_VERIFIED:
                rates[name] = accepted / drafted
        if rates and len(paths := find_files(record.key)) == 2:
            found.setdefault(paths, rates)
    return found


def _measured_passes(records: _Measured) -> dict[_Key, list[MeasuredPass]]:
    """For each size the fastest, as other programs slow the rest."""
    fastest: defaultdict[_Key, dict[int, float]] = defaultdict(dict)
    for reads, measured in records:
        times = (measured.t1_ms, None if measured.c is None else measured.c * measured.t1_ms)
        for model, ms in zip(_models(reads), times, strict=False):
            if ms is not None and len(model.devices) == 1 and model.read > 0 and _is_time(ms):
                by_size = fastest[model.devices[0], model.family]
                dense_ms = ms / pass_cost.moe_slowdown(model.moe)
                by_size[model.read] = min(dense_ms, by_size.get(model.read, dense_ms))
    return {
        key: [MeasuredPass(size, ms) for size, ms in by_size.items()]
        for key, by_size in fastest.items()
    }


def _is_time(ms: object) -> bool:
    return isinstance(ms, int | float) and isfinite(ms) and ms > 0


def _mean_verify_curves(records: _Measured) -> dict[_Key, dict[int, float]]:
    """Geometric mean of the measured verify curves.

    Mixtures of experts are left out: their curves do not apply to dense models.
    """
    logs: defaultdict[_Key, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for reads, measured in records:
        target = reads.target
        if len(target.devices) == 1 and not target.moe:
            for width, v in measured.curve.items():
                if width.isdecimal() and _is_time(v):
                    logs[target.devices[0], target.family][int(width)].append(log(v))
    return {
        key: {width: exp(sum(values) / len(values)) for width, values in sorted(by_width.items())}
        for key, by_width in logs.items()
    }


def fit_line(points: Sequence[MeasuredPass], fixed_ms: float) -> LinearFit:
    """Least squares of relative errors; `fixed_ms` applies if the sizes are too close to fit it."""
    reads, most = [point.weight_bytes for point in points], min(p.ms for p in points)
    if max(reads) < _MIN_SIZE_RATIO * min(reads):
        return _fit_slope(points, min(fixed_ms, _MAX_FIXED_SHARE * most), _SINGLE_SIZE_ERROR)
    # Minimises Σ (a/t + s·B/t − 1)².
    u, v = [1 / p.ms for p in points], [p.weight_bytes / p.ms for p in points]
    uu, uv, vv = (_dot(a, b) for a, b in ((u, u), (u, v), (v, v)))
    determinant = uu * vv - uv * uv
    if determinant <= 0:
        return _fit_slope(points, 0.0, _SINGLE_SIZE_ERROR)
    fixed = (sum(u) * vv - sum(v) * uv) / determinant
    slope = (sum(v) * uu - sum(u) * uv) / determinant
    if fixed < 0 or slope <= 0:
        return _fit_slope(points, 0.0 if fixed < 0 else _MAX_FIXED_SHARE * most, 0.0)
    return _with_error(points, fixed, slope, 0.0)


def _fit_slope(points: Sequence[MeasuredPass], fixed: float, least_error: float) -> LinearFit:
    """The best line with a given fixed time."""
    v = [p.weight_bytes / p.ms for p in points]
    slope = sum(v[i] * (1 - fixed / p.ms) for i, p in enumerate(points)) / _dot(v, v)
    return _with_error(points, fixed, slope, least_error)


def _with_error(
    points: Sequence[MeasuredPass], fixed: float, slope: float, least_error: float
) -> LinearFit:
    worst = max(abs((fixed + slope * p.weight_bytes) / p.ms - 1) for p in points)
    return LinearFit(fixed, 1e-6 / slope, max(worst, least_error))


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
