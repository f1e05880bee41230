"""Calibrates device speeds with passes measured here: bandwidth, fixed time, verify curve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp, isfinite, log

from localspec.fit import pass_cost
from localspec.fit.device_speed import (
    CALIBRATED_ERROR,
    TABLE_ERROR,
    UNKNOWN_SPEED,
    DeviceSpeed,
    HardwareSpeed,
)
from localspec.fit.pass_cost import PassReads
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

_MIN_SIZE_RATIO = 1.5
"""Minimum ratio of largest to smallest model for a fit of the fixed time."""
_MAX_FIXED_SHARE = 0.3
"""Upper limit of the fixed time, as a share of a pass, if only one size was measured."""
_SINGLE_SIZE_ERROR = 0.15
"""Relative error for other model sizes if only one size was measured."""
_MAX_ERROR = 0.5
_MIN_VERIFIED = 50
"""Verified draft tokens from which an acceptance rate is used."""
_CPU_CACHE_BYTES = 64e6
"""A pair that reads less may stay in the CPU cache, so it does not show memory bandwidth."""
_FALLBACK_BASIS = "from other models measured here"


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """A measured one-token pass."""

    weight_bytes: float
    ms: float


@dataclass(frozen=True, slots=True)
class LinearFit:
    """ms = fixed_ms + weight_bytes / (bandwidth · 10⁶)."""

    fixed_ms: float
    bandwidth: float
    """GB/s, as reached in practice."""
    error: float
    """Largest relative deviation of a point."""


def summarize_reads(
    load: LoadCommand, target: ModelShape, draft: ModelShape | None, hardware: HardwareSpeed
) -> PairReads:
    """The bytes a pair reads, stored with its measurements so that they apply to other models."""
    first = pass_cost.count_reads(target, load.target_settings, hardware.devices)
    second = None
    if draft is not None and not draft.head_kind:  # a head's pass does more than read weights
        second = pass_cost.count_reads(draft, load.draft_settings, hardware.devices)
    return PairReads(_summarize_model(first), _summarize_model(second) if second else None)


def _summarize_model(reads: PassReads) -> ModelReads:
    return ModelReads(round(reads.weights), reads.devices, reads.weight_type, reads.is_moe)


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
        and _pair_bytes(record.reads) >= _CPU_CACHE_BYTES
    ]
    if threads is None and usable:
        threads = usable[0][1].threads
    usable = [record for record in usable if _is_comparable(*record, threads)]
    curves = _mean_verify_curves(usable)
    passes = _measured_passes(usable)
    speeds = {
        key: _measured_speed(points, _nominal(hardware, key[0]), curves.get(key, {}), key[1])
        for key, points in passes.items()
    }
    for device in dict.fromkeys(device for device, _ in passes):
        keys = [key for key in passes if key[0] == device]
        points = [point for key in keys for point in passes[key]]
        curve = next((curves[key] for key in keys if key in curves), {})
        speeds[device, ""] = _fallback_speed(points, _nominal(hardware, device), curve)
    if threads is not None:
        speeds = {key: _with_thread_count(speed, key, threads) for key, speed in speeds.items()}
    return replace(hardware, measured_speeds=speeds, acceptance=_measured_acceptance(records))


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


def _is_comparable(reads: PairReads, measured: MeasuredCosts, threads: int | None) -> bool:
    """CPU speeds are comparable only at the same number of threads."""
    models = filter(None, (reads.target, reads.draft))
    return measured.threads == threads or all(HOST not in model.devices for model in models)


def _nominal(hardware: HardwareSpeed, device: str) -> DeviceSpeed:
    return hardware.nominal_speeds.get(device, UNKNOWN_SPEED)


def _pair_bytes(reads: PairReads) -> int:
    return reads.target.read + (reads.draft.read if reads.draft else 0)


def _measured_passes(
    records: Iterable[tuple[PairReads, MeasuredCosts]],
) -> dict[tuple[str, str], list[MeasuredPass]]:
    """By device and weight type; for each size the fastest, as other programs slow the rest."""
    fastest: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for reads, measured in records:
        timed = [(reads.target, measured.t1_ms)]
        if reads.draft is not None and measured.c is not None:
            timed.append((reads.draft, measured.c * measured.t1_ms))
        for model, ms in timed:
            if len(model.devices) == 1 and model.read > 0 and _is_valid_time(ms):
                by_size = fastest[model.devices[0], model.family]
                dense_ms = ms / pass_cost.moe_slowdown(model.moe)
                by_size[model.read] = min(dense_ms, by_size.get(model.read, dense_ms))
    return {
        key: [MeasuredPass(size, ms) for size, ms in by_size.items()]
        for key, by_size in fastest.items()
    }


def _is_valid_time(ms: object) -> bool:
    return isinstance(ms, int | float) and isfinite(ms) and ms > 0


def _mean_verify_curves(
    records: Iterable[tuple[PairReads, MeasuredCosts]],
) -> dict[tuple[str, str], dict[int, float]]:
    """Geometric mean of the measured verify curves, by device and weight type.

    Mixtures of experts are left out: their curves do not apply to dense models.
    """
    logs: defaultdict[tuple[str, str], defaultdict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for reads, measured in records:
        target = reads.target
        if len(target.devices) == 1 and not target.moe:
            for width, v in measured.curve.items():
                if width.isdecimal() and _is_valid_time(v):
                    logs[target.devices[0], target.family][int(width)].append(log(v))
    return {
        key: {width: exp(sum(values) / len(values)) for width, values in sorted(by_width.items())}
        for key, by_width in logs.items()
    }


def fit_line(points: Sequence[MeasuredPass], fixed_ms: float) -> LinearFit:
    """Least squares of relative errors; `fixed_ms` applies if the sizes are too close to fit it."""
    reads = [point.weight_bytes for point in points]
    if max(reads) < _MIN_SIZE_RATIO * min(reads):
        return _fit_slope(
            points, min(fixed_ms, _MAX_FIXED_SHARE * min(p.ms for p in points)), _SINGLE_SIZE_ERROR
        )
    # Minimises Σ (a/t + s·B/t − 1)².
    u, v = [1 / p.ms for p in points], [p.weight_bytes / p.ms for p in points]
    uu, uv, vv = (_dot(a, b) for a, b in ((u, u), (u, v), (v, v)))
    determinant = uu * vv - uv * uv
    if determinant <= 0:
        return _fit_slope(points, 0.0, _SINGLE_SIZE_ERROR)
    fixed = (sum(u) * vv - sum(v) * uv) / determinant
    slope = (sum(v) * uu - sum(u) * uv) / determinant
    if fixed < 0 or slope <= 0:
        return _fit_slope(
            points, 0.0 if fixed < 0 else _MAX_FIXED_SHARE * min(p.ms for p in points), 0
        )
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


def _measured_speed(
    points: Sequence[MeasuredPass],
    nominal: DeviceSpeed,
    verify_curve: Mapping[int, float],
    weight_type: str,
) -> DeviceSpeed:
    line = fit_line(points, nominal.fixed_ms)
    return replace(
        nominal,
        bandwidth=line.bandwidth,
        efficiency=1.0,
        fixed_ms=line.fixed_ms,
        verify_curve=verify_curve,
        error=min(max(line.error, CALIBRATED_ERROR), _MAX_ERROR),
        basis=f"{len(points)} {weight_type} model{'s' * (len(points) != 1)} measured here",
        measured=True,
        largest_measured=max(point.weight_bytes for point in points),
    )


def _fallback_speed(
    points: Sequence[MeasuredPass], nominal: DeviceSpeed, verify_curve: Mapping[int, float]
) -> DeviceSpeed:
    """For weight types that were not measured on this device: from all that were."""
    curve = verify_curve if nominal.kind == "gpu" else {}  # a CPU's depends on the type
    speed = _measured_speed(points, nominal, curve, "")
    error = max(TABLE_ERROR, speed.error)
    return replace(speed, error=error, basis=_FALLBACK_BASIS, measured=False)


def _with_thread_count(speed: DeviceSpeed, key: tuple[str, str], threads: int) -> DeviceSpeed:
    if key[0] != HOST or not speed.measured:
        return speed
    return replace(speed, basis=f"{speed.basis}, {threads} thread{'s' * (threads != 1)}")
