"""The report of a losslessness check."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from localspec.bench.sampling_check import TokenSample
from localspec.bench.verify_results import (
    ComparisonTotals,
    Divergence,
    LosslessVerdict,
    VerifyReport,
)
from localspec.chat.speculation_stats import known_rate
from localspec.protocol.events import EngineReady, Token
from localspec.report.lines import EMPTY_LINE, Line, make_line
from localspec.sanitize import sanitize
from localspec.units import count, percent

_MAX_DIVERGENCES_SHOWN = 12
_WIDTH = 77
_VERDICT_LABELS: dict[LosslessVerdict | None, str] = {
    "lossless": "Lossless",
    "divergent": "DIFFERS",
    None: "Not finished",
}
_VERDICT_MEANINGS: dict[LosslessVerdict | None, str] = {
    "lossless": (
        "Every token is the one that the model chooses: the same passes, repeated "
        "without drafting, gave the same tokens."
    ),
    "divergent": (
        "Speculation changed the model's output. Without speculation (/spec off, "
        "--spec off) output is safe. Please report this with the JSON: --json prints "
        "it, j copies it."
    ),
    None: "No problem found so far.",
}
_NOTHING_DRAFTED = (
    "No tokens were drafted, so nothing was verified: this model runs plain."
)
_WIDTHS_NOTE = (
    "Texts may still part from plain decoding's, because a pass over several tokens "
    "rounds differently from a pass over one; the distribution is the same."
)


def format_verify_report(
    report: VerifyReport, ready: EngineReady, *, is_final: bool = True
) -> Iterator[Line]:
    """Before the end there is no verdict, and no part that has not begun."""
    draft = f" with {ready.draft}" if ready.draft else ", no draft model"
    pair = sanitize(f"{ready.model}{draft}")
    if is_final:
        yield make_line(f"{pair}: {_VERDICT_LABELS[report.verdict]}", "heading")
        yield from map(make_line, textwrap.wrap(_explain_verdict(report), _WIDTH))
    else:
        yield make_line(pair, "heading")
    yield EMPTY_LINE
    results = {
        "temperature 0": _format_totals(report.greedy),
        "same seed": _format_totals(report.seeded),
    }
    for sample in report.samples:
        results[sample.verify] = _format_sample(sample)
    if report.has_picture:
        results["picture"] = "in one prompt of temperature 0 and of the same seed"
    if report.has_call:
        results["tool call"] = "one prompt of temperature 0 and of the same seed"
    for name, result in results.items():
        if result or is_final:
            text = f"{name:<14} {result or 'not compared'}"
            yield from _wrap(text, indent=15)
    yield from _format_divergences(report.divergences)


def _explain_verdict(report: VerifyReport) -> str:
    if report.is_complete and not report.drafted:
        return _NOTHING_DRAFTED
    meaning = _VERDICT_MEANINGS[report.verdict]
    n_different = report.greedy.different + report.seeded.different
    if report.verdict == "lossless" and n_different:
        return f"{meaning} {_WIDTHS_NOTE}"
    return meaning


def _wrap(text: str, indent: int) -> Iterator[Line]:
    for line in textwrap.wrap(text, _WIDTH, subsequent_indent=" " * indent):
        yield make_line(line)


def _format_totals(totals: ComparisonTotals) -> str:
    """Empty if nothing was compared."""
    if not totals.answers:
        return ""
    prompts = count(totals.prompts, "prompt")
    n_wrong = len(totals.divergences)
    result = f"{n_wrong} wrong" if n_wrong else "every token as its pass alone gives it"
    texts = "all the same text as plain"
    if totals.different:
        texts = f"{totals.different} with another text than plain"
    compared = f"{prompts}, {totals.answers} answers, {totals.tokens:,} tokens"
    return f"{compared}: {result}; {texts}"


def _format_sample(sample: TokenSample) -> str:
    rate = percent(known_rate(sample.totals))
    drawn = f"{sample.tokens:,} tokens, acceptance rate {rate}"
    p = sample.p_value
    shift = sample.detectable_shift
    if sample.impossible:
        result = f"{sample.impossible} of probability 0"
    elif p is None or shift is None:
        result = "too few for a test"
    elif sample.is_wrong:
        result = f"not the model's distribution (p = {p:.1g}, twice)"
    elif sample.is_rejected:
        result = f"rejected once (p = {p:.1g}); a second sample decides"
    else:
        power = f"a shift of {percent(shift)} would have been detected"
        result = f"the model's distribution (p = {p:.2f}; {power})"
    return f"{drawn}: {result}"


def _format_divergences(divergences: list[Divergence]) -> Iterator[Line]:
    if divergences:
        yield EMPTY_LINE
    for divergence in divergences[:_MAX_DIVERGENCES_SHOWN]:
        text = sanitize(_format_divergence(divergence), multiline=False)
        yield from _wrap(text, indent=2)
    n_hidden = len(divergences) - _MAX_DIVERGENCES_SHOWN
    if n_hidden > 0:
        yield make_line(f"… and {n_hidden} more; the JSON has all.")


def _format_divergence(divergence: Divergence) -> str:
    variant = divergence.spec
    if divergence.draft_length:
        variant += f", draft length {divergence.draft_length}"
    expected = "the end"
    if divergence.expected is not None:
        expected = f"token {divergence.expected}"
    place = f"prompt {divergence.prompt + 1}, token {divergence.position + 1}"
    pass_ = f"a pass over {count(divergence.width, 'token')}"
    shown = _quote(divergence.speculative)
    return f"{place} ({variant}): {shown} instead of {expected}, in {pass_}. A bug."


def _quote(token: Token | None) -> str:
    """As Python's repr, so that control characters and line ends are visible."""
    if token is None:
        return "the end"
    return repr(token.text) if token.text else f"#{token.id}"
