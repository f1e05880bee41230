"""What a check for losslessness found, folded into a verdict and a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from localspec.bench.answer_comparison import ComparisonTotals, Divergence, PromptComparison
from localspec.bench.sampling_check import DETECTION_POWER, SIGNIFICANCE_LEVEL, TokenSample
from localspec.protocol.events import EngineReady, Token
from localspec.protocol.wire import VerifyMode
from localspec.sanitize import sanitize
from localspec.units import percent

VERIFY_MODES: tuple[VerifyMode, ...] = ("coupled", "rejection", "block")
"""The ways of verifying that are sampled."""
NEAR_TIE_FACTOR = 4
"""A near-tie is at most so many times as wide as passes of different widths disagree."""

VerifyPart = Literal["widths", "greedy", "seeded", "sampled"]
LosslessVerdict = Literal["lossless", "near-ties", "divergent"]


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """What comes next, or how far it is."""

    part: VerifyPart
    message: str
    share: float = 0.0
    """Of the part that is done."""
    verify: VerifyMode | None = None
    """Which way of verifying is sampled."""


@dataclass(frozen=True, slots=True)
class WidthDifference:
    """How far passes of different widths move a logit here."""

    difference: float


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """One prompt was compared: greedy, or seeded."""

    part: VerifyPart
    comparison: PromptComparison


@dataclass(frozen=True, slots=True)
class SampleResult:
    """One way of verifying was sampled: as far as it goes by now."""

    sample: TokenSample


VerifyEvent = VerifyProgress | WidthDifference | ComparisonResult | SampleResult


@dataclass
class VerifyReport:
    """Findings, folded."""

    difference: float | None = None
    greedy: ComparisonTotals = field(default_factory=ComparisonTotals)
    seeded: ComparisonTotals = field(default_factory=ComparisonTotals)
    samples: dict[VerifyMode, TokenSample] = field(default_factory=dict)
    is_complete: bool = False
    """Whether nothing was left out."""

    def add(self, event: VerifyEvent) -> None:
        if isinstance(event, WidthDifference):
            self.difference = event.difference
        elif isinstance(event, ComparisonResult):
            (self.greedy if event.part == "greedy" else self.seeded).add(event.comparison)
        elif isinstance(event, SampleResult):
            self.samples[event.sample.verify] = event.sample

    @property
    def near_tie_limit(self) -> float:
        """The widest near-tie, in logits."""
        return NEAR_TIE_FACTOR * (self.difference or 0.0)

    @property
    def divergences(self) -> list[Divergence]:
        return self.greedy.divergences + self.seeded.divergences

    @property
    def drafted(self) -> int:
        """Guesses that were looked at."""
        sampled = sum(sample.drafted for sample in self.samples.values())
        return self.greedy.drafted + self.seeded.drafted + sampled

    @property
    def verdict(self) -> LosslessVerdict | None:
        """None where it is not whole, and nothing was found so far."""
        explained = all(each.is_near_tie(self.near_tie_limit) for each in self.divergences)
        bent = any(sample.is_rejected(len(VERIFY_MODES)) for sample in self._decisive_samples())
        if not explained or bent:
            return "divergent"
        if not self.is_complete:
            return None
        return "near-ties" if self.divergences else "lossless"

    def _decisive_samples(self) -> Iterable[TokenSample]:
        """A first alarm of a test is confirmed before it counts; an impossible token counts."""
        return (s for s in self.samples.values() if s.is_confirmation or s.impossible)

    def to_json(self) -> dict[str, Any]:
        """As JSON; docs/json.md describes it."""
        return {
            "verdict": self.verdict,
            "difference": self.difference,
            "limit": None if self.difference is None else self.near_tie_limit,
            "guesses": self.drafted,
            "greedy": self._totals_to_json(self.greedy),
            "seeded": self._totals_to_json(self.seeded),
            "sampled": _samples_to_json(list(self.samples.values())),
            "whole": self.is_complete,
        }

    def _totals_to_json(self, totals: ComparisonTotals) -> dict[str, Any]:
        divergences = [self._divergence_to_json(each) for each in totals.divergences]
        return asdict(totals) | {"divergences": divergences}

    def _divergence_to_json(self, divergence: Divergence) -> dict[str, Any]:
        return {
            "prompt": divergence.prompt,
            "spec": divergence.variant.spec,
            "draft_length": divergence.variant.draft_length,
            "position": divergence.position,
            "margin": divergence.margin,
            "width": divergence.width,
            "replayed": divergence.replayed,
            "near_tie": divergence.is_near_tie(self.near_tie_limit),
            "plain": _token_to_json(divergence.plain),
            "speculative": _token_to_json(divergence.speculative),
        }


def _token_to_json(token: Token | None) -> dict[str, Any] | None:
    return None if token is None else {"id": token.id, "text": token.text}


def _samples_to_json(samples: list[TokenSample]) -> dict[str, Any]:
    known = [sample.p_value for sample in samples if sample.p_value is not None]
    shifts = [
        shift
        for sample in samples
        if (shift := sample.detectable_shift(len(VERIFY_MODES))) is not None
    ]
    return {
        "test": "chi-square of the probability integral transform",
        "p": min(1.0, min(known) * len(known)) if known else None,
        "level": SIGNIFICANCE_LEVEL,
        "power": {"shift": max(shifts), "probability": DETECTION_POWER} if shifts else None,
        "modes": [_sample_to_json(sample) for sample in samples],
    }


def _sample_to_json(sample: TokenSample) -> dict[str, Any]:
    return {
        "verify": sample.verify,
        "tokens": sample.tokens,
        "drafted": sample.drafted,
        "accepted": sample.accepted,
        "impossible": sample.impossible,
        "bins": sample.bins,
        "p": sample.p_value,
        "shift": sample.detectable_shift(len(VERIFY_MODES)),
        "again": sample.is_confirmation,
    }


# --- What `verify` found, in words.

_MAX_DIVERGENCES_SHOWN = 12
"""Divergences that are told one by one."""
NOTHING_DRAFTED = "Nothing was guessed, so there was nothing to go wrong: this model runs plain."
_VERDICT_TEXT = {
    "lossless": "lossless here. Speculating gave plain decoding's own tokens, every one.",
    "near-ties": "near-ties here. Some answers differ, and only where two tokens were as good as "
    "equal:\na pass over several tokens rounds otherwise than a pass over one. Nothing is wrong.",
    "divergent": "DIVERGENT here. Speculating changed what the model says, and rounding does not "
    "explain it.\nPlease report this, with the output of --json; --spec off is safe.",
    None: "not finished. Nothing wrong was found so far.",
}


def format_report(report: VerifyReport, ready: EngineReady) -> Iterator[str]:
    """The whole of it as text."""
    pair = ready.model + (f" with {ready.draft}" if ready.draft else " without a draft model")
    yield f"{sanitize(pair, multiline=False)}: {_VERDICT_TEXT[report.verdict]}"
    if report.is_complete and not report.drafted:
        yield NOTHING_DRAFTED
    yield ""
    for name, what in format_rows(report):
        yield f"{name:<14} {what}"
    if report.divergences:
        yield ""
    yield from format_divergences(report)


def report_to_json(report: VerifyReport, ready: EngineReady) -> dict[str, Any]:
    """`verify --json`, described in docs/json.md."""
    return {"schema": 1, "model": ready.model, "draft": ready.draft} | report.to_json()


def format_rows(report: VerifyReport) -> Iterator[tuple[str, str]]:
    """Each part that was looked at, by its name, and what was found."""
    yield "rounding", _format_width_difference(report)
    yield "temperature 0", _format_totals(report.greedy)
    yield "same seed", _format_totals(report.seeded)
    for sample in report.samples.values():
        yield sample.verify, _format_sample(sample)


def format_divergences(report: VerifyReport) -> Iterator[str]:
    """The first of them, one by one."""
    for each in report.divergences[:_MAX_DIVERGENCES_SHOWN]:
        yield _format_divergence(each, report.near_tie_limit)
    if len(report.divergences) > _MAX_DIVERGENCES_SHOWN:
        yield f"… and {len(report.divergences) - _MAX_DIVERGENCES_SHOWN} more; the JSON has all."


def _format_width_difference(report: VerifyReport) -> str:
    if report.difference is None:
        return "not measured"
    if not report.difference:
        return "passes over 1 to 8 tokens agree to the last bit"
    return (
        f"passes over 1 to 8 tokens move a logit by up to {report.difference:.2g}; "
        f"up to {report.near_tie_limit:.2g} counts as a near-tie"
    )


def _format_totals(totals: ComparisonTotals) -> str:
    if not totals.answers:
        return "not compared"
    different = len(totals.divergences)
    same = "all as plain" if not different else f"{different} differ from plain"
    return f"{totals.prompts} prompts, {totals.answers} answers, {totals.tokens:,} tokens: {same}"


def _format_sample(sample: TokenSample) -> str:
    kept = percent(sample.accepted / sample.drafted) if sample.drafted else "none"
    what = f"{sample.tokens:,} tokens, {kept} of guesses kept: "
    shift = sample.detectable_shift(len(VERIFY_MODES))
    if sample.impossible:
        what += f"{sample.impossible} that the model would never say"
    elif sample.p_value is None or shift is None:
        what += "too few for a test"
    elif sample.is_rejected(len(VERIFY_MODES)):
        what += f"not the model's own distribution (p = {sample.p_value:.1g}, twice)"
    else:
        what += f"the model's own distribution (p = {sample.p_value:.2g}; "
        what += f"a shift of {percent(shift)} would have shown)"
    return what


def _format_divergence(divergence: Divergence, limit: float) -> str:
    way = divergence.variant.spec + (
        f", {divergence.variant.draft_length} guesses" if divergence.variant.draft_length else ""
    )
    what = (
        f"prompt {divergence.prompt + 1}, token {divergence.position + 1} ({way}): "
        f"{_quote_token(divergence.speculative)} instead of {_quote_token(divergence.plain)}, "
        f"in a pass over {divergence.width}; "
    )
    if not divergence.replayed:
        return what + "the same passes without guessing do not say so. A bug."
    if divergence.margin is None:
        return what + "one answer ends where the other goes on. A bug."
    what += f"they were {divergence.margin:.2g} apart: "
    if divergence.is_near_tie(limit):
        return what + "a near-tie."
    return what + f"more than {NEAR_TIE_FACTOR} times what rounding moves. A bug."


def _quote_token(token: Token | None) -> str:
    """The token as a Python string: control characters and line ends show."""
    return "nothing" if token is None else repr(token.text) if token.text else f"#{token.id}"
