"""Tokens, rounds and statistics of speculation as terminal text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import replace

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.speculation_stats import Speedup, format_acceptance, measure_speedup
from localspec.protocol.events import Round, SpeculationPlan, Token, TokenClass
from localspec.sanitize import sanitize
from localspec.symbols import TOKEN_MARKS, draw_bar
from localspec.units import count, milliseconds, percent, short_count, token_rate

_TOKEN_STYLES: dict[TokenClass, dict[str, Any]] = {
    "accepted": {"fg": "green"},
    "bonus": {"fg": "cyan", "bold": True},
    "correction": {"fg": "yellow", "underline": True},
    "plain": {},
}
_BAR_WIDTH = 6
_WHITESPACE_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t"})
_FINISH_TEXT = {
    "eog": "The model ended the answer.",
    "stop": "Stopped at a stop string.",
    "length": "Stopped at the max-token limit.",
    "context": "Stopped: the context is full.",
    "cancelled": "Stopped by the user.",
    "error": "Stopped by an error.",
}


def mark_token(token: Token, colour: bool) -> str:
    """The token's sanitized text with its mark, which goes before trailing white space."""
    text = sanitize(token.text)
    if not text:
        return ""
    body = text.rstrip()
    style, shown = _TOKEN_STYLES[token.kind], body + TOKEN_MARKS[token.kind]
    shown = click.style(shown, **style) if colour and style else shown
    return shown + text[len(body) :]


def format_legend(colour: bool) -> str:
    parts = []
    for kind, mark in TOKEN_MARKS.items():
        text = f"{mark} {'corrected' if kind == 'correction' else kind}"
        parts.append(click.style(text, **_TOKEN_STYLES[kind]) if colour else text)
    return "   ".join(parts)


def format_stats(
    plan: SpeculationPlan | None,
    totals: dict[str, Any],
    seed: int,
    *,
    plain: bool = False,
) -> Iterator[str]:
    """The lines of `--stats` and `/stats`.  `plain`: without bars and symbols."""
    speculation, timings = totals["speculation"], totals["timings"]
    dot = ", " if plain else " · "
    if plan is not None:
        yield f"{plan.state.upper()}  {plan.why}"
    if speculation["drafted"]:
        n_rounds, counts = speculation["rounds"], speculation["histogram"]
        n_passes = n_rounds + speculation["paused_rounds"]
        yield (
            f"{_acceptance_text(speculation['accepted'], speculation['drafted'])}"
            f"{dot}{totals['tokens'] / n_passes:.1f} tokens per target pass"
            f"{dot}{_count_passes(n_passes)}, {n_rounds} with a draft"
        )
        if plain:
            histogram = ", ".join(
                f"{i}: {count(n, 'time')}" for i, n in enumerate(counts) if n
            )
        else:  # counts[n]: rounds in which n draft tokens were accepted
            highest = max(counts, default=0) or 1
            histogram = "  ".join(
                f"{i} {draw_bar(n / highest, _BAR_WIDTH)} {n}"
                for i, n in enumerate(counts)
            )
        yield f"accepted tokens per round  {histogram}"
    if overlap := speculation.get("overlap"):
        share = percent(overlap["hits"] / overlap["rounds"])
        yield f"overlapped drafting: {share} of {overlap['rounds']} drafts begun in time"
    yield (
        f"{totals['tokens']} tokens{dot}{token_rate(timings['tokens_per_second'])}"
        f"{dot}first token {milliseconds(timings['first_token_ms'])}"
        f"{dot}host {milliseconds(speculation['host_ms_per_round'])} per round{dot}seed {seed}"
    )


def _count_passes(n: int) -> str:
    return f"{n} pass{'es' * (n != 1)}"


def _acceptance_text(accepted: int, drafted: int) -> str:
    return f"acceptance rate {format_acceptance(accepted, drafted)}"


def format_round(event: Round, *, plain: bool, colour: bool = False) -> str:
    """One round as a line; `plain`: in words."""
    if plain:
        return _format_spoken_round(event)
    source = sanitize(event.source or "plain", multiline=False)
    accepted = f"{event.accepted}/{event.drafted}" if event.drafted else ""
    escaped = (
        replace(token, text=sanitize(token.text).translate(_WHITESPACE_ESCAPES))
        for token in event.tokens
    )
    shown = " ".join(mark_token(token, colour) for token in escaped)
    return (
        f"{event.n:>5}  {source:<7} {accepted:>5}  {milliseconds(event.ms.total):>8}  {shown}"
    ).rstrip()


def _format_spoken_round(event: Round) -> str:
    start = f"Round {event.n}, {milliseconds(event.ms.total)}:"
    texts = [
        json.dumps(sanitize(token.text), ensure_ascii=False) for token in event.tokens
    ]
    if not event.drafted:
        return f"{start} nothing drafted. Plain {', '.join(texts)}."
    source = sanitize(event.source or "", multiline=False)
    accepted = texts[: event.accepted]
    line = f"{start} {source} drafted {event.drafted}, {event.accepted} accepted"
    line += f": {', '.join(accepted)}." if accepted else "."
    labels = {
        "correction": "Corrected to",
        "bonus": "Bonus",
        "plain": "Then",
        "accepted": "Then",
    }
    for token, text in zip(
        event.tokens[event.accepted :], texts[event.accepted :], strict=True
    ):
        line += f" {labels[token.kind]} {text}."
    return line


def format_answer_summary(answer: GeneratedAnswer) -> str:
    """Totals of the rounds of a recorded answer, which may be incomplete."""
    totals, rounds = answer.totals, answer.rounds
    later_rounds = rounds[1:]  # as in tokens_per_second: after the first token
    seconds = sum(event.ms.total for event in later_rounds) / 1e3
    rate = (
        sum(len(event.tokens) for event in later_rounds) / seconds
        if seconds > 0
        else None
    )
    n_passes = len(rounds)
    parts = [f"{count(totals.tokens, 'token')} in {_count_passes(n_passes)}"]
    if totals.drafted:
        parts.append(_acceptance_text(totals.accepted, totals.drafted))
        parts.append(f"{totals.tokens_per_pass:.1f} tokens per target pass")
    parts.append(token_rate(rate))
    end = (
        _FINISH_TEXT[answer.finished.reason]
        if answer.finished
        else "The recording ends here."
    )
    return f"{', '.join(parts)}. {end}"


class AnswerStats(Struct, frozen=True):
    answer: GeneratedAnswer
    plain_tokens_per_second: float | None
    """Tokens per second without speculation; None until it is measured."""
    n_ctx: int
    stopped_ms: float | None = None
    """Milliseconds from Ctrl+C to the end; None if the answer was not stopped."""

    @property
    def speedup(self) -> Speedup | None:
        is_drafted = self.answer.totals.drafted > 0
        speed = self.plain_tokens_per_second
        return measure_speedup(self.answer.rounds, speed) if is_drafted else None

    @property
    def is_context_full(self) -> bool:
        return (
            self.answer.finished is not None
            and self.answer.finished.reason == "context"
        )


def format_status_line(stats: AnswerStats, *, plain: bool = False) -> str:
    """E.g. `2.1× plain speed · acceptance rate 62 % of 134 · 79 tok/s · context 1.2k /
    16k`.

    `plain`: as sentences, for a screen reader.
    """
    answer, totals = stats.answer, stats.answer.totals
    parts = []
    if (ms := stats.stopped_ms) is not None:
        parts.append(
            (f"stopped in {milliseconds(ms)}", f"Stopped in {ms:.0f} milliseconds.")
        )
    if answer.finished is not None and answer.finished.reason == "length":
        parts.append(("stopped at the max-token limit", _FINISH_TEXT["length"]))
    if stats.is_context_full:
        parts.append(("context full", "The context is full."))
    if answer.ended_in_thinking:
        parts.append(("stopped while thinking", "Stopped while thinking."))
    in_words = ""
    if stats.speedup is not None:
        in_words = f", {stats.speedup.in_words} plain speed"
        parts.append((f"{stats.speedup} plain speed", ""))
    if totals.drafted:
        accepted = (
            f"{totals.accepted} of {totals.drafted} draft tokens accepted{in_words}."
        )
        parts.append((_acceptance_text(totals.accepted, totals.drafted), accepted))
    elif answer.plan is not None:
        parts.append((f"speculation {answer.plan.state}", ""))
    if (rate := answer.tokens_per_second) is not None:
        parts.append((token_rate(rate), f"{rate:.0f} tokens per second."))
    used, n_ctx = answer.context_tokens, stats.n_ctx
    shown = f"context {short_count(used)} / {short_count(n_ctx)}"
    parts.append((shown, f"Context: {used} of {n_ctx} tokens."))
    if plain:
        return " ".join(sentence for _, sentence in parts if sentence)
    return " · ".join(part for part, _ in parts)
