"""What passes measured on this machine say of others: bandwidth, fixed part, verify curve."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, isfinite, log
from statistics import fmean

from localspec.fit import passes, reading
from localspec.fit.hardware import CALIBRATED, TABLE, UNKNOWN, Hardware, Rate
from localspec.fit.reading import Reading
from localspec.machine.ledger import HOST
from localspec.machine.measured import About, Part, Shown
from localspec.models import heads
from localspec.models.header import Header
from localspec.protocol.wire import Load

_APART = 1.5
"""How many times more than the least the most must read, for a fixed part to show."""
_FIXED_SHARE = 0.3
"""The most of one pass that is believed to be the fixed part, where only one is known."""
_ONE = 0.15
"""How far another model's pass may be, where the passes of one size are known."""
_WORST = 0.5
_CACHED = 64e6
"""Bytes that a processor may keep beside it: a pair that reads less shows nothing of the memory."""
_BORROWED = "other weights' passes here"


@dataclass(frozen=True, slots=True)
class Point:
    """One model's pass of one token, measured."""

    read: float
    """Bytes of weights."""
    ms: float


@dataclass(frozen=True, slots=True)
class Line:
    """ms = fixed + read / (bandwidth · 10⁶)."""

    fixed_ms: float
    bandwidth: float
    """GB/s that were reached."""
    error: float
    """How far the worst point is from it."""


def about(load: Load, target: Header, draft: Header | None, hardware: Hardware) -> About:
    """What is kept beside a pair's measurements, so that others can be priced by them."""
    first = reading.read(target, load.target_settings, hardware.devices)
    head = draft and heads.drafting(target, draft)
    second = None
    if draft is not None and head == "model":  # a head's pass is more than what it reads
        second = reading.read(draft, load.draft_settings, hardware.devices)
    return About(_part(first), _part(second) if second else None)


def _part(one: Reading) -> Part:
    return Part(round(one.weights), one.devices, one.family, one.moe)


def learn(hardware: Hardware, shown: Iterable[Shown], threads: int | None = None) -> Hardware:
    """With what this machine has run; `threads` as the CPU will be given, None: as lately."""
    known = [one for one in shown if one.about is not None and one.measured is not None]
    if threads is None:
        threads = next((one.measured.threads for one in known if one.measured), None)
    known = _telling([one for one in known if _comparable(one, threads)])
    points = _points(known)
    curves = _curves(known)
    learnt = {
        place: _rate(found, hardware.rates.get(place[0], UNKNOWN), curves.get(place, {}), place)
        for place, found in points.items()
    }
    if threads is not None:
        learnt = {place: _told(rate, place, threads) for place, rate in learnt.items()}
    return replace(hardware, learnt=learnt | _to_borrow(learnt))


def _comparable(one: Shown, threads: int | None) -> bool:
    """On the CPU the number of threads decides."""
    assert one.about is not None
    assert one.measured is not None
    parts = filter(None, (one.about.target, one.about.draft))
    return one.measured.threads == threads or all(HOST not in part.devices for part in parts)


def _telling(known: list[Shown]) -> list[Shown]:
    """Without pairs so small that they stay in a cache, unless there are no others."""
    large = [one for one in known if one.about and _together(one.about) >= _CACHED]
    return large or known


def _together(about: About) -> int:
    return about.target.read + (about.draft.read if about.draft else 0)


# --- points -----------------------------------------------------------------------------


def _points(known: Sequence[Shown]) -> dict[tuple[str, str], list[Point]]:
    """By device and type of weights; of several measurements of one size the fastest.

    Something else may have been running during the others.
    """
    found: defaultdict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for part, ms in _timed(known):
        if len(part.devices) == 1 and part.read > 0 and _sound(ms):
            sizes = found[part.devices[0], part.family]
            dense = ms / passes.slowed(part.moe)
            sizes[part.read] = min(dense, sizes.get(part.read, dense))
    return {
        place: [Point(read, ms) for read, ms in sizes.items()] for place, sizes in found.items()
    }


def _timed(known: Sequence[Shown]) -> Iterable[tuple[Part, float]]:
    for one in known:
        assert one.about is not None
        assert one.measured is not None
        yield one.about.target, one.measured.t1_ms
        if one.about.draft is not None and one.measured.c is not None:
            yield one.about.draft, one.measured.c * one.measured.t1_ms


def _sound(ms: object) -> bool:
    return isinstance(ms, int | float) and isfinite(ms) and ms > 0


def _curves(known: Sequence[Shown]) -> dict[tuple[str, str], dict[int, float]]:
    """Verify curves by device and type, the mean of all that were measured.

    A mixture of experts has a curve of its own kind, which says nothing of others.
    """
    seen: defaultdict[tuple[str, str], defaultdict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for one in known:
        assert one.about is not None
        assert one.measured is not None
        part = one.about.target
        if len(part.devices) == 1 and not part.moe:
            for width, v in one.measured.curve.items():
                if width.isdecimal() and _sound(v):
                    seen[part.devices[0], part.family][int(width)].append(log(v))
    return {
        place: {width: exp(fmean(logs)) for width, logs in sorted(widths.items())}
        for place, widths in seen.items()
    }


# --- lines ------------------------------------------------------------------------------


def line(points: Sequence[Point], fixed_ms: float) -> Line:
    """The line nearest to the points, each by its share; `fixed_ms` where they cannot show it."""
    reads = [point.read for point in points]
    if max(reads) < _APART * min(reads):
        return _through(points, min(fixed_ms, _FIXED_SHARE * min(p.ms for p in points)), _ONE)
    # Least squares of a/t + s·B/t − 1.
    u, v = [1 / p.ms for p in points], [p.read / p.ms for p in points]
    uu, uv, vv = (_dot(a, b) for a, b in ((u, u), (u, v), (v, v)))
    determinant = uu * vv - uv * uv
    if determinant <= 0:
        return _through(points, 0.0, _ONE)
    fixed = (sum(u) * vv - sum(v) * uv) / determinant
    slope = (sum(v) * uu - sum(u) * uv) / determinant
    if fixed < 0 or slope <= 0:
        return _through(points, 0.0 if fixed < 0 else _FIXED_SHARE * min(p.ms for p in points), 0)
    return _judged(points, fixed, slope, 0.0)


def _through(points: Sequence[Point], fixed: float, least_error: float) -> Line:
    """The nearest line of this fixed part."""
    v = [p.read / p.ms for p in points]
    slope = sum(v[i] * (1 - fixed / p.ms) for i, p in enumerate(points)) / _dot(v, v)
    return _judged(points, fixed, slope, least_error)


def _judged(points: Sequence[Point], fixed: float, slope: float, least_error: float) -> Line:
    worst = max(abs((fixed + slope * p.read) / p.ms - 1) for p in points)
    return Line(fixed, 1e-6 / slope, max(worst, least_error))


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


# --- rates ------------------------------------------------------------------------------


def _rate(
    points: Sequence[Point], usual: Rate, curve: Mapping[int, float], place: tuple[str, str]
) -> Rate:
    found = line(points, usual.fixed_ms)
    return replace(
        usual,
        bandwidth=found.bandwidth,
        eta=1.0,
        fixed_ms=found.fixed_ms,
        curve=curve,
        error=min(max(found.error, CALIBRATED), _WORST),
        basis=f"{_models(len(points))} of {place[1]} measured here",
        measured=True,
        largest=max(point.read for point in points),
    )


def _models(n: int) -> str:
    return "one model" if n == 1 else f"{n} models"


def _told(rate: Rate, place: tuple[str, str], threads: int) -> Rate:
    if place[0] != HOST:
        return rate
    return replace(rate, basis=f"{rate.basis}, {threads} thread{'s' * (threads != 1)}")


def _to_borrow(learnt: Mapping[tuple[str, str], Rate]) -> dict[tuple[str, str], Rate]:
    """For types that were not measured there: the rate of another, no longer called measured."""
    found: dict[tuple[str, str], Rate] = {}
    for (device, _), rate in learnt.items():
        if (device, "") not in found:
            found[device, ""] = replace(
                rate,
                error=max(TABLE, rate.error),
                curve=rate.curve if rate.kind == "gpu" else {},
                basis=_BORROWED,
                measured=False,
            )
    return found
