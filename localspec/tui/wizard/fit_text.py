"""Formats fits for the screens: ranges, speeds, contexts and verdicts."""

from __future__ import annotations

from localspec.fit.speed import FloatRange, SpeedEstimate
from localspec.fit.verdict import FitReport
from localspec.models.catalog import CatalogModel, CatalogPair, own_id
from localspec.sanitize import sanitize
from localspec.units import gib

_GIB = 1 << 30
VERDICT_LABELS = {
    "fits": "fits",
    "tight": "tight",
    "no": "too big",
    "unknown": "unknown",
}


def range_text(value_range: FloatRange, digits: int | None = None) -> str:
    """`71–84`, `3.2–4.1`; a single number if both ends look the same."""
    low, high = value_range
    if digits is None:
        digits = 1 if high < 10 else 0
    first, last = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return first if first == last else f"{first}–{last}"


def speed_text(value_range: FloatRange | None) -> str:
    return f"{range_text(value_range)} tok/s" if value_range else "speed unknown"


def speedup_text(value_range: FloatRange | None) -> str:
    return f"{range_text(value_range, 1)}×" if value_range else ""


def speedup_range(speed: SpeedEstimate, use_case: str) -> FloatRange | None:
    expected = speed.by_workload.get(use_case)
    return expected.speedup if expected else None


def gib_text(n_bytes: float) -> str:
    """GiB without the unit."""
    return f"{n_bytes / _GIB:.1f}"


def context_text(n: int | None) -> str:
    """`8k`, or all digits if not a multiple of 1024."""
    if n is None:
        return "auto"
    return f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}"


def model_text(model: CatalogModel) -> str:
    return sanitize(f"{model.id} {model.quantization}".strip(), multiline=False)


def pair_name(pair: CatalogPair) -> str:
    """Its id, without what is said twice: gemma-4-e4b+mtp; the target's alone for
    prompt lookup.
    """
    own = own_id(pair.target.id)
    name = pair.id.replace("+lookup", "").replace(f"{own}+{own}-", f"{own}+")
    return sanitize(name, multiline=False)


def licence_text(pair: CatalogPair, unknown: str = "?") -> str:
    """The licences of both models, without repetition."""
    models = [model for model in (pair.target, pair.draft) if model]
    licences = [
        (model.licence or unknown).removesuffix(" (repository)") for model in models
    ]
    return sanitize(", ".join(dict.fromkeys(licences)), multiline=False)


def verdict_text(fit: FitReport) -> str:
    """Whether the pair fits, for the device with the least memory to spare."""
    tightest = fit.tightest
    if fit.verdict == "unknown" or tightest.headroom is None:
        return "how much memory is free is unknown"
    if fit.verdict == "no":
        device_fit = next(
            each for each in (*fit.device_fits, fit.host) if each.verdict == "no"
        )
        name = "this computer" if device_fit.device.kind == "cpu" else "the GPU"
        free = gib(device_fit.device.free or 0)
        return f"does not fit: needs {gib(device_fit.needed)}, {name} has {free} free"
    if tightest.headroom < 0:
        return f"tight: uses {gib(-tightest.headroom)} reserved for other programs"
    return f"{fit.verdict}, {gib(tightest.headroom)} to spare"
