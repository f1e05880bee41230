"""Estimated speed of a pair, plain and speculative, as ranges of tokens per second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import hypot

from localspec.fit import pass_cost, speedup_model
from localspec.fit.pass_cost import HardwareSpeed, PassReads
from localspec.fit.shape import ModelShape
from localspec.fit.speedup_model import SpeculationCosts
from localspec.lazy_dataclass import dataclass
from localspec.models import draft_heads
from localspec.protocol.wire import DRAFT_MAX, LoadCommand

FloatRange = tuple[float, float]

_HOST_MS = 0.8  # Time a drafting round takes outside llama.cpp (docs/benchmarks.md).
_HOST_GREEDY_MS = 0.4
_SPEEDUP_ERROR_CALIBRATED = 0.10  # Relative error of a speed-up with a measured verify curve.
_SPEEDUP_ERROR_TABLE = 0.20  # The same with a typical verify curve.
_SPEEDUP_ERROR_CPU = 0.35  # The same on a CPU, where verify curves differ most.
_TYPICAL_BLOCK_ROWS = 6  # Rows of a block that are typically worth verifying.
_WORST_SPEEDUP = 0.97
"""Lower limit: the engine pauses speculation after a few rounds if it does not help."""

_WORKLOADS = ("chat", "code", "writing", "documents")
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
_MEASURED_ERROR = 0.08  # Of a rate measured with this pair: other texts are accepted otherwise.
_COPIED_SHARES: dict[str, FloatRange] = {
    "chat": (0.0, 0.10),
    "code": (0.05, 0.30),
    "writing": (0.0, 0.05),
    "documents": (0.05, 0.50),
}
"""Share of an answer that repeats earlier text, which prompt lookup can draft."""
_COPY_ACCEPTANCE = 0.85  # Acceptance rate of prompt lookup where the text repeats.
_TEMPERATURE_LOSS = 0.18
"""Relative loss at temperature 1: 0.75 became 0.62, 0.65 became 0.53 (Leviathan et al., T5)."""


@dataclass(frozen=True, slots=True)
class UseCase:
    """The kind of text, the temperature and the context that a speed applies to."""

    workload: str = "chat"
    temperature: float = 0.8
    context: int = 1024  # Tokens in the context while answering.


@dataclass(frozen=True, slots=True)
class WorkloadSpeed:
    """Effect of speculation on one kind of text."""

    speedup: FloatRange
    tokens_per_second: FloatRange


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """Ranges in tokens per second; None if unknown, with the reason in `explanation`."""

    plain: FloatRange | None = None
    speculative: FloatRange | None = None
    by_workload: Mapping[str, WorkloadSpeed] = field(default_factory=dict)
    explanation: str = ""
    calibrated: bool = False  # Based on passes measured on this machine.
    costs: SpeculationCosts | None = None
    t1_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _PairCosts:
    t1_ms: float
    error: float  # Relative error of `t1_ms`.
    speedup_error: float
    costs: SpeculationCosts
    max_draft: int

    @property
    def plain(self) -> FloatRange:
        """Tokens per second without speculation."""
        return 1e3 / self.t1_ms * (1 - self.error), 1e3 / self.t1_ms * (1 + self.error)


def estimate_speed(
    load: LoadCommand,
    target: ModelShape,
    draft: ModelShape | None,
    hardware: HardwareSpeed,
    use: UseCase | None = None,
) -> SpeedEstimate:
    """Estimates the speed with these settings, from the speeds of the devices."""
    use, devices = use or UseCase(), hardware.devices
    draft_reads = None
    reads = pass_cost.count_reads(target, load.target_settings, devices, use.context)
    if draft is not None and draft.head_kind:
        draft_reads = pass_cost.count_head_reads(
            target, draft, load.draft_settings, devices, use.context
        )
    elif draft is not None:
        draft_reads = pass_cost.count_reads(draft, load.draft_settings, devices, use.context)
    for each in filter(None, (reads, draft_reads)):
        if reason := pass_cost.explain_unknown(each, hardware):
            return SpeedEstimate(explanation=reason)
    speeds = {name: pass_cost.find_speed(reads, name, hardware) for name in reads.devices}
    pair = _estimate_costs(
        load, (reads, draft_reads), hardware, use, draft.head_block if draft else 0
    )
    by_workload: dict[str, WorkloadSpeed] = {}
    if target.has_recurrent_state and not target.can_rollback:
        basis, expected = "no speculation: its recurrent state cannot be rolled back", pair.plain
    else:
        rates, basis = _find_rates(load, hardware, use, draft)
        by_workload = {
            name: _expect_drafting(pair, rates[name]) if draft else _expect_lookup(pair, name)
            for name in _WORKLOADS
        }
        expected = by_workload.get(use.workload, by_workload["chat"]).tokens_per_second
    basis = f"{', '.join(f'{name}: {each.basis}' for name, each in speeds.items())}; {basis}"
    is_measured = all(speed.measured for speed in speeds.values())
    return SpeedEstimate(
        pair.plain, expected, by_workload, basis, is_measured, pair.costs, pair.t1_ms
    )


def _find_rates(
    load: LoadCommand, hardware: HardwareSpeed, use: UseCase, draft: ModelShape | None
) -> tuple[Mapping[str, FloatRange], str]:
    """Acceptance rates by workload, and what they are based on."""
    if draft is None:
        return {}, "typical gains of prompt lookup"
    by_temperature = hardware.acceptance.get((load.target, load.draft or ""), {})
    factor = 1 - _TEMPERATURE_LOSS * min(max(use.temperature, 0.0), 1.0)
    measured = by_temperature.get("coupled") if use.temperature > 0 else None
    if measured is None and "greedy" in by_temperature:
        measured = by_temperature["greedy"] * factor
    if measured is not None:
        rates = max(0.0, measured - _MEASURED_ERROR), min(1.0, measured + _MEASURED_ERROR)
        basis = f"acceptance rate of {measured:.2f} measured with this pair"
        return dict.fromkeys(_WORKLOADS, rates), basis
    table = _TYPICAL_HEAD_RATES.get(draft.head_kind, _TYPICAL_RATES)
    typical = {name: (low * factor, high * factor) for name, (low, high) in table.items()}
    if not draft.head_kind:
        return typical, f"typical acceptance rate for {use.workload}"
    title = draft_heads.KIND_TITLES[draft.head_kind]
    return typical, f"acceptance rate as reported for {title} heads ({use.workload})"


def _estimate_costs(
    load: LoadCommand,
    reads: tuple[PassReads, PassReads | None],
    hardware: HardwareSpeed,
    use: UseCase,
    block: int,
) -> _PairCosts:
    """`reads`: of target and draft; `block`: rows of a block head, else 0."""
    target, draft = reads
    speeds = [pass_cost.find_speed(target, name, hardware) for name in target.devices]
    if all(speed.verify_curve and speed.measured for speed in speeds):
        speedup_error = _SPEEDUP_ERROR_CALIBRATED
    else:
        has_cpu = any(speed.kind == "cpu" for speed in speeds)
        speedup_error = _SPEEDUP_ERROR_CPU if has_cpu else _SPEEDUP_ERROR_TABLE
    t1 = pass_cost.estimate_ms(target, hardware)
    host_ms, draft_ms, max_draft = _HOST_GREEDY_MS, 0.0, load.draft_max
    if use.temperature > 0:
        host_ms = _HOST_MS
    if draft is not None and block:  # one pass for all draft tokens
        max_draft = min(max_draft, max(1, block - 1))
        host_ms += pass_cost.estimate_ms(draft, hardware, min(max_draft, _TYPICAL_BLOCK_ROWS))
    elif draft is not None:
        draft_ms = pass_cost.estimate_ms(draft, hardware)
    curve = pass_cost.estimate_verify_curve(target, hardware, load.draft_max + 1)
    costs = SpeculationCosts(draft_ms / t1, curve, host_ms / t1)
    error = pass_cost.relative_error(target, hardware)
    return _PairCosts(t1, error, speedup_error, costs, max_draft)


def _expect_drafting(pair: _PairCosts, rates: FloatRange) -> WorkloadSpeed:
    """The best speed-up of drafting in every round, even if plain decoding is faster."""
    error = pair.speedup_error if pair.max_draft else 0.0
    ends = []
    for rate in rates:
        probs = _prefix_probs(rate, pair.max_draft)
        speedups = [
            speedup_model.expected_speedup(pair.costs, probs, n) for n in range(1, len(probs) + 1)
        ]
        ends.append((max(speedups, default=1.0), error))
    return _workload_speed(pair, ends[0], ends[1])


def _prefix_probs(rate: float, max_draft: int) -> list[float]:
    """Probabilities that the first 1, 2, … tokens are all accepted, at one rate for all."""
    return [rate**j for j in range(1, min(max_draft, DRAFT_MAX) + 1)]


def _expect_lookup(pair: _PairCosts, workload: str) -> WorkloadSpeed:
    """Prompt lookup speeds up the repeated share of the text, at no drafting cost."""
    costs = SpeculationCosts(0.0, pair.costs.verify_curve, pair.costs.host)
    best = speedup_model.best_draft_length(costs, _prefix_probs(_COPY_ACCEPTANCE, pair.max_draft))
    error = pair.speedup_error if best.gamma else 0.0
    low, high = (
        (1 / (1 - share + share / best.speedup), error * share)
        for share in _COPIED_SHARES[workload]
    )
    return _workload_speed(pair, low, high)


def _workload_speed(pair: _PairCosts, lowest: FloatRange, highest: FloatRange) -> WorkloadSpeed:
    """`lowest` and `highest`: a speed-up and its relative error.

    Never much slower than plain decoding, as the engine pauses speculation that does not help.
    """
    (low, low_error), (high, high_error) = lowest, highest
    tok_s, plain = 1e3 / pair.t1_ms, pair.plain
    slowest = max(tok_s * low * (1 - hypot(pair.error, low_error)), plain[0] * _WORST_SPEEDUP)
    fastest = max(tok_s * high * (1 + hypot(pair.error, high_error)), plain[1])
    speedup = max(low * (1 - low_error), _WORST_SPEEDUP), max(high * (1 + high_error), 1.0)
    return WorkloadSpeed(speedup, (slowest, fastest))
