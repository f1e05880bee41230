"""Estimated speed of a pair, plain and speculative, as ranges of tokens per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot

from localspec.fit import expected_acceptance, pass_cost, speedup_model
from localspec.fit import hparams as model_hparams
from localspec.fit.device_speed import CALIBRATED_ERROR, HardwareSpeed
from localspec.fit.expected_acceptance import FloatRange
from localspec.fit.pass_cost import PassReads
from localspec.fit.speedup_model import SpeculationCosts
from localspec.models import draft_heads
from localspec.models.gguf.header import Header
from localspec.protocol.wire import LoadCommand, MeasuredCosts

_HOST_MS = 0.8
"""Time a drafting round takes outside llama.cpp (docs/benchmarks.md)."""
_HOST_GREEDY_MS = 0.4
_SPEEDUP_ERROR_CALIBRATED = 0.10
"""Relative error of a speed-up with a measured verify curve."""
_SPEEDUP_ERROR_TABLE = 0.20
"""The same with a typical verify curve."""
_SPEEDUP_ERROR_CPU = 0.35
"""The same on a CPU, where verify curves differ most."""
_DEFAULT_BLOCK_SIZE = 16
"""Block size of a head whose file has none."""
_TYPICAL_BLOCK_ROWS = 6
"""Rows of a block that are typically worth verifying."""
_WORST_SPEEDUP = 0.97
"""Lower limit: the engine pauses speculation after a few rounds if it does not help."""


@dataclass(frozen=True, slots=True)
class UseCase:
    """The kind of text, the temperature and the context that a speed applies to."""

    workload: str = "chat"
    temperature: float = 0.8
    context: int = 1024
    """Tokens in the context while answering."""


@dataclass(frozen=True, slots=True)
class WorkloadSpeed:
    """Effect of speculation on one kind of text."""

    acceptance_rate: FloatRange
    """With prompt lookup: the share of the text that is repeated."""
    speedup: FloatRange
    tokens_per_second: FloatRange
    gamma: int
    """The fastest draft length in the middle of the range."""


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """Ranges in tokens per second; None if unknown, with the reason in `explanation`."""

    plain: FloatRange | None = None
    speculative: FloatRange | None = None
    best_gamma: int = 0
    by_workload: Mapping[str, WorkloadSpeed] = field(default_factory=dict)
    explanation: str = ""
    calibrated: bool = False
    """Based on passes measured on this machine."""
    costs: SpeculationCosts | None = None
    t1_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _PairCosts:
    target: PassReads
    draft: PassReads | None
    t1_ms: float
    error: float
    """Relative error of `t1_ms`."""
    speedup_error: float
    costs: SpeculationCosts
    max_draft: int
    calibrated: bool
    bases: tuple[str, ...]
    head_kind: str = ""
    """Empty for a draft model."""

    @property
    def tokens_per_second(self) -> float:
        return 1e3 / self.t1_ms


def estimate_speed(
    load: LoadCommand,
    target: Header,
    draft: Header | None,
    hardware: HardwareSpeed,
    use: UseCase | None = None,
) -> SpeedEstimate:
    """Estimates the speed with these settings; `load.measured` takes precedence if present."""
    use = use or UseCase()
    for header in (target, draft):
        if header is not None and not pass_cost.has_all_tensors(header):
            return SpeedEstimate(explanation="only the first part of the split model was read")
    target_reads = pass_cost.count_reads(
        target, load.target_settings, hardware.devices, use.context
    )
    draft_reads, head_kind = None, ""
    if draft is not None:
        head_kind = draft_heads.draft_kind_for_target(target, draft).replace("model", "")
        draft_reads = _draft_reads(load, (target, draft), head_kind, hardware, use)
    for reads in filter(None, (target_reads, draft_reads)):
        if reason := pass_cost.explain_unknown(reads, hardware):
            return SpeedEstimate(explanation=reason)
    pair = _estimate_costs(load, target_reads, draft_reads, hardware, use)
    if head_kind and draft is not None:
        pair = _with_head_costs(pair, head_kind, draft, hardware)
    hparams = model_hparams.from_header(target)
    if hparams.has_recurrent_state and not hparams.can_rollback:
        return _plain_only(pair, "no speculation: its recurrent state cannot be rolled back")
    return _estimate_pair_speed(load.measured, pair, use)


def _draft_reads(
    load: LoadCommand,
    headers: tuple[Header, Header],
    head_kind: str,
    hardware: HardwareSpeed,
    use: UseCase,
) -> PassReads:
    settings, devices = load.draft_settings, hardware.devices
    if head_kind:
        return pass_cost.count_head_reads(headers, head_kind, settings, devices, use.context)
    return pass_cost.count_reads(headers[1], settings, devices, use.context)


def _with_head_costs(
    pair: _PairCosts, head_kind: str, header: Header, hardware: HardwareSpeed
) -> _PairCosts:
    """An autoregressive head needs a pass per draft token, a block head one pass for all."""
    pair = replace(pair, head_kind=head_kind)
    if head_kind not in ("dflash", "dspark") or pair.draft is None:
        return pair
    longest = min(pair.max_draft, max(1, header.hparam("block_size", _DEFAULT_BLOCK_SIZE) - 1))
    width = min(longest, _TYPICAL_BLOCK_ROWS)
    block_cost = pass_cost.estimate_ms(pair.draft, hardware, width) / pass_cost.estimate_ms(
        pair.draft, hardware
    )
    host = pair.costs.host + pair.costs.c * block_cost
    costs = SpeculationCosts(0.0, pair.costs.verify_curve, host)
    return replace(pair, max_draft=longest, costs=costs)


def _estimate_costs(
    load: LoadCommand,
    target: PassReads,
    draft: PassReads | None,
    hardware: HardwareSpeed,
    use: UseCase,
) -> _PairCosts:
    """Costs from device speeds, unless this pair itself was measured."""
    speeds = {name: pass_cost.find_speed(target, name, hardware) for name in target.devices}
    if all(speed.verify_curve and speed.measured for speed in speeds.values()):
        speedup_error = _SPEEDUP_ERROR_CALIBRATED
    elif any(speed.kind == "cpu" for speed in speeds.values()):
        speedup_error = _SPEEDUP_ERROR_CPU
    else:
        speedup_error = _SPEEDUP_ERROR_TABLE
    host = _HOST_MS if use.temperature > 0 else _HOST_GREEDY_MS
    t1 = pass_cost.estimate_ms(target, hardware)
    c = pass_cost.estimate_ms(draft, hardware) / t1 if draft else 0.0
    curve = pass_cost.estimate_verify_curve(target, hardware, load.draft_max + 1)
    pair = _PairCosts(
        target=target,
        draft=draft,
        t1_ms=t1,
        error=pass_cost.relative_error(target, hardware),
        speedup_error=speedup_error,
        costs=SpeculationCosts(c, curve, host / t1),
        max_draft=load.draft_max,
        calibrated=all(speed.measured for speed in speeds.values()),
        bases=tuple(f"{name}: {speed.basis}" for name, speed in speeds.items()),
    )
    if load.measured is None or load.measured.t1_ms <= 0:
        return pair
    return _with_measured_costs(pair, load.measured, hardware, host)


def _with_measured_costs(
    pair: _PairCosts, measured: MeasuredCosts, hardware: HardwareSpeed, host_ms: float
) -> _PairCosts:
    """The pair's own passes, plus the time for its context: they were measured with a short one."""
    t1 = measured.t1_ms + pass_cost.estimate_context_ms(pair.target, hardware)
    c = pair.costs.c
    if pair.draft and measured.c is not None:
        draft_context_ms = pass_cost.estimate_context_ms(pair.draft, hardware)
        c = (measured.c * measured.t1_ms + draft_context_ms) / t1
    curve = _verify_curve_with_context(measured, pair.target, hardware) or pair.costs.verify_curve
    return replace(
        pair,
        t1_ms=t1,
        error=CALIBRATED_ERROR,
        speedup_error=_SPEEDUP_ERROR_CALIBRATED,
        costs=SpeculationCosts(c, curve, host_ms / t1),
        calibrated=True,
        bases=("this pair's own passes measured here",),
    )


def _verify_curve_with_context(
    measured: MeasuredCosts, target: PassReads, hardware: HardwareSpeed
) -> dict[int, float]:
    """The measured verify curve, plus the time for the context of `target`."""
    t1 = measured.t1_ms
    t1_context = t1 + pass_cost.estimate_context_ms(target, hardware)
    return {
        width: (v * t1 + pass_cost.estimate_context_ms(target, hardware, width)) / t1_context
        for width, v in ((int(text), v) for text, v in measured.curve.items())
    }


def _estimate_pair_speed(
    measured: MeasuredCosts | None, pair: _PairCosts, use: UseCase
) -> SpeedEstimate:
    by_workload = {
        name: _expect_drafting(pair, name, use.temperature)
        if pair.draft
        else _expect_lookup(pair, name)
        for name in expected_acceptance.WORKLOADS
    }
    expected = by_workload.get(use.workload, by_workload["chat"])
    rates = expected_acceptance.measured_rates(measured, use.temperature) if pair.draft else []
    if rates:
        low, high = expected_acceptance.prefix_probs_range(rates)
        middle = expected_acceptance.prefix_probs(rates)
        expected = _expect_from_probs(pair, (rates[0], rates[0]), (low, middle, high))
        basis = f"acceptance rate of the first draft token {100 * rates[0]:.0f} %, measured here"
    elif not pair.draft:
        basis = "typical gains of prompt lookup"
    elif pair.head_kind:
        title = draft_heads.KIND_TITLES[pair.head_kind]
        basis = f"acceptance rate as reported for {title} heads ({use.workload})"
    else:
        basis = f"typical acceptance rate for {use.workload}"
    return SpeedEstimate(
        plain=_plain_range(pair),
        speculative=expected.tokens_per_second,
        best_gamma=expected.gamma,
        by_workload=by_workload,
        explanation=f"{', '.join(pair.bases)}; {basis}",
        calibrated=pair.calibrated,
        costs=pair.costs,
        t1_ms=pair.t1_ms,
    )


def _plain_only(pair: _PairCosts, reason: str) -> SpeedEstimate:
    plain = _plain_range(pair)
    return SpeedEstimate(
        plain=plain,
        speculative=plain,
        explanation=f"{', '.join(pair.bases)}; {reason}",
        calibrated=pair.calibrated,
        costs=pair.costs,
        t1_ms=pair.t1_ms,
    )


def _plain_range(pair: _PairCosts) -> FloatRange:
    return pair.tokens_per_second * (1 - pair.error), pair.tokens_per_second * (1 + pair.error)


def _expect_drafting(pair: _PairCosts, workload: str, temperature: float) -> WorkloadSpeed:
    low, high = expected_acceptance.typical_rate(workload, temperature, pair.head_kind)
    probs = [
        expected_acceptance.uniform_prefix_probs(rate) for rate in (low, (low + high) / 2, high)
    ]
    return _expect_from_probs(pair, (low, high), probs)


def _expect_from_probs(
    pair: _PairCosts, acceptance_rate: FloatRange, prefix_probs: Sequence[Sequence[float]]
) -> WorkloadSpeed:
    """`prefix_probs`: the lowest, the middle and the highest."""
    lowest, middle, highest = prefix_probs
    low, high = _best_draft_speedup(pair, lowest), _best_draft_speedup(pair, highest)
    gamma = speedup_model.best_draft_length(pair.costs, middle[: pair.max_draft]).gamma
    error = pair.speedup_error if pair.max_draft else 0.0
    return _workload_speed(pair, acceptance_rate, ((low, error), (high, error)), gamma)


def _best_draft_speedup(pair: _PairCosts, prefix_probs: Sequence[float]) -> float:
    """The best speed-up of drafting in every round, even if plain decoding is faster."""
    lengths = range(1, min(pair.max_draft, len(prefix_probs)) + 1)
    return max(
        (speedup_model.expected_speedup(pair.costs, prefix_probs, n) for n in lengths), default=1.0
    )


def _expect_lookup(pair: _PairCosts, workload: str) -> WorkloadSpeed:
    """Prompt lookup speeds up the repeated share of the text, at no drafting cost."""
    shares = expected_acceptance.copied_share(workload)
    costs = SpeculationCosts(0.0, pair.costs.verify_curve, pair.costs.host)
    probs = expected_acceptance.uniform_prefix_probs(expected_acceptance.COPY_ACCEPTANCE)
    best = speedup_model.best_draft_length(costs, probs[: pair.max_draft])
    error = pair.speedup_error if best.gamma else 0.0
    low, high = ((1 / (1 - share + share / best.speedup), error * share) for share in shares)
    return _workload_speed(pair, shares, (low, high), best.gamma)


def _workload_speed(
    pair: _PairCosts, acceptance_rate: FloatRange, ends: tuple[FloatRange, FloatRange], gamma: int
) -> WorkloadSpeed:
    """`ends`: the lowest and the highest speed-up, each with its relative error.

    Never much slower than plain decoding, as the engine pauses speculation that does not help.
    """
    (low, low_error), (high, high_error) = ends
    tok_s, plain = pair.tokens_per_second, _plain_range(pair)
    slowest = max(tok_s * low * (1 - hypot(pair.error, low_error)), plain[0] * _WORST_SPEEDUP)
    fastest = max(tok_s * high * (1 + hypot(pair.error, high_error)), plain[1])
    speedup = max(low * (1 - low_error), _WORST_SPEEDUP), max(high * (1 + high_error), 1.0)
    return WorkloadSpeed(acceptance_rate, speedup, (slowest, fastest), gamma)
