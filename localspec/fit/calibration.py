"""What passes measured on this machine say of others: bandwidth, fixed part, verify curve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log
from statistics import fmean

from localspec.fit import pass_cost
from localspec.fit.device_speed import (
    CALIBRATED_ERROR,
    TABLE_ERROR,
    UNKNOWN_SPEED,
    DeviceSpeed,
    HardwareSpeed,
)
from localspec.fit.pass_cost import PassReads
from localspec.machine.measurements import ModelReads, PairMeasurement, PairReads
from localspec.machine.memory_by_device import HOST
from localspec.models import draft_heads
from localspec.models.gguf.header import Header
from localspec.protocol.wire import LoadCommand

_MIN_SIZE_RATIO = 1.5
"""How many times more than the least the most must read, for a fixed part to show."""
_MAX_FIXED_SHARE = 0.3
"""The most of one pass that is believed to be the fixed part, where only one is known."""
_SINGLE_SIZE_ERROR = 0.15
"""How far another model's pass may be, where the passes of one size are known."""
_MAX_ERROR = 0.5
_CPU_CACHE_BYTES = 64e6
"""Bytes that a processor may keep beside it: a pair that reads less shows nothing of the memory."""
_FALLBACK_BASIS = "other weights' passes here"


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """One model's pass of one token, measured."""

    weight_bytes: float
    """Bytes of weights."""
    ms: float


@dataclass(frozen=True, slots=True)
class LinearFit:
    """ms = fixed + read / (bandwidth · 10⁶)."""

    fixed_ms: float
    bandwidth: float
    """GB/s that were reached."""
    error: float
    """How far the worst point is from it."""


def summarize_reads(
    load: LoadCommand, target: Header, draft: Header | None, hardware: HardwareSpeed
) -> PairReads:
    """What is kept beside a pair's measurements, so that others can be priced by them."""
    first = pass_cost.count_reads(target, load.target_settings, hardware.devices)
    head = draft and draft_heads.draft_kind_for_target(target, draft)
    second = None
    if draft is not None and head == "model":  # a head's pass is more than what it reads
        second = pass_cost.count_reads(draft, load.draft_settings, hardware.devices)
    return PairReads(_summarize_model(first), _summarize_model(second) if second else None)


def _summarize_model(reads: PassReads) -> ModelReads:
    return ModelReads(round(reads.weights), reads.devices, reads.weight_type, reads.is_moe)


def calibrate(
    hardware: HardwareSpeed, records: Iterable[PairMeasurement], threads: int | None = None
) -> HardwareSpeed:
    """With what this machine has run; `threads` as the CPU will be given, None: as lately."""
    known = [one for one in records if one.reads is not None and one.measured is not None]
    if threads is None:
        threads = next((one.measured.threads for one in known if one.measured), None)
    known = _without_tiny_pairs([one for one in known if _is_comparable(one, threads)])
    points = _measured_passes(known)
    curves = _mean_verify_curves(known)
    learnt = {
        place: _measured_speed(
            found,
            hardware.nominal_speeds.get(place[0], UNKNOWN_SPEED),
            curves.get(place, {}),
            place,
        )
        for place, found in points.items()
    }
    if threads is not None:
        learnt = {place: _with_thread_count(rate, place, threads) for place, rate in learnt.items()}
    return replace(hardware, measured_speeds=learnt | _fallback_speeds(learnt))


def _is_comparable(one: PairMeasurement, threads: int | None) -> bool:
    """On the CPU the number of threads decides."""
    assert one.reads is not None
    assert one.measured is not None
    parts = filter(None, (one.reads.target, one.reads.draft))
    return one.measured.threads == threads or all(HOST not in part.devices for part in parts)


def _without_tiny_pairs(known: list[PairMeasurement]) -> list[PairMeasurement]:
    """Without pairs so small that they stay in a cache, unless there are no others."""
    large = [one for one in known if one.reads and _pair_bytes(one.reads) >= _CPU_CACHE_BYTES]
    return large or known


def _pair_bytes(reads: PairReads) -> int:
    return reads.target.read + (reads.draft.read if reads.draft else 0)


# --- points -----------------------------------------------------------------------------


def _measured_passes(known: Sequence[PairMeasurement]) -> dict[tuple[str, str], list[MeasuredPass]]:
    """By device and type of weights; of several measurements of one size the fastest.

    Something else may have been running during the others.
    """
    found: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for part, ms in _timed_models(known):
        if len(part.devices) == 1 and part.read > 0 and _is_valid_time(ms):
            sizes = found[part.devices[0], part.family]
            dense = ms / pass_cost.moe_slowdown(part.moe)
            sizes[part.read] = min(dense, sizes.get(part.read, dense))
    return {
        place: [MeasuredPass(read, ms) for read, ms in sizes.items()]
        for place, sizes in found.items()
    }


def _timed_models(known: Sequence[PairMeasurement]) -> Iterable[tuple[ModelReads, float]]:
    for one in known:
        assert one.reads is not None
        assert one.measured is not None
        yield one.reads.target, one.measured.t1_ms
        if one.reads.draft is not None and one.measured.c is not None:
            yield one.reads.draft, one.measured.c * one.measured.t1_ms


def _is_valid_time(ms: object) -> bool:
    return isinstance(ms, int | float) and isfinite(ms) and ms > 0


def _mean_verify_curves(
    known: Sequence[PairMeasurement],
) -> dict[tuple[str, str], dict[int, float]]:
    """Verify curves by device and type, the mean of all that were measured.

    A mixture of experts has a curve of its own kind, which says nothing of others.
    """
    seen: defaultdict[tuple[str, str], defaultdict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in known:
        assert one.reads is not None
        assert one.measured is not None
        part = one.reads.target
        if len(part.devices) == 1 and not part.moe:
            for width, v in one.measured.curve.items():
                if width.isdecimal() and _is_valid_time(v):
                    seen[part.devices[0], part.family][int(width)].append(log(v))
    return {
        place: {width: exp(fmean(logs)) for width, logs in sorted(widths.items())}
        for place, widths in seen.items()
    }


# --- lines ------------------------------------------------------------------------------


def fit_line(points: Sequence[MeasuredPass], fixed_ms: float) -> LinearFit:
    """The line nearest to the points, each by its share; `fixed_ms` where they cannot show it."""
    reads = [point.weight_bytes for point in points]
    if max(reads) < _MIN_SIZE_RATIO * min(reads):
        return _fit_slope(
            points, min(fixed_ms, _MAX_FIXED_SHARE * min(p.ms for p in points)), _SINGLE_SIZE_ERROR
        )
    # Least squares of a/t + s·B/t − 1.
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
    """The nearest line of this fixed part."""
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


# --- rates ------------------------------------------------------------------------------


def _measured_speed(
    points: Sequence[MeasuredPass],
    nominal: DeviceSpeed,
    verify_curve: Mapping[int, float],
    place: tuple[str, str],
) -> DeviceSpeed:
    found = fit_line(points, nominal.fixed_ms)
    return replace(
        nominal,
        bandwidth=found.bandwidth,
        efficiency=1.0,
        fixed_ms=found.fixed_ms,
        verify_curve=verify_curve,
        error=min(max(found.error, CALIBRATED_ERROR), _MAX_ERROR),
        basis=f"{_count_models(len(points))} of {place[1]} measured here",
        measured=True,
        largest_measured=max(point.weight_bytes for point in points),
    )


def _count_models(n: int) -> str:
    return "one model" if n == 1 else f"{n} models"


def _with_thread_count(rate: DeviceSpeed, place: tuple[str, str], threads: int) -> DeviceSpeed:
    if place[0] != HOST:
        return rate
    return replace(rate, basis=f"{rate.basis}, {threads} thread{'s' * (threads != 1)}")


def _fallback_speeds(
    measured: Mapping[tuple[str, str], DeviceSpeed],
) -> dict[tuple[str, str], DeviceSpeed]:
    """For types that were not measured there: the rate of another, no longer called measured."""
    found: dict[tuple[str, str], DeviceSpeed] = {}
    for (device, _), rate in measured.items():
        if (device, "") not in found:
            found[device, ""] = replace(
                rate,
                error=max(TABLE_ERROR, rate.error),
                verify_curve=rate.verify_curve if rate.kind == "gpu" else {},
                basis=_FALLBACK_BASIS,
                measured=False,
            )
    return found
