"""How often a draft's guesses stand: as counted here, or as is usual for what is written."""

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
"""Share of guesses that stand at temperature 0, for drafts of their target's family: reports range
from 0.4 (prose) to 0.95 (code).  How good a draft is is known only once it was tried."""
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
"""The same of heads.  High: what their authors measured (DSpark's paper, table 1, temperature 1:
2.3-2.6, 2.8-3.1 and 3.3-3.6 tokens a pass in chats for EAGLE-3, DFlash and DSpark with 7 guesses,
3.7-4.2, 4.2-4.7 and 4.9-5.4 for code; vLLM #20780; DeepSeek-V3: 0.85 to 0.90 of MTP's).  Low: what
people report (MTP 0.48 to 0.93; EAGLE-3 0.55 beside gpt-oss; blocks 1.3 tokens a pass of prose)."""
_COPIED_SHARES: dict[str, FloatRange] = {
    "chat": (0.0, 0.10),
    "code": (0.05, 0.30),
    "writing": (0.0, 0.05),
    "documents": (0.05, 0.50),
}
"""Share of an answer that repeats what stands before, so that copying guesses it."""
COPY_ACCEPTANCE = 0.85
"""Share of copied guesses that stand, where the text does repeat itself."""
_TEMPERATURE_LOSS = 0.18
"""What temperature 1 takes off: 0.75 became 0.62 and 0.65 became 0.53 (Leviathan et al., T5)."""

_POSITION_GROUPS = (0, 1, 2, 3, 3, 4, 4, 4, 4)
"""The engine's groups of places in a draft (engine/control/survival.py); further ones are 5."""
_MIN_SAMPLES = 20
"""Guesses at the first place that must have been judged."""
_RATE_SPREAD = 0.05
"""How far another answer's share may be from what was counted."""


def typical_rate(workload: str, temperature: float, head_kind: str = "") -> FloatRange:
    """The share of guesses that stand, from a poor to a good match of draft, target and text.

    `head`: the kind of head that drafts; nothing: a model.
    """
    low, high = _TYPICAL_HEAD_RATES.get(head_kind, _TYPICAL_RATES)[workload]
    factor = 1 - _TEMPERATURE_LOSS * min(max(temperature, 0.0), 1.0)
    return low * factor, high * factor


def copied_share(workload: str) -> FloatRange:
    """The share of an answer that copying can guess."""
    return _COPIED_SHARES[workload]


def uniform_prefix_probs(rate: float, length: int = DRAFT_MAX) -> list[float]:
    """Chances that the first 1, 2, … guesses all stand, where all are equally good."""
    return [rate**j for j in range(1, length + 1)]


def measured_rates(measured: MeasuredCosts | None, temperature: float) -> list[float]:
    """Shares of guesses that stood by place, in this pair's answers here; empty where too few."""
    if measured is None:
        return []
    greedy = temperature <= 0
    ways = [kept for name, kept in measured.survival.items() if (name == "greedy") == greedy]
    places = [kept["place"] for kept in ways if isinstance(kept, Mapping) and "place" in kept]
    return _rates_by_position(places)


def _rates_by_position(position_counts: Sequence[Any]) -> list[float]:
    sums = [_sum_group(position_counts, group) for group in range(6)]
    if sums[0][1] < _MIN_SAMPLES:
        return []
    groups: list[float] = []
    for kept, tried in sums:
        before = groups[-1] if groups else kept / tried
        groups.append((kept + 6 * before) / (tried + 6))
    return [
        groups[_POSITION_GROUPS[i] if i < len(_POSITION_GROUPS) else 5] for i in range(DRAFT_MAX)
    ]


def _sum_group(position_counts: Sequence[Any], group: int) -> tuple[float, float]:
    found = [
        counts.get(str(group), (0, 0)) for counts in position_counts if isinstance(counts, Mapping)
    ]
    return sum(float(one[0]) for one in found), sum(float(one[1]) for one in found)


def prefix_probs(rates: Sequence[float], shift: float = 0.0) -> list[float]:
    """Chances that the first 1, 2, … guesses all stand, with every share a little off."""
    found, chance = [], 1.0
    for share in rates:
        chance *= min(max(share + shift, 0.0), 0.99)
        found.append(chance)
    return found


def prefix_probs_range(rates: Sequence[float]) -> tuple[list[float], list[float]]:
    """The least and the most that is to be expected of what was counted."""
    return prefix_probs(rates, -_RATE_SPREAD), prefix_probs(rates, _RATE_SPREAD)
