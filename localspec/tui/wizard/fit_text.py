"""Ranges, contexts and verdicts in the words of the screen."""

from __future__ import annotations

from textwrap import wrap

from localspec.fit.expected_acceptance import FloatRange
from localspec.fit.report import DeviceFit, FitReport
from localspec.fit.speed_estimate import SpeedEstimate
from localspec.models.catalog import CatalogModel, CatalogPair
from localspec.sanitize import sanitize
from localspec.units import gib

_GIB = 1 << 30
VERDICT_LABELS = {"fits": "fits", "tight": "tight", "no": "too big", "unknown": "unknown"}


def range_text(found: FloatRange, digits: int | None = None) -> str:
    """Two ends: 71–84, 3.2–4.1; one where they look the same."""
    low, high = found
    if digits is None:
        digits = 1 if high < 10 else 0
    first, last = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return first if first == last else f"{first}–{last}"


def speed_text(found: FloatRange | None) -> str:
    """Tokens a second."""
    return f"{range_text(found)} tok/s" if found else "speed unknown"


def speedup_text(found: FloatRange | None) -> str:
    """A speed-up."""
    return f"{range_text(found, 1)}×" if found else ""


def speedup_range(speed: SpeedEstimate, use_case: str) -> FloatRange | None:
    """What speculation does for such text."""
    expected = speed.by_workload.get(use_case)
    return expected.speedup if expected else None


def gib_text(n_bytes: float) -> str:
    """GiB without the unit, which stands nearby."""
    return f"{n_bytes / _GIB:.1f}"


def context_text(n: int | None) -> str:
    """8k; of an unusual one all digits."""
    if n is None:
        return "auto"
    return f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}"


def model_text(model: CatalogModel) -> str:
    """qwen3-8b Q4_K_M."""
    return sanitize(f"{model.id} {model.quantization}".strip(), multiline=False)


def licence_text(pair: CatalogPair, unknown: str = "?") -> str:
    """Of both, each once."""
    said = [model.licence or unknown for model in (pair.target, pair.draft) if model]
    return sanitize(", ".join(dict.fromkeys(said)), multiline=False)


def verdict_text(fit: FitReport) -> str:
    """Whether it fits, by the device where the least is to spare."""
    room = fit.tightest
    if fit.verdict == "unknown" or room.headroom is None:
        return "how much memory is free is unknown"
    if fit.verdict == "no":
        short = next(one for one in (*fit.device_fits, fit.host) if one.verdict == "no")
        return f"does not fit: needs {gib(short.total)} of {_device_text(short)}"
    if room.headroom < 0:
        return f"tight: takes {gib(-room.headroom)} of what is left to others"
    return f"{fit.verdict}, {gib(room.headroom)} to spare"


def _device_text(device_fit: DeviceFit) -> str:
    free = gib(device_fit.device.free or 0)
    mine = "this computer's memory" if device_fit.device.kind == "cpu" else "the card"
    return f"{mine}, which has {free} free"


def wrap_text(text: str, width: int) -> list[str]:
    """Whole words on lines of a width."""
    return wrap(sanitize(text, multiline=False), max(10, width)) or [""]
