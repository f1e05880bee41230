"""The advice of `pair suggest`: a line for each pair, in groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from localspec.fit.suggestion_groups import Advice, AdvisedPair, describe_slow
from localspec.fit.suggestions import PairSuggestion
from localspec.report.lines import EMPTY_LINE, Line, Span, format_columns, make_line
from localspec.report.memory import format_share
from localspec.units import about_rate, gib

_LEAST_GAIN = 1.05  # A smaller speed-up by the draft is not worth a second figure.
_MAX_SHOWN = 3  # Of each group after the best.


def format_advice(advice: Advice, *, is_whole: bool) -> Iterator[Line]:
    """The groups, each with its first pairs, or whole."""
    shown: list[tuple[str, tuple[AdvisedPair, ...]]] = []
    for title, members in advice.by_group():
        n_shown = len(members) if is_whole else _MAX_SHOWN
        shown.append((title, members[:n_shown]))
    rows = []
    for _, pairs in shown:
        rows += [_row(each.suggestion, each.reason) for each in pairs]
    texts = iter(format_columns(rows))
    for title, pairs in shown:
        if pairs[0] is not advice.best:
            yield EMPTY_LINE
        yield make_line(title, "heading")
        for _ in pairs:
            yield make_line(next(texts))


def count_hidden(advice: Advice) -> int:
    """How many pairs `format_advice` leaves out unless `is_whole`."""
    hidden = [len(pairs) - _MAX_SHOWN for _, pairs in advice.by_group()]
    return sum(max(0, n) for n in hidden)


def format_drafts(
    suggestions: Iterable[PairSuggestion], instead: PairSuggestion | None
) -> Iterator[Line]:
    """The pairs of one model: what each draft gains, and who reports it.

    `instead`: what to use if even the first does not fit or is too slow.
    """
    listed = list(suggestions)
    rows = [_row(each, each.pair.why or _find_problem(each)) for each in listed]
    for each, text in zip(listed, format_columns(rows), strict=True):
        yield make_line(text)
        if each.pair.source:
            yield make_line(f"  {each.pair.status}: {each.pair.source}", "muted")
    if not listed or instead is None:
        return
    first = listed[0]
    if not first.verdict.can_load:
        yield make_line(f"Does not fit: take {instead.pair.name}.", "warning")
    elif first.is_too_slow:
        text = describe_slow(first, instead)
        yield (Span(f"{text[0].upper()}{text[1:]}.", "warning"),)


def describe_briefly(suggestion: PairSuggestion) -> str:
    """Such as `≈ 36 → 53 tok/s`, `too slow (≈ 2 tok/s)` or `does not fit`."""
    if not suggestion.verdict.can_load:
        return "does not fit"
    if suggestion.is_too_slow:
        return describe_slow(suggestion, None)
    return format_rates(suggestion)


def _row(suggestion: PairSuggestion, reason: str) -> tuple[str, str, str, str]:
    if suggestion.bytes_to_free:
        missing = gib(suggestion.bytes_to_free)
        reason = f"close other programs first: {missing} more must be free"
    if suggestion.pair.target.sees:
        reason = f"sees · {reason}" if reason else "sees"
    mark = " ✓" if suggestion.pair.status == "verified" else ""
    name = f"  {suggestion.pair.name}{mark}"
    need = format_share(suggestion.needed_bytes, suggestion.memory_bytes)
    return name, need, format_rates(suggestion), reason


def format_rates(suggestion: PairSuggestion) -> str:
    """The middle without and with the draft: `≈ 36 → 53 tok/s`."""
    rate = suggestion.tokens_per_second
    plain = suggestion.plain_tokens_per_second
    if rate is None or plain is None:
        return "speed unknown" if suggestion.verdict.can_load else "–"
    if rate < _LEAST_GAIN * plain:
        return f"{about_rate(rate)} tok/s"
    return f"{about_rate(plain)} → {about_rate(rate).removeprefix('≈ ')} tok/s"


def _find_problem(suggestion: PairSuggestion) -> str:
    """Why the draft is no advice; empty if it is."""
    if not suggestion.verdict.can_load:
        return "does not fit"
    if suggestion.is_worse_than_lookup:
        return "no faster with this draft"
    return ""
