"""Collects the results of a losslessness check: verdict, JSON and text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, field
from typing import Any, Literal

from localspec.bench.answer_comparison import ComparisonTotals, Divergence, PromptComparison
from localspec.bench.sampling_check import DETECTION_POWER, SIGNIFICANCE_LEVEL, TokenSample
from localspec.lazy_dataclass import dataclass
from localspec.protocol.events import EngineReady, Token
from localspec.protocol.wire import VerifyMode
from localspec.sanitize import sanitize
from localspec.units import count, percent

LONG_PROMPT_INDEX = 1  # The prompt of more than 600 tokens, among those that are compared.
NEAR_TIE_FACTOR = 4
"""A near-tie is at most this many times the rounding difference between pass widths."""

LosslessVerdict = Literal["lossless", "near-ties", "divergent"]


@dataclass(frozen=True, slots=True)
class WidthDifference:
    """Largest difference of a logit between passes of different widths."""

    difference: float
    long_difference: float | None = None
    """That after 640 tokens of context; None if it was not measured."""


VerifyFinding = WidthDifference | PromptComparison | TokenSample


@dataclass
class VerifyReport:
    difference: float | None = None
    long_difference: float | None = None
    greedy: ComparisonTotals = field(default_factory=ComparisonTotals)
    seeded: ComparisonTotals = field(default_factory=ComparisonTotals)
    samples: dict[VerifyMode, TokenSample] = field(default_factory=dict)
    is_complete: bool = False  # All parts have run to their end.

    def add(self, event: VerifyFinding) -> None:
        if isinstance(event, WidthDifference):
            self.difference, self.long_difference = event.difference, event.long_difference
        elif isinstance(event, PromptComparison):
            (self.greedy if event.part == "greedy" else self.seeded).add(event)
        else:
            self.samples[event.verify] = event

    @property
    def near_tie_limit(self) -> float:
        """The widest near-tie in a short context, in logits."""
        return NEAR_TIE_FACTOR * (self.difference or 0.0)

    def is_near_tie(self, divergence: Divergence) -> bool:
        """Whether rounding explains the difference, in a context of that length."""
        limit = self.near_tie_limit
        if divergence.prompt == LONG_PROMPT_INDEX:
            limit = max(limit, NEAR_TIE_FACTOR * (self.long_difference or 0.0))
        return divergence.is_near_tie(limit)

    @property
    def divergences(self) -> list[Divergence]:
        return self.greedy.divergences + self.seeded.divergences

    @property
    def drafted(self) -> int:
        sampled = sum(sample.totals.drafted for sample in list(self.samples.values()))
        return self.greedy.drafted + self.seeded.drafted + sampled

    @property
    def verdict(self) -> LosslessVerdict | None:
        """None if the check is not complete and has found nothing wrong so far."""
        explained = all(self.is_near_tie(each) for each in self.divergences)
        # A first rejection needs confirmation; an impossible token does not.
        decisive = [s for s in list(self.samples.values()) if s.is_confirmation or s.impossible]
        if not explained or any(sample.is_rejected for sample in decisive):
            return "divergent"
        if not self.is_complete:
            return None
        return "near-ties" if self.divergences else "lossless"

    def to_json(self) -> dict[str, Any]:
        """Described in docs/json.md."""
        return {
            "verdict": self.verdict,
            "difference": self.difference,
            "long_difference": self.long_difference,
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
        body = asdict(divergence)
        variant: dict[str, Any] = body.pop("variant")
        return variant | {
            **body,
            "near_tie": self.is_near_tie(divergence),
            "plain": _token_to_json(divergence.plain),
            "speculative": _token_to_json(divergence.speculative),
        }


def _token_to_json(token: Token | None) -> dict[str, Any] | None:
    return None if token is None else {"id": token.id, "text": token.text}


def _samples_to_json(samples: list[TokenSample]) -> dict[str, Any]:
    p_values = [sample.p_value for sample in samples if sample.p_value is not None]
    shifts = [shift for sample in samples if (shift := sample.detectable_shift) is not None]
    return {
        "test": "chi-square of the probability integral transform",
        "p": min(1.0, min(p_values) * len(p_values)) if p_values else None,
        "level": SIGNIFICANCE_LEVEL,
        "power": {"shift": max(shifts), "probability": DETECTION_POWER} if shifts else None,
        "modes": [_sample_to_json(sample) for sample in samples],
    }


def _sample_to_json(sample: TokenSample) -> dict[str, Any]:
    return {
        "verify": sample.verify,
        "tokens": sample.tokens,
        "drafted": sample.totals.drafted,
        "accepted": sample.totals.accepted,
        "impossible": sample.impossible,
        "bins": sample.bins,
        "p": sample.p_value,
        "shift": sample.detectable_shift,
        "again": sample.is_confirmation,
    }


# --- The report as text.

_MAX_DIVERGENCES_SHOWN = 12
_WIDTH = 77
_NOT_MEASURED, _NOT_COMPARED = "not measured", "not compared"
_VERDICT_TEXTS: dict[LosslessVerdict | None, tuple[str, str]] = {
    "lossless": (
        "No differences",
        "The model writes the same with speculation as without: all compared answers are "
        "identical, token by token.",
    ),
    "near-ties": (
        "Near-ties only",
        "Some answers differ, but only where two tokens were almost equally probable: a pass "
        "over several tokens rounds differently from a pass over one. This is not an error: the "
        "distribution is the same. On a CPU exact mode (--exact on) makes attention round alike; "
        "weights of many types still round by width.",
    ),
    "divergent": (
        "DIFFERS",
        "Speculation changed the model's output, and rounding does not explain it. Without "
        "speculation (/spec off, --spec off) output is safe. Please report this with the JSON: "
        "--json prints it, j copies it.",
    ),
    None: ("Not finished", "No problem found so far."),
}


def format_report(
    report: VerifyReport, ready: EngineReady, *, is_final: bool = True
) -> Iterator[str]:
    """Before the end without a verdict, and without the parts that have not begun."""
    pair = sanitize(ready.model + (f" with {ready.draft}" if ready.draft else ", no draft model"))
    label, meaning = _VERDICT_TEXTS[report.verdict]
    if report.is_complete and not report.drafted:
        meaning = "No tokens were drafted, so nothing was verified: this model runs plain."
    if is_final:
        yield f"{pair}: {label}"
        yield from textwrap.wrap(meaning, _WIDTH)
    else:
        yield pair
    yield ""
    rows: dict[str, str] = {
        "rounding": _format_width_difference(report),
        "temperature 0": _format_totals(report.greedy),
        "same seed": _format_totals(report.seeded),
        **{each.verify: _format_sample(each) for each in list(report.samples.values())},
    }
    for name, result in rows.items():
        if is_final or result not in (_NOT_MEASURED, _NOT_COMPARED):
            yield from textwrap.wrap(f"{name:<14} {result}", _WIDTH, subsequent_indent=" " * 15)
    if report.divergences:
        yield ""
    for divergence in report.divergences[:_MAX_DIVERGENCES_SHOWN]:
        line = _format_divergence(divergence, is_near_tie=report.is_near_tie(divergence))
        yield from textwrap.wrap(sanitize(line, multiline=False), _WIDTH, subsequent_indent="  ")
    if len(report.divergences) > _MAX_DIVERGENCES_SHOWN:
        yield f"… and {len(report.divergences) - _MAX_DIVERGENCES_SHOWN} more; the JSON has all."


def report_to_json(report: VerifyReport, ready: EngineReady) -> dict[str, Any]:
    """`verify --json`, described in docs/json.md."""
    return {"schema": 1, "model": ready.model, "draft": ready.draft} | report.to_json()


def _format_width_difference(report: VerifyReport) -> str:
    if report.difference is None:
        return _NOT_MEASURED
    text = "passes over 1 to 16 tokens agree to the last bit"
    if report.difference:
        text = (
            f"logits differ by up to {report.difference:.2g} between passes over 1 to 16 tokens; "
            f"up to {report.near_tie_limit:.2g} counts as a near-tie"
        )
    if report.long_difference is None:
        return text
    if not report.long_difference:
        return f"{text}; after 640 tokens of context, too" if not report.difference else text
    return (
        f"{text}; after 640 tokens of context logits differ by up to {report.long_difference:.2g}"
    )


def _format_totals(totals: ComparisonTotals) -> str:
    if not totals.answers:
        return _NOT_COMPARED
    different = len(totals.divergences)
    result = "all same as plain" if not different else f"{different} differ from plain"
    prompts = count(totals.prompts, "prompt")
    return f"{prompts}, {totals.answers} answers, {totals.tokens:,} tokens: {result}"


def _format_sample(sample: TokenSample) -> str:
    rate = percent(sample.totals.acceptance_rate)
    text = f"{sample.tokens:,} tokens, acceptance rate {rate}: "
    shift = sample.detectable_shift
    if sample.impossible:
        return text + f"{sample.impossible} of probability 0"
    if sample.p_value is None or shift is None:
        return text + "too few for a test"
    if sample.is_rejected:
        return text + f"not the model's distribution (p = {sample.p_value:.1g}, twice)"
    result = f"the model's distribution (p = {sample.p_value:.2g}; "
    return text + result + f"a shift of {percent(shift)} would have been detected)"


def _format_divergence(divergence: Divergence, *, is_near_tie: bool) -> str:
    variant = divergence.variant.spec + (
        f", draft length {divergence.variant.draft_length}"
        if divergence.variant.draft_length
        else ""
    )
    text = (
        f"prompt {divergence.prompt + 1}, token {divergence.position + 1} ({variant}): "
        f"{_quote_token(divergence.speculative)} instead of {_quote_token(divergence.plain)}, "
        f"in a pass over {count(divergence.width, 'token')}; "
    )
    if not divergence.replayed:
        return text + "not reproduced by the same passes without speculation. A bug."
    if divergence.margin is None:
        return text + "one answer ends where the other continues. A bug."
    text += f"the two best {divergence.margin:.2g} apart: "
    if is_near_tie:
        return text + "a near-tie."
    return text + f"more than {NEAR_TIE_FACTOR} times the rounding difference. A bug."


def _quote_token(token: Token | None) -> str:
    """The token's repr, so that control characters and line ends are visible."""
    return "nothing" if token is None else repr(token.text) if token.text else f"#{token.id}"
