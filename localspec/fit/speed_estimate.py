"""Tokens a second of a pair, before it runs: alone, and with its draft, as honest ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot

from localspec.fit import expected_acceptance, pass_cost, speedup_model
from localspec.fit import hparams as of_models
from localspec.fit.device_speed import CALIBRATED_ERROR, HardwareSpeed
from localspec.fit.expected_acceptance import FloatRange
from localspec.fit.pass_cost import PassReads
from localspec.fit.speedup_model import SpeculationCosts
from localspec.models import draft_heads
from localspec.models.gguf.header import Header
from localspec.protocol.wire import LoadCommand, MeasuredCosts

_HOST_MS = 0.8
"""What drafting adds to a round outside llama.cpp (docs/benchmarks.md)."""
_HOST_GREEDY_MS = 0.4
_SPEEDUP_ERROR_CALIBRATED = 0.10
"""How far a speed-up may be off where the verify curve was measured, and where it is the usual."""
_SPEEDUP_ERROR_TABLE = 0.20
_SPEEDUP_ERROR_CPU = 0.35
"""The usual curves of processors differ most."""
_DEFAULT_BLOCK_SIZE = 16
"""Rows of a block whose file does not say."""
_TYPICAL_BLOCK_ROWS = 6
"""Of a block, about as many as pay."""
_WORST_SPEEDUP = 0.97
"""Of plain decoding: where guesses do not pay they are given up, after a few tries."""


@dataclass(frozen=True, slots=True)
class UseCase:
    """What is asked of a pair."""

    workload: str = "chat"
    temperature: float = 0.8
    context: int = 1024
    """Tokens in it while answering."""


@dataclass(frozen=True, slots=True)
class WorkloadSpeed:
    """What speculation does for one kind of text."""

    acceptance_rate: FloatRange
    """Share of guesses that stand; without a draft, of the text that is copied."""
    speedup: FloatRange
    tokens_per_second: FloatRange
    """A second."""
    gamma: int
    """The draft length that is fastest between the two ends."""


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """Tokens a second; None where something that decides on them is unknown, which `why` says."""

    plain: FloatRange | None = None
    speculative: FloatRange | None = None
    best_gamma: int = 0
    by_workload: Mapping[str, WorkloadSpeed] = field(default_factory=dict)
    explanation: str = ""
    calibrated: bool = False
    """It rests on passes measured on this machine."""
    costs: SpeculationCosts | None = None
    """In one-token passes of the target."""
    t1_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _PairCosts:
    """Target and draft as read, and what their passes cost."""

    target: PassReads
    draft: PassReads | None
    t1_ms: float
    error: float
    """Of t1."""
    speedup_error: float
    costs: SpeculationCosts
    max_draft: int
    """Of a draft."""
    calibrated: bool
    bases: tuple[str, ...]
    head_kind: str = ""
    """What kind of head drafts, if one does."""

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
    """How fast the pair would be with these settings, `load.measured` included if it is known."""
    use = use or UseCase()
    for header in (target, draft):
        if header is not None and not pass_cost.has_all_tensors(header):
            return SpeedEstimate(
                explanation="the model is in parts, of which only the first was read"
            )
    read = pass_cost.count_reads(target, load.target_settings, hardware.devices, use.context)
    drafts, head = None, ""
    if draft is not None:
        head = draft_heads.draft_kind_for_target(target, draft).replace("model", "")
        drafts = _draft_reads(load, (target, draft), head, hardware, use)
    for one in filter(None, (read, drafts)):
        if why := pass_cost.explain_unknown(one, hardware):
            return SpeedEstimate(explanation=why)
    pair = _estimate_costs(load, read, drafts, hardware, use)
    if head and draft is not None:
        pair = _with_head_costs(pair, head, draft, hardware)
    facts = of_models.from_header(target)
    if facts.has_recurrent_state and not facts.can_rollback:
        return _plain_only(pair, "its memory cannot take back a wrong guess")
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
    """A chain costs a pass for each guess, a block one for all of them."""
    pair = replace(pair, head_kind=head_kind)
    if head_kind not in ("dflash", "dspark") or pair.draft is None:
        return pair
    longest = min(pair.max_draft, max(1, header.hparam("block_size", _DEFAULT_BLOCK_SIZE) - 1))
    wide = pass_cost.estimate_ms(
        pair.draft, hardware, min(longest, _TYPICAL_BLOCK_ROWS)
    ) / pass_cost.estimate_ms(pair.draft, hardware)
    costs = SpeculationCosts(0.0, pair.costs.verify_curve, pair.costs.host + pair.costs.c * wide)
    return replace(pair, max_draft=longest, costs=costs)


# --- costs ------------------------------------------------------------------------------


def _estimate_costs(
    load: LoadCommand,
    target: PassReads,
    draft: PassReads | None,
    hardware: HardwareSpeed,
    use: UseCase,
) -> _PairCosts:
    """By what others let expect, unless this very pair has shown it."""
    rates = {name: pass_cost.find_speed(target, name, hardware) for name in target.devices}
    curves = all(rate.verify_curve and rate.measured for rate in rates.values())
    usual = (
        _SPEEDUP_ERROR_CPU
        if any(rate.kind == "cpu" for rate in rates.values())
        else _SPEEDUP_ERROR_TABLE
    )
    host = _HOST_MS if use.temperature > 0 else _HOST_GREEDY_MS
    t1 = pass_cost.estimate_ms(target, hardware)
    c = pass_cost.estimate_ms(draft, hardware) / t1 if draft else 0.0
    curve = pass_cost.estimate_verify_curve(target, hardware, load.draft_max + 1)
    pair = _PairCosts(
        target=target,
        draft=draft,
        t1_ms=t1,
        error=pass_cost.relative_error(target, hardware),
        speedup_error=_SPEEDUP_ERROR_CALIBRATED if curves else usual,
        costs=SpeculationCosts(c, curve, host / t1),
        max_draft=load.draft_max,
        calibrated=all(rate.measured for rate in rates.values()),
        bases=tuple(f"{name}: {rate.basis}" for name, rate in rates.items()),
    )
    known = load.measured
    return (
        pair
        if known is None or known.t1_ms <= 0
        else _with_measured_costs(pair, known, hardware, host)
    )


def _with_measured_costs(
    pair: _PairCosts, known: MeasuredCosts, hardware: HardwareSpeed, host_ms: float
) -> _PairCosts:
    """With its own passes; they were measured with little in the context."""
    t1 = known.t1_ms + pass_cost.estimate_context_ms(pair.target, hardware)
    c = pair.costs.c
    if pair.draft and known.c is not None:
        c = (known.c * known.t1_ms + pass_cost.estimate_context_ms(pair.draft, hardware)) / t1
    curve = _verify_curve_with_context(known, pair.target, hardware) or pair.costs.verify_curve
    return replace(
        pair,
        t1_ms=t1,
        error=CALIBRATED_ERROR,
        speedup_error=_SPEEDUP_ERROR_CALIBRATED,
        costs=SpeculationCosts(c, curve, host_ms / t1),
        calibrated=True,
        bases=("this pair's own passes here",),
    )


def _verify_curve_with_context(
    known: MeasuredCosts, target: PassReads, hardware: HardwareSpeed
) -> dict[int, float]:
    """A verify curve that was measured with little in the context, with more of it."""
    alone, one = known.t1_ms, pass_cost.estimate_context_ms(target, hardware)
    return {
        width: (v * alone + pass_cost.estimate_context_ms(target, hardware, width)) / (alone + one)
        for width, v in ((int(text), v) for text, v in known.curve.items())
    }


# --- gains ------------------------------------------------------------------------------


def _estimate_pair_speed(
    known: MeasuredCosts | None, pair: _PairCosts, use: UseCase
) -> SpeedEstimate:
    expected = {
        name: (_expect_drafting if pair.draft else _expect_lookup)(pair, name, use.temperature)
        for name in expected_acceptance.WORKLOADS
    }
    this = expected.get(use.workload, expected["chat"])
    guesses = f"guesses as is usual for {use.workload}"
    if pair.head_kind:
        name = draft_heads.KIND_TITLES[pair.head_kind]
        guesses = f"guesses kept as others report of {name} heads for {use.workload}"
    shares = expected_acceptance.measured_rates(known, use.temperature) if pair.draft else []
    if shares:
        low, high = expected_acceptance.prefix_probs_range(shares)
        this = _expect_from_probs(
            pair, (shares[0], shares[0]), (low, expected_acceptance.prefix_probs(shares), high)
        )
        guesses = f"{shares[0]:.0%} of first guesses kept in its answers here"
    elif not pair.draft:
        guesses = "copying what the text repeats, as is usual"
    return SpeedEstimate(
        plain=_plain_range(pair),
        speculative=this.tokens_per_second,
        best_gamma=this.gamma,
        by_workload=expected,
        explanation=f"{', '.join(pair.bases)}; {guesses}",
        calibrated=pair.calibrated,
        costs=pair.costs,
        t1_ms=pair.t1_ms,
    )


def _plain_only(pair: _PairCosts, why: str) -> SpeedEstimate:
    plain = _plain_range(pair)
    return SpeedEstimate(
        plain=plain,
        speculative=plain,
        explanation=f"{', '.join(pair.bases)}; {why}",
        calibrated=pair.calibrated,
        costs=pair.costs,
        t1_ms=pair.t1_ms,
    )


def _plain_range(pair: _PairCosts) -> FloatRange:
    return pair.tokens_per_second * (1 - pair.error), pair.tokens_per_second * (1 + pair.error)


def _expect_drafting(pair: _PairCosts, workload: str, temperature: float) -> WorkloadSpeed:
    low, high = expected_acceptance.typical_rate(workload, temperature, pair.head_kind)
    chances = (low, (low + high) / 2, high)
    return _expect_from_probs(
        pair, (low, high), tuple(expected_acceptance.uniform_prefix_probs(one) for one in chances)
    )


def _expect_from_probs(
    pair: _PairCosts, acceptance_rate: FloatRange, prefix_probs: Sequence[Sequence[float]]
) -> WorkloadSpeed:
    """With the least, the middle and the most chances that guesses stand."""
    least, middle, most = prefix_probs
    low, high = _best_draft_speedup(pair, least), _best_draft_speedup(pair, most)
    gamma = speedup_model.best_draft_length(pair.costs, middle[: pair.max_draft]).gamma
    off = pair.speedup_error if pair.max_draft else 0.0
    return _workload_speed(pair, acceptance_rate, ((low, off), (high, off)), gamma)


def _best_draft_speedup(pair: _PairCosts, prefix_probs: Sequence[float]) -> float:
    """The best speed-up of drafting in every round, even where plain decoding is faster."""
    lengths = range(1, min(pair.max_draft, len(prefix_probs)) + 1)
    return max(
        (speedup_model.expected_speedup(pair.costs, prefix_probs, n) for n in lengths), default=1.0
    )


def _expect_lookup(pair: _PairCosts, workload: str, _: float) -> WorkloadSpeed:
    """What repeats is copied for nothing; the rest comes as if nothing were guessed."""
    shares = expected_acceptance.copied_share(workload)
    free = SpeculationCosts(0.0, pair.costs.verify_curve, pair.costs.host)
    best = speedup_model.best_draft_length(
        free,
        expected_acceptance.uniform_prefix_probs(expected_acceptance.COPY_ACCEPTANCE)[
            : pair.max_draft
        ],
    )
    off = pair.speedup_error if best.gamma else 0.0
    low, high = ((1 / (1 - one + one / best.speedup), off * one) for one in shares)
    return _workload_speed(pair, shares, (low, high), best.gamma)


def _workload_speed(
    pair: _PairCosts, acceptance_rate: FloatRange, ends: tuple[FloatRange, FloatRange], gamma: int
) -> WorkloadSpeed:
    """From the least and the most speed-up, each with its own error; plain decoding's error joins.

    Where drafting does not pay it is given up: no slower than plain, but for the tries.
    """
    (low, off_low), (high, off_high) = ends
    plain = _plain_range(pair)
    least = max(
        pair.tokens_per_second * low * (1 - hypot(pair.error, off_low)), plain[0] * _WORST_SPEEDUP
    )
    most = max(pair.tokens_per_second * high * (1 + hypot(pair.error, off_high)), plain[1])
    gained = max(low * (1 - off_low), _WORST_SPEEDUP), max(high * (1 + off_high), 1.0)
    return WorkloadSpeed(acceptance_rate, gained, (least, most), gamma)
