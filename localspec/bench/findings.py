"""What `verify` found, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from localspec.bench.equality import Divergence, Sums
from localspec.bench.uniformity import Sample
from localspec.bench.verdict import MODES, TOLERANCE, Report
from localspec.clean import clean
from localspec.protocol.events import Ready, Token
from localspec.units import percent

_SHOWN = 12
"""Divergences that are told one by one."""
NOTHING_GUESSED = "Nothing was guessed, so there was nothing to go wrong: this model runs plain."
_VERDICTS = {
    "lossless": "lossless here. Speculating gave plain decoding's own tokens, every one.",
    "near-ties": "near-ties here. Some answers differ, and only where two tokens were as good as "
    "equal:\na pass over several tokens rounds otherwise than a pass over one. Nothing is wrong.",
    "divergent": "DIVERGENT here. Speculating changed what the model says, and rounding does not "
    "explain it.\nPlease report this, with the output of --json; --spec off is safe.",
    None: "not finished. Nothing wrong was found so far.",
}


def lines(report: Report, ready: Ready) -> Iterator[str]:
    """The whole of it as text."""
    pair = ready.model + (f" with {ready.draft}" if ready.draft else " without a draft model")
    yield f"{clean(pair, multiline=False)}: {_VERDICTS[report.verdict]}"
    if report.whole and not report.drafted:
        yield NOTHING_GUESSED
    yield ""
    for name, what in rows(report):
        yield f"{name:<14} {what}"
    if report.divergences:
        yield ""
    yield from divergences(report)


def document(report: Report, ready: Ready) -> dict[str, Any]:
    """`verify --json`, described in docs/json.md."""
    return {"schema": 1, "model": ready.model, "draft": ready.draft} | report.document()


def rows(report: Report) -> Iterator[tuple[str, str]]:
    """Each part that was looked at, by its name, and what was found."""
    yield "rounding", _widths(report)
    yield "temperature 0", _equality(report.greedy)
    yield "same seed", _equality(report.seeded)
    for sample in report.samples.values():
        yield sample.verify, _sample(sample)


def divergences(report: Report) -> Iterator[str]:
    """The first of them, one by one."""
    for each in report.divergences[:_SHOWN]:
        yield _divergence(each, report.limit)
    if len(report.divergences) > _SHOWN:
        yield f"… and {len(report.divergences) - _SHOWN} more; the JSON has all."


def _widths(report: Report) -> str:
    if report.difference is None:
        return "not measured"
    if not report.difference:
        return "passes over 1 to 8 tokens agree to the last bit"
    return (
        f"passes over 1 to 8 tokens move a logit by up to {report.difference:.2g}; "
        f"up to {report.limit:.2g} counts as a near-tie"
    )


def _equality(sums: Sums) -> str:
    if not sums.answers:
        return "not compared"
    different = len(sums.divergences)
    same = "all as plain" if not different else f"{different} differ from plain"
    return f"{sums.prompts} prompts, {sums.answers} answers, {sums.tokens:,} tokens: {same}"


def _sample(sample: Sample) -> str:
    kept = percent(sample.accepted / sample.drafted) if sample.drafted else "none"
    what = f"{sample.tokens:,} tokens, {kept} of guesses kept: "
    shift = sample.shift(len(MODES))
    if sample.impossible:
        what += f"{sample.impossible} that the model would never say"
    elif sample.p is None or shift is None:
        what += "too few for a test"
    elif sample.bent(len(MODES)):
        what += f"not the model's own distribution (p = {sample.p:.1g}, twice)"
    else:
        what += f"the model's own distribution (p = {sample.p:.2g}; "
        what += f"a shift of {percent(shift)} would have shown)"
    return what


def _divergence(each: Divergence, limit: float) -> str:
    way = each.way.spec + (f", {each.way.draft_length} guesses" if each.way.draft_length else "")
    what = (
        f"prompt {each.prompt + 1}, token {each.position + 1} ({way}): "
        f"{_quoted(each.speculative)} instead of {_quoted(each.plain)}, "
        f"in a pass over {each.width}; "
    )
    if not each.replayed:
        return what + "the same passes without guessing do not say so. A bug."
    if each.margin is None:
        return what + "one answer ends where the other goes on. A bug."
    what += f"they were {each.margin:.2g} apart: "
    if each.near_tie(limit):
        return what + "a near-tie."
    return what + f"more than {TOLERANCE} times what rounding moves. A bug."


def _quoted(token: Token | None) -> str:
    """The token as a Python string: control characters and line ends show."""
    return "nothing" if token is None else repr(token.text) if token.text else f"#{token.id}"
