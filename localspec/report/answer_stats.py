"""What an answer says about speculation: its rounds, statistics, speed and end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.speculation_stats import SpeculationStats, known_rate
from localspec.protocol.events import FinishReason, Round, Token
from localspec.protocol.round_totals import DraftTotals
from localspec.report.lines import Line, Span, make_line
from localspec.report.speculation import SpeculationView, view_speculation
from localspec.report.token_classes import TOKEN_CLASSES, mark_text
from localspec.sanitize import sanitize
from localspec.symbols import draw_bar
from localspec.units import count, milliseconds, percent, short_count

END_REASONS: dict[FinishReason, str] = {
    "eog": "the model ended the answer",
    "stop": "stopped at a stop string",
    "length": "stopped at the max-token limit",
    "context": "the context is full",
    "cancelled": "stopped by the user",
    "error": "stopped by an error",
}


def format_acceptance(totals: DraftTotals) -> str:
    """`62 % of 214`, without a rate below ten draft tokens."""
    if not totals.drafted:
        return "–"
    rate = known_rate(totals)
    if rate is None:
        return f"{totals.accepted} of {totals.drafted}"
    return f"{percent(rate)} of {totals.drafted:,}"


def _make_sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


# --- The lines of `--stats` and `/stats`.

_BAR_WIDTH = 6


def format_stats(
    view: SpeculationView, totals: dict[str, Any], seed: int, *, plain: bool = False
) -> Iterator[Line]:
    """First what a person asks, then details in the field's terms.

    `totals`: `GeneratedAnswer.joined_totals` of the answer.
    `plain`: without bars and symbols, for a screen reader.
    """
    speculation = totals["speculation"]
    timings = totals["timings"]
    separator = ", " if plain else " · "
    if plain:
        yield make_line(view.spoken)
    else:
        yield (Span(view.headline, view.role), Span(f"   {view.speeds}"))
        yield make_line(view.sentence)
        yield make_line(view.answer_line)
    if speculation["drafted"]:
        n_drafted_rounds = speculation["rounds"]
        n_passes = n_drafted_rounds + speculation["paused_rounds"]
        tokens_per_pass = totals["tokens"] / n_passes
        drafts = DraftTotals(
            drafted=speculation["drafted"], accepted=speculation["accepted"]
        )
        facts = [
            f"acceptance rate {format_acceptance(drafts)}",
            f"{tokens_per_pass:.1f} tokens per target pass",
            f"{count(n_passes, 'pass')}, {n_drafted_rounds} with a draft",
        ]
        yield make_line(separator.join(facts))
        histogram = _format_histogram(speculation["histogram"], plain=plain)
        yield make_line(f"accepted tokens per round  {histogram}")
    overlap = speculation.get("overlap")
    if overlap:
        share = percent(overlap["hits"] / overlap["rounds"])
        yield make_line(
            f"overlapped drafting: {share} of {overlap['rounds']} drafts begun in time"
        )
    facts = [
        f"first token {milliseconds(timings['first_token_ms'])}",
        f"host {milliseconds(speculation['host_ms_per_round'])} per round",
        f"seed {seed}{_explain_seed(totals)}",
    ]
    yield make_line(separator.join(facts))


def _explain_seed(totals: dict[str, Any]) -> str:
    """What the seed of this answer is not good for: to have the text again.

    Answers of earlier versions do not say how they were verified.
    """
    method = totals.get("verify", "coupled")
    if method == "coupled":
        return ""
    return f" (not repeatable: {method})"


def _format_histogram(counts: Sequence[int], *, plain: bool) -> str:
    """`counts[n]`: the rounds in which n draft tokens were accepted.

    `[1, 0, 2]` becomes `0 ███ 1  1  0  2 ██████ 2`; plain, `0: 1 time, 2: 2 times`.
    """
    if plain:
        times = [f"{i}: {count(n, 'time')}" for i, n in enumerate(counts) if n]
        return ", ".join(times)
    highest = max([*counts, 1])
    columns = []
    for n_accepted, n_rounds in enumerate(counts):
        bar = draw_bar(n_rounds / highest, _BAR_WIDTH)
        columns.append(f"{n_accepted} {bar} {n_rounds}")
    return "  ".join(columns)


# --- The rounds of an answer.

_WHITESPACE_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t"})


def format_round(event: Round, *, is_coloured: bool = False) -> Line:
    """Number, source, accepted/drafted, time, and the tokens as their classes look."""
    source = sanitize(event.source or "plain", multiline=False)
    accepted = f"{event.accepted}/{event.drafted}" if event.drafted else ""
    ms = milliseconds(event.ms.total)
    numbers = f"{event.n:>5}  {source:<7} {accepted:>5}  {ms:>8} "
    if not event.tokens:
        return make_line(numbers.rstrip())
    spans = [Span(numbers)]
    for token in event.tokens:
        text = sanitize(token.text).translate(_WHITESPACE_ESCAPES)
        spans.append(Span(" "))
        spans += mark_text(text, token.kind, is_coloured=is_coloured)
    return tuple(spans)


def describe_round(event: Round) -> str:
    """The round as sentences, for a screen reader."""
    start = f"Step {event.n + 1}, {milliseconds(event.ms.total)}:"
    texts = [_quote(token) for token in event.tokens]
    if not event.drafted:
        return f"{start} no guess. Written by the model: {', '.join(texts)}."
    source = sanitize(event.source or "", multiline=False)
    sentence = f"{start} {source} guessed {event.drafted}, {event.accepted} right"
    if event.accepted:
        sentence += f": {', '.join(texts[: event.accepted])}"
    sentences = [f"{sentence}."]
    for token in event.tokens[event.accepted :]:
        label = TOKEN_CLASSES[token.kind].label
        sentences.append(_make_sentence(f"{label}: {_quote(token)}"))
    return " ".join(sentences)


def _quote(token: Token) -> str:
    return json.dumps(sanitize(token.text), ensure_ascii=False)


# --- A whole answer on one line.


def format_answer_summary(answer: GeneratedAnswer) -> str:
    """Of a recorded answer, which may be incomplete."""
    view = view_speculation(SpeculationStats(answer=answer))
    parts = [view.answer_line]
    if view.drafted:
        parts.append(f"{view.guesses} guesses right")
        parts.append(f"{view.tokens_per_step:.1f} tokens per step")
    parts.append(view.speeds)
    end = "the recording ends here"
    if answer.finished:
        end = END_REASONS[answer.finished.reason]
    # Commas: a screen reader reads it, too.
    totals = ", ".join(parts).replace(" · ", ", ")
    return f"{totals}. {_make_sentence(end)}"


class AnswerStats(Struct, frozen=True):
    answer: GeneratedAnswer
    view: SpeculationView
    n_ctx: int
    stopped_ms: float | None = None
    """Milliseconds from Ctrl+C to the end; None if the answer was not stopped."""

    @property
    def is_context_full(self) -> bool:
        return self._finish_reason == "context"

    @property
    def _finish_reason(self) -> FinishReason | None:
        return self.answer.finished.reason if self.answer.finished else None

    def list_notable_ends(self) -> Iterator[str]:
        """What was unusual about the end of the answer."""
        reason = self._finish_reason
        if reason in ("length", "context"):
            yield END_REASONS[reason]
        if self.answer.ended_in_thinking:
            yield "stopped while thinking"


def format_status_line(stats: AnswerStats) -> str:
    """E.g. `1.7× faster, 14.2 vs 8.4 tok/s · 25 of 32 guesses right · context 1.2k / 16k`."""
    view = stats.view
    parts = []
    if stats.stopped_ms is not None:
        parts.append(f"stopped in {milliseconds(stats.stopped_ms)}")
    parts += stats.list_notable_ends()
    if view.drafted and view.verdict == "unknown":
        parts.append(view.speeds)
    elif view.speed is not None:
        parts.append(f"{view.headline}, {view.speeds}")
    if view.drafted:
        parts.append(f"{view.guesses} guesses right")
    used = short_count(stats.answer.context_tokens)
    whole = short_count(stats.n_ctx)
    parts.append(f"context {used} / {whole}")
    return " · ".join(parts)


def describe_status(stats: AnswerStats) -> str:
    """The status line as sentences, for a screen reader."""
    sentences = []
    if stats.stopped_ms is not None:
        sentences.append(f"Stopped in {stats.stopped_ms:.0f} milliseconds.")
    sentences += map(_make_sentence, stats.list_notable_ends())
    sentences.append(stats.view.spoken)
    used = stats.answer.context_tokens
    sentences.append(f"Context: {used} of {stats.n_ctx} tokens.")
    return " ".join(sentences)
