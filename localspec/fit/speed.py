"""Tokens a second of a pair, before it runs: alone, and with its draft, as honest ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import hypot

from localspec.fit import acceptance, gain, passes, reading
from localspec.fit import facts as of_models
from localspec.fit.acceptance import Range
from localspec.fit.gain import Costs
from localspec.fit.hardware import CALIBRATED, Hardware
from localspec.fit.reading import Reading
from localspec.models import heads
from localspec.models.header import Header
from localspec.protocol.wire import Load, Measured

_HOST_MS = 0.8
"""What drafting adds to a round outside llama.cpp (docs/benchmarks.md)."""
_HOST_GREEDY_MS = 0.4
_GAIN_CALIBRATED = 0.10
"""How far a speed-up may be off where the verify curve was measured, and where it is the usual."""
_GAIN_TABLE = 0.20
_GAIN_CPU = 0.35
"""The usual curves of processors differ most."""
_BLOCK = 16
"""Rows of a block whose file does not say."""
_ROWS = 6
"""Of a block, about as many as pay."""
_AT_WORST = 0.97
"""Of plain decoding: where guesses do not pay they are given up, after a few tries."""


@dataclass(frozen=True, slots=True)
class Use:
    """What is asked of a pair."""

    workload: str = "chat"
    temperature: float = 0.8
    context: int = 1024
    """Tokens in it while answering."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What speculation does for one kind of text."""

    kept: Range
    """Share of guesses that stand; without a draft, of the text that is copied."""
    speedup: Range
    tokens: Range
    """A second."""
    gamma: int
    """The draft length that is fastest between the two ends."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Tokens a second; None where something that decides on them is unknown, which `why` says."""

    plain: Range | None = None
    speculative: Range | None = None
    best_gamma: int = 0
    by_workload: Mapping[str, Expected] = field(default_factory=dict)
    why: str = ""
    calibrated: bool = False
    """It rests on passes measured on this machine."""
    costs: Costs | None = None
    """In one-token passes of the target."""
    t1_ms: float | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Target and draft as read, and what their passes cost."""

    target: Reading
    draft: Reading | None
    t1_ms: float
    error: float
    """Of t1."""
    gain_error: float
    costs: Costs
    longest: int
    """Of a draft."""
    calibrated: bool
    bases: tuple[str, ...]
    head: str = ""
    """What kind of head drafts, if one does."""

    @property
    def rate(self) -> float:
        return 1e3 / self.t1_ms


def speed(
    load: Load, target: Header, draft: Header | None, hardware: Hardware, use: Use | None = None
) -> Speed:
    """How fast the pair would be with these settings, `load.measured` included if it is known."""
    use = use or Use()
    for header in (target, draft):
        if header is not None and not reading.complete(header):
            return Speed(why="the model is in parts, of which only the first was read")
    read = reading.read(target, load.target_settings, hardware.devices, use.context)
    drafts, head = None, ""
    if draft is not None:
        head = heads.drafting(target, draft).replace("model", "")
        drafts = _draft(load, (target, draft), head, hardware, use)
    for one in filter(None, (read, drafts)):
        if why := passes.unknown(one, hardware):
            return Speed(why=why)
    pair = _priced(load, read, drafts, hardware, use)
    if head and draft is not None:
        pair = _of_head(pair, head, draft, hardware)
    facts = of_models.of(target)
    if facts.keeps_state and not facts.rolls_back:
        return _alone(pair, "its memory cannot take back a wrong guess")
    return _judged(load.measured, pair, use)


def _draft(
    load: Load, headers: tuple[Header, Header], head: str, hardware: Hardware, use: Use
) -> Reading:
    settings, devices = load.draft_settings, hardware.devices
    if head:
        return reading.read_head(headers, head, settings, devices, use.context)
    return reading.read(headers[1], settings, devices, use.context)


def _of_head(pair: _Pair, head: str, header: Header, hardware: Hardware) -> _Pair:
    """A chain costs a pass for each guess, a block one for all of them."""
    pair = replace(pair, head=head)
    if head not in ("dflash", "dspark") or pair.draft is None:
        return pair
    longest = min(pair.longest, max(1, header.number("block_size", _BLOCK) - 1))
    wide = passes.ms(pair.draft, hardware, min(longest, _ROWS)) / passes.ms(pair.draft, hardware)
    costs = Costs(0.0, pair.costs.verify, pair.costs.host + pair.costs.c * wide)
    return replace(pair, longest=longest, costs=costs)


# --- costs ------------------------------------------------------------------------------


def _priced(
    load: Load, target: Reading, draft: Reading | None, hardware: Hardware, use: Use
) -> _Pair:
    """By what others let expect, unless this very pair has shown it."""
    rates = {name: passes.rate(target, name, hardware) for name in target.devices}
    curves = all(rate.curve and rate.measured for rate in rates.values())
    usual = _GAIN_CPU if any(rate.kind == "cpu" for rate in rates.values()) else _GAIN_TABLE
    host = _HOST_MS if use.temperature > 0 else _HOST_GREEDY_MS
    t1 = passes.ms(target, hardware)
    c = passes.ms(draft, hardware) / t1 if draft else 0.0
    curve = passes.curve(target, hardware, load.draft_max + 1)
    pair = _Pair(
        target=target,
        draft=draft,
        t1_ms=t1,
        error=passes.error(target, hardware),
        gain_error=_GAIN_CALIBRATED if curves else usual,
        costs=Costs(c, curve, host / t1),
        longest=load.draft_max,
        calibrated=all(rate.measured for rate in rates.values()),
        bases=tuple(f"{name}: {rate.basis}" for name, rate in rates.items()),
    )
    known = load.measured
    return pair if known is None or known.t1_ms <= 0 else _shown(pair, known, hardware, host)


def _shown(pair: _Pair, known: Measured, hardware: Hardware, host_ms: float) -> _Pair:
    """With its own passes; they were measured with little in the context."""
    t1 = known.t1_ms + passes.context_ms(pair.target, hardware)
    c = pair.costs.c
    if pair.draft and known.c is not None:
        c = (known.c * known.t1_ms + passes.context_ms(pair.draft, hardware)) / t1
    curve = _with_context(known, pair.target, hardware) or pair.costs.verify
    return replace(
        pair,
        t1_ms=t1,
        error=CALIBRATED,
        gain_error=_GAIN_CALIBRATED,
        costs=Costs(c, curve, host_ms / t1),
        calibrated=True,
        bases=("this pair's own passes here",),
    )


def _with_context(known: Measured, target: Reading, hardware: Hardware) -> dict[int, float]:
    """A verify curve that was measured with little in the context, with more of it."""
    alone, one = known.t1_ms, passes.context_ms(target, hardware)
    return {
        width: (v * alone + passes.context_ms(target, hardware, width)) / (alone + one)
        for width, v in ((int(text), v) for text, v in known.curve.items())
    }


# --- gains ------------------------------------------------------------------------------


def _judged(known: Measured | None, pair: _Pair, use: Use) -> Speed:
    expected = {
        name: (_drafted if pair.draft else _copied)(pair, name, use.temperature)
        for name in acceptance.WORKLOADS
    }
    this = expected.get(use.workload, expected["chat"])
    guesses = f"guesses as is usual for {use.workload}"
    if pair.head:
        name = heads.NAMES[pair.head]
        guesses = f"guesses kept as others report of {name} heads for {use.workload}"
    shares = acceptance.counted(known, use.temperature) if pair.draft else []
    if shares:
        low, high = acceptance.around(shares)
        this = _expected(pair, (shares[0], shares[0]), (low, acceptance.chances(shares), high))
        guesses = f"{shares[0]:.0%} of first guesses kept in its answers here"
    elif not pair.draft:
        guesses = "copying what the text repeats, as is usual"
    return Speed(
        plain=_plain(pair),
        speculative=this.tokens,
        best_gamma=this.gamma,
        by_workload=expected,
        why=f"{', '.join(pair.bases)}; {guesses}",
        calibrated=pair.calibrated,
        costs=pair.costs,
        t1_ms=pair.t1_ms,
    )


def _alone(pair: _Pair, why: str) -> Speed:
    plain = _plain(pair)
    return Speed(
        plain=plain,
        speculative=plain,
        why=f"{', '.join(pair.bases)}; {why}",
        calibrated=pair.calibrated,
        costs=pair.costs,
        t1_ms=pair.t1_ms,
    )


def _plain(pair: _Pair) -> Range:
    return pair.rate * (1 - pair.error), pair.rate * (1 + pair.error)


def _drafted(pair: _Pair, workload: str, temperature: float) -> Expected:
    low, high = acceptance.usual(workload, temperature, pair.head)
    chances = (low, (low + high) / 2, high)
    return _expected(pair, (low, high), tuple(acceptance.stands(one) for one in chances))


def _expected(pair: _Pair, kept: Range, chances: Sequence[Sequence[float]]) -> Expected:
    """With the least, the middle and the most chances that guesses stand."""
    least, middle, most = chances
    low, high = _drafting(pair, least), _drafting(pair, most)
    gamma = gain.best(pair.costs, middle[: pair.longest]).gamma
    off = pair.gain_error if pair.longest else 0.0
    return _ranged(pair, kept, ((low, off), (high, off)), gamma)


def _drafting(pair: _Pair, chances: Sequence[float]) -> float:
    """The best speed-up of drafting in every round, even where plain decoding is faster."""
    lengths = range(1, min(pair.longest, len(chances)) + 1)
    return max((gain.speedup(pair.costs, chances, n) for n in lengths), default=1.0)


def _copied(pair: _Pair, workload: str, _: float) -> Expected:
    """What repeats is copied for nothing; the rest comes as if nothing were guessed."""
    shares = acceptance.copied(workload)
    free = Costs(0.0, pair.costs.verify, pair.costs.host)
    best = gain.best(free, acceptance.stands(acceptance.COPY_STANDS)[: pair.longest])
    off = pair.gain_error if best.gamma else 0.0
    low, high = ((1 / (1 - one + one / best.speedup), off * one) for one in shares)
    return _ranged(pair, shares, (low, high), best.gamma)


def _ranged(pair: _Pair, kept: Range, ends: tuple[Range, Range], gamma: int) -> Expected:
    """From the least and the most speed-up, each with its own error; plain decoding's error joins.

    Where drafting does not pay it is given up: no slower than plain, but for the tries.
    """
    (low, off_low), (high, off_high) = ends
    plain = _plain(pair)
    least = max(pair.rate * low * (1 - hypot(pair.error, off_low)), plain[0] * _AT_WORST)
    most = max(pair.rate * high * (1 + hypot(pair.error, off_high)), plain[1])
    gained = max(low * (1 - off_low), _AT_WORST), max(high * (1 + off_high), 1.0)
    return Expected(kept, gained, (least, most), gamma)
