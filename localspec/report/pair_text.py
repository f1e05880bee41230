"""A pair in words: its name, licences and context, and the speed that it is expected to have."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.fit.speed import FloatRange, SpeedEstimate
from localspec.models.catalog import CatalogPair
from localspec.report.lines import Line, Span, make_line
from localspec.sanitize import sanitize
from localspec.units import about_rate, middle

_USE_CASE_LABELS = {
    "chat": "chat",
    "code": "code",
    "writing": "stories",
    "documents": "documents",
}
_SPEED_LABEL_WIDTH = 15
_SPEED_WIDTH = 14
_SPEEDUPS_MARGIN = 4
"""Cells that the speed-ups leave: the gap before them, and two at the line's end."""
_WIDE = 58
"""From this width on two spaces separate a speed from its speed-ups."""


def describe_toy(finder: str) -> str:
    """What is said once of the model that came with localspec.

    `finder`: what finds another one, such as a command.
    """
    return f"This model is a toy, and often wrong. {finder} finds a real one."


UNKNOWN_LICENCE = "licence: see its page"


def format_licences(pair: CatalogPair, unknown: str = "?") -> str:
    """The licences of both models, without repetition."""
    models = [model for model in (pair.target, pair.draft) if model]
    licences = [
        (model.licence or unknown).removesuffix(" (repository)") for model in models
    ]
    return sanitize(", ".join(dict.fromkeys(licences)), multiline=False)


def format_context(n_ctx: int | None) -> str:
    """`8k`, or all digits if it is not a multiple of 1024."""
    if n_ctx is None:
        return "auto"
    return f"{n_ctx // 1024}k" if n_ctx % 1024 == 0 else f"{n_ctx:,}"


def format_range(value_range: FloatRange, digits: int | None = None) -> str:
    """`71–84`, `3.2–4.1`; a single number if both ends look the same."""
    low, high = value_range
    if digits is None:
        digits = 1 if high < 10 else 0
    first = f"{low:.{digits}f}"
    last = f"{high:.{digits}f}"
    return first if first == last else f"{first}–{last}"


def format_speed(value_range: FloatRange | None) -> str:
    return f"{format_range(value_range)} tok/s" if value_range else "speed unknown"


def describe_rates(speed: SpeedEstimate, *, has_draft: bool) -> str:
    """The middles, such as `≈ 53 tok/s, ≈ 36 without the draft`; empty if unknown."""
    rate = middle(speed.speculative or speed.plain)
    if rate is None:
        return ""
    text = f"{about_rate(rate)} tok/s"
    if has_draft and speed.plain is not None:
        text += f", {about_rate(middle(speed.plain))} without the draft"
    return text


def format_speedup(value_range: FloatRange | None) -> str:
    return f"{format_range(value_range, digits=1)}×" if value_range else ""


def find_speedup(speed: SpeedEstimate, use_case: str) -> FloatRange | None:
    expected = speed.by_workload.get(use_case)
    return expected.speedup if expected else None


def format_speeds(
    speed: SpeedEstimate, use_case: str, width: int, *, separator: str = " · "
) -> Iterator[Line]:
    """The plain and the speculative speed, with the speed-ups that fit into `width`.

    There is nothing if the speed is unknown. `separator`: of the speed-ups.
    """
    if speed.plain is None:
        return
    yield (
        Span("plain".ljust(_SPEED_LABEL_WIDTH), "muted"),
        Span(format_speed(speed.plain)),
    )
    gap = "  " if width >= _WIDE else " "
    room = width - _SPEED_LABEL_WIDTH - _SPEED_WIDTH - _SPEEDUPS_MARGIN
    speedups = _list_speedups(speed, use_case, room, separator)
    yield (
        Span("speculative".ljust(_SPEED_LABEL_WIDTH), "muted"),
        Span(format_speed(speed.speculative).ljust(_SPEED_WIDTH), "strong"),
        Span(f"{gap}{speedups}", "muted"),
    )


def _list_speedups(
    speed: SpeedEstimate, use_case: str, width: int, separator: str
) -> str:
    """The speed-up for the chosen use case, then those for others as room allows.

    For example `1.4–2.0× chat · 1.9–2.8× code`.
    """
    shown = ""
    for use in dict.fromkeys((use_case, *_USE_CASE_LABELS)):
        speedup = format_speedup(find_speedup(speed, use))
        if not speedup:
            continue
        entry = f"{speedup} {_USE_CASE_LABELS.get(use, use)}"
        if not shown:
            shown = entry
        elif len(shown) + len(separator) + len(entry) <= width:
            shown += separator + entry
    return shown


def describe_speed_basis(speed: SpeedEstimate) -> Line:
    basis = sanitize(speed.explanation, multiline=False)
    if speed.plain is None:
        return make_line(f"speed unknown: {basis}")
    return make_line(f"based on {basis}", "muted")
