"""Collects the results of a losslessness check: verdict, JSON and text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct, field, to_builtins

from localspec.bench.measurement import RecordedAnswer
from localspec.bench.sampling_check import (
    DETECTION_POWER,
    SIGNIFICANCE_LEVEL,
    TokenSample,
)
from localspec.protocol.events import EngineReady, Token
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import VerifyMode
from localspec.sanitize import sanitize
from localspec.units import count, percent

LosslessVerdict = Literal["lossless", "divergent"]


class Divergence(Struct, frozen=True):
    """The first token of a speculative answer that its passes alone do not give."""

    prompt: int
    spec: str
    draft_length: int | None
    position: int  # The answer's first token is 0.
    width: int  # Tokens in the pass that produced it.
    speculative: Token | None  # None: the answer ends here.
    expected: int | None
    """Id of the token that the pass gives without speculation; None: plain decoding
    ends here.
    """


class ComparisonTotals(Struct):
    """Speculative answers, compared with their own passes and with plain decoding."""

    prompts: int = 0
    answers: int = 0
    equal: int = 0  # Prompts whose answers all have plain decoding's text.
    different: int = 0  # Answers with another text.
    tokens: int = 0
    drafted: int = 0
    divergences: list[Divergence] = field(default_factory=list)

    def add_answer(self, answer: RecordedAnswer, plain: RecordedAnswer) -> None:
        self.answers += 1
        self.different += answer.ids != plain.ids
        self.tokens += len(answer.ids)
        self.drafted += RoundTotals.of(answer.rounds).drafted

    def add(self, other: ComparisonTotals) -> None:
        self.prompts += other.prompts
        self.answers += other.answers
        self.equal += other.equal
        self.different += other.different
        self.tokens += other.tokens
        self.drafted += other.drafted
        self.divergences += other.divergences


class VerifyReport(Struct):
    greedy: ComparisonTotals = field(default_factory=ComparisonTotals)
    seeded: ComparisonTotals = field(default_factory=ComparisonTotals)
    by_mode: dict[VerifyMode, TokenSample] = field(default_factory=dict)
    is_complete: bool = False  # All parts have run to their end.

    @property
    def samples(self) -> list[TokenSample]:
        return list(self.by_mode.values())  # a copy: another thread may add one

    @property
    def divergences(self) -> list[Divergence]:
        return self.greedy.divergences + self.seeded.divergences

    @property
    def drafted(self) -> int:
        sampled = sum(sample.totals.drafted for sample in self.samples)
        return self.greedy.drafted + self.seeded.drafted + sampled

    @property
    def verdict(self) -> LosslessVerdict | None:
        """None if the check is not complete and has found nothing wrong so far."""
        # A first rejection needs confirmation; an impossible token does not.
        decisive = [
            sample
            for sample in self.samples
            if sample.is_confirmation or sample.impossible
        ]
        if self.divergences or any(sample.is_rejected for sample in decisive):
            return "divergent"
        return "lossless" if self.is_complete else None

    def to_json(self) -> dict[str, Any]:
        """Described in docs/json.md."""
        return {
            "verdict": self.verdict,
            "guesses": self.drafted,
            "greedy": _totals_to_json(self.greedy),
            "seeded": _totals_to_json(self.seeded),
            "sampled": _samples_to_json(self.samples),
            "whole": self.is_complete,
        }


def report_to_json(report: VerifyReport, ready: EngineReady) -> dict[str, Any]:
    """`verify --json`, described in docs/json.md."""
    return {"schema": 1, "model": ready.model, "draft": ready.draft} | report.to_json()


def _totals_to_json(totals: ComparisonTotals) -> dict[str, Any]:
    body: dict[str, Any] = to_builtins(totals)
    for divergence in body["divergences"]:
        if token := divergence["speculative"]:
            divergence["speculative"] = {"id": token["id"], "text": token["text"]}
    return body


def _samples_to_json(samples: list[TokenSample]) -> dict[str, Any]:
    p_values = [sample.p_value for sample in samples if sample.p_value is not None]
    shifts = [
        shift for sample in samples if (shift := sample.detectable_shift) is not None
    ]
    return {
        "test": "chi-square of the probability integral transform",
        "p": min(1.0, min(p_values) * len(p_values)) if p_values else None,
        "level": SIGNIFICANCE_LEVEL,
        "power": {"shift": max(shifts), "probability": DETECTION_POWER}
        if shifts
        else None,
        "modes": [
            {
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
            for sample in samples
        ],
    }


# --- The report as text.

_MAX_DIVERGENCES_SHOWN = 12
_WIDTH = 77
_VERDICT_TEXTS: dict[LosslessVerdict | None, tuple[str, str]] = {
    "lossless": (
        "Lossless",
        "Every token is the one that the model chooses: the same passes, repeated without "
        "drafting, gave the same tokens.",
    ),
    "divergent": (
        "DIFFERS",
        "Speculation changed the model's output. Without speculation (/spec off, --spec off) "
        "output is safe. Please report this with the JSON: --json prints it, j copies it.",
    ),
    None: ("Not finished", "No problem found so far."),
}
_WIDTHS_TEXT = (
    " Texts may still part from plain decoding's, because a pass over several tokens rounds "
    "differently from a pass over one; the distribution is the same."
)


def format_report(
    report: VerifyReport, ready: EngineReady, *, is_final: bool = True
) -> Iterator[str]:
    """Before the end without a verdict, and without the parts that have not begun."""
    pair = sanitize(
        ready.model + (f" with {ready.draft}" if ready.draft else ", no draft model")
    )
    label, meaning = _VERDICT_TEXTS[report.verdict]
    compared = (report.greedy, report.seeded)
    if report.verdict == "lossless" and any(each.different for each in compared):
        meaning += _WIDTHS_TEXT
    if report.is_complete and not report.drafted:
        meaning = (
            "No tokens were drafted, so nothing was verified: this model runs plain."
        )
    yield f"{pair}: {label}" if is_final else pair
    if is_final:
        yield from textwrap.wrap(meaning, _WIDTH)
    yield ""
    rows: dict[str, str] = {
        "temperature 0": _format_totals(report.greedy),
        "same seed": _format_totals(report.seeded),
        **{each.verify: _format_sample(each) for each in report.samples},
    }
    for name, result in rows.items():
        if result or is_final:
            text = f"{name:<14} {result or 'not compared'}"
            yield from textwrap.wrap(text, _WIDTH, subsequent_indent=" " * 15)
    if report.divergences:
        yield ""
    for divergence in report.divergences[:_MAX_DIVERGENCES_SHOWN]:
        line = sanitize(_format_divergence(divergence), multiline=False)
        yield from textwrap.wrap(line, _WIDTH, subsequent_indent="  ")
    if len(report.divergences) > _MAX_DIVERGENCES_SHOWN:
        yield f"… and {len(report.divergences) - _MAX_DIVERGENCES_SHOWN} more; the JSON has all."


def _format_totals(totals: ComparisonTotals) -> str:
    """Empty if nothing was compared."""
    if not totals.answers:
        return ""
    prompts, wrong = count(totals.prompts, "prompt"), len(totals.divergences)
    result = f"{wrong} wrong" if wrong else "every token as its pass alone gives it"
    other = totals.different
    texts = (
        f"{other} with another text than plain"
        if other
        else "all the same text as plain"
    )
    return f"{prompts}, {totals.answers} answers, {totals.tokens:,} tokens: {result}; {texts}"


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


def _format_divergence(divergence: Divergence) -> str:
    length, token = divergence.draft_length, divergence.speculative
    variant = divergence.spec + (f", draft length {length}" if length else "")
    # The token's repr, so that control characters and line ends are visible.
    shown = (
        "the end"
        if token is None
        else repr(token.text)
        if token.text
        else f"#{token.id}"
    )
    expected = (
        "the end" if divergence.expected is None else f"token {divergence.expected}"
    )
    return (
        f"prompt {divergence.prompt + 1}, token {divergence.position + 1} ({variant}): {shown} "
        f"instead of {expected}, in a pass over {count(divergence.width, 'token')}. A bug."
    )
