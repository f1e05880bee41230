"""Ranges, contexts and verdicts in the words of the screen."""

from __future__ import annotations

from textwrap import wrap

from localspec.clean import clean
from localspec.fit.acceptance import Range
from localspec.fit.report import Fit, Room
from localspec.fit.speed import Speed
from localspec.models.catalog import Model, Pair
from localspec.units import gib

_GIB = 1 << 30
VERDICTS = {"fits": "fits", "tight": "tight", "no": "too big", "unknown": "unknown"}


def span(found: Range, digits: int | None = None) -> str:
    """Two ends: 71–84, 3.2–4.1; one where they look the same."""
    low, high = found
    if digits is None:
        digits = 1 if high < 10 else 0
    first, last = f"{low:.{digits}f}", f"{high:.{digits}f}"
    return first if first == last else f"{first}–{last}"


def rate(found: Range | None) -> str:
    """Tokens a second."""
    return f"{span(found)} tok/s" if found else "speed unknown"


def times(found: Range | None) -> str:
    """A speed-up."""
    return f"{span(found, 1)}×" if found else ""


def gain(speed: Speed, use: str) -> Range | None:
    """What speculation does for such text."""
    expected = speed.by_workload.get(use)
    return expected.speedup if expected else None


def size(n_bytes: float) -> str:
    """GiB without the unit, which stands nearby."""
    return f"{n_bytes / _GIB:.1f}"


def context(n: int | None) -> str:
    """8k; of an unusual one all digits."""
    if n is None:
        return "auto"
    return f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}"


def quantised(model: Model) -> str:
    """qwen3-8b Q4_K_M."""
    return clean(f"{model.id} {model.quantisation}".strip(), multiline=False)


def licences(pair: Pair, unknown: str = "?") -> str:
    """Of both, each once."""
    said = [model.licence or unknown for model in (pair.target, pair.draft) if model]
    return clean(", ".join(dict.fromkeys(said)), multiline=False)


def verdict(fit: Fit) -> str:
    """Whether it fits, by the device where the least is to spare."""
    room = fit.tightest
    if fit.verdict == "unknown" or room.spare is None:
        return "how much memory is free is unknown"
    if fit.verdict == "no":
        short = next(one for one in (*fit.rooms, fit.host) if one.verdict == "no")
        return f"does not fit: needs {gib(short.total)} of {_where(short)}"
    if room.spare < 0:
        return f"tight: takes {gib(-room.spare)} of what is left to others"
    return f"{fit.verdict}, {gib(room.spare)} to spare"


def _where(room: Room) -> str:
    free = gib(room.device.free or 0)
    mine = "this computer's memory" if room.device.kind == "cpu" else "the card"
    return f"{mine}, which has {free} free"


def wrapped(text: str, width: int) -> list[str]:
    """Whole words on lines of a width."""
    return wrap(clean(text, multiline=False), max(10, width)) or [""]
