"""Expected acceptance rates: measured for a pair, or typical for a kind of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from localspec.protocol.wire import DRAFT_MAX, MeasuredCosts

FloatRange = tuple[float, float]

WORKLOADS = ("chat", "code", "writing", "documents")
_TYPICAL_RATES: dict[str, FloatRange] = {
    "chat": (0.50, 0.75),
    "code": (0.65, 0.92),
    "writing": (0.40, 0.65),
    "documents": (0.55, 0.85),
}
"""Acceptance rates at temperature 0, for a draft model of the target's family, from a poor to
a good match.  Reports range from 0.4 (prose) to 0.95 (code)."""
_TYPICAL_HEAD_RATES: dict[str, dict[str, FloatRange]] = {
    "eagle3": {
        "chat": (0.50, 0.75), "code": (0.62, 0.88), "writing": (0.40, 0.65),
        "documents": (0.55, 0.82),
    },
    "mtp": {
        "chat": (0.58, 0.85), "code": (0.68, 0.93), "writing": (0.48, 0.75),
        "documents": (0.60, 0.88),
    },
    "dflash": {
        "chat": (0.40, 0.75), "code": (0.60, 0.90), "writing": (0.25, 0.60),
        "documents": (0.45, 0.82),
    },
    "dspark": {
        "chat": (0.50, 0.82), "code": (0.62, 0.93), "writing": (0.30, 0.66),
        "documents": (0.52, 0.85),
    },
}  # fmt: skip
"""The same for heads.

Upper ends are from their authors: DSpark's paper, table 1, temperature 1, 7 draft tokens (EAGLE-3,
DFlash and DSpark emit 2.3-2.6, 2.8-3.1 and 3.3-3.6 tokens a pass in chats, 3.7-4.2, 4.2-4.7 and
4.9-5.4 for code); vLLM #20780; DeepSeek-V3 (0.85 to 0.90 for MTP).  Lower ends are from users: MTP
0.48 to 0.93, EAGLE-3 0.55 with gpt-oss, block heads 1.3 tokens a pass for prose.
"""
_COPIED_SHARES: dict[str, FloatRange] = {
    "chat": (0.0, 0.10),
    "code": (0.05, 0.30),
    "writing": (0.0, 0.05),
    "documents": (0.05, 0.50),
}
"""Share of an answer that repeats earlier text, which prompt lookup can draft."""
COPY_ACCEPTANCE = 0.85
"""Acceptance rate of prompt lookup where the text repeats."""
_TEMPERATURE_LOSS = 0.18
"""Relative loss at temperature 1: 0.75 became 0.62, 0.65 became 0.53 (Leviathan et al., T5)."""

_POSITION_GROUPS = (0, 1, 2, 3, 3, 4, 4, 4, 4)
"""Groups of draft positions, as in engine/control/acceptance_stats.py; later positions are 5."""
_MIN_SAMPLES = 20
"""Verified tokens needed at the first position."""
_RATE_SPREAD = 0.05
"""Spread of the acceptance rate between answers."""


def typical_rate(workload: str, temperature: float, head_kind: str = "") -> FloatRange:
    """Typical acceptance rate; `head_kind` is empty for a draft model."""
    low, high = _TYPICAL_HEAD_RATES.get(head_kind, _TYPICAL_RATES)[workload]
    factor = 1 - _TEMPERATURE_LOSS * min(max(temperature, 0.0), 1.0)
    return low * factor, high * factor


def copied_share(workload: str) -> FloatRange:
    """The share of an answer that prompt lookup can draft."""
    return _COPIED_SHARES[workload]


def uniform_prefix_probs(rate: float, length: int = DRAFT_MAX) -> list[float]:
    """Probabilities that the first 1, 2, … tokens are all accepted, at one rate for all."""
    return [rate**j for j in range(1, length + 1)]


def measured_rates(measured: MeasuredCosts | None, temperature: float) -> list[float]:
    """Acceptance rates by draft position, measured for this pair; empty if too few."""
    if measured is None:
        return []
    greedy = temperature <= 0
    stats = [stat for name, stat in measured.survival.items() if (name == "greedy") == greedy]
    return _rates_by_position(
        [stat["place"] for stat in stats if isinstance(stat, Mapping) and "place" in stat]
    )


def _rates_by_position(position_counts: Sequence[Any]) -> list[float]:
    sums = [_sum_group(position_counts, group) for group in range(6)]
    if sums[0][1] < _MIN_SAMPLES:
        return []
    rates: list[float] = []
    for accepted, drafted in sums:
        previous = rates[-1] if rates else accepted / drafted
        rates.append((accepted + 6 * previous) / (drafted + 6))
    return [
        rates[_POSITION_GROUPS[i] if i < len(_POSITION_GROUPS) else 5] for i in range(DRAFT_MAX)
    ]


def _sum_group(position_counts: Sequence[Any], group: int) -> tuple[float, float]:
    """Accepted and drafted tokens of a position group."""
    counts = [each.get(str(group), (0, 0)) for each in position_counts if isinstance(each, Mapping)]
    return sum(float(pair[0]) for pair in counts), sum(float(pair[1]) for pair in counts)


def prefix_probs(rates: Sequence[float], shift: float = 0.0) -> list[float]:
    """Probabilities that the first 1, 2, … tokens are all accepted, with shifted rates."""
    probs, prob = [], 1.0
    for rate in rates:
        prob *= min(max(rate + shift, 0.0), 0.99)
        probs.append(prob)
    return probs


def prefix_probs_range(rates: Sequence[float]) -> tuple[list[float], list[float]]:
    """Lower and upper prefix probabilities for measured rates."""
    return prefix_probs(rates, -_RATE_SPREAD), prefix_probs(rates, _RATE_SPREAD)
