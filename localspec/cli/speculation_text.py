"""Tokens, rounds and statistics of speculation as terminal text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from localspec.protocol.events import GenerationFinished, Round, SpeculationPlan, Token, TokenClass
from localspec.protocol.round_totals import RoundTotals
from localspec.sanitize import sanitize
from localspec.units import milliseconds, percent, short_count, token_rate

TOKEN_GLYPHS: dict[TokenClass, str] = {
    "accepted": "ˢ",
    "bonus": "⁺",
    "correction": "▔",
    "plain": "·",
}
_ASCII_GLYPHS: dict[TokenClass, str] = {
    "accepted": "~",
    "bonus": "+",
    "correction": "^",
    "plain": ".",
}
_TOKEN_STYLES: dict[TokenClass, dict[str, Any]] = {
    "accepted": {"fg": "green"},
    "bonus": {"fg": "cyan", "bold": True},
    "correction": {"fg": "yellow", "underline": True},
    "plain": {},
}
_TOKEN_CLASS_NAMES = {
    "accepted": "accepted",
    "bonus": "bonus",
    "correction": "corrected",
    "plain": "plain",
}
_BAR_BLOCKS = " ▏▎▍▌▋▊▉█"
_WHITESPACE_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t"})
_FINISH_TEXT = {
    "eog": "The model ended the answer.",
    "stop": "Stopped at a stop string.",
    "length": "Stopped at the max-token limit.",
    "context": "Stopped: the context is full.",
    "cancelled": "Stopped by the user.",
    "error": "Stopped by an error.",
}


def token_glyphs() -> dict[TokenClass, str]:
    """The mark of each token class; ASCII if stdout cannot encode the Unicode marks."""
    try:
        "".join(TOKEN_GLYPHS.values()).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII_GLYPHS
    return TOKEN_GLYPHS


def mark_token(token: Token, colour: bool) -> str:
    """The token's sanitized text with its mark, which goes before trailing white space."""
    text = sanitize(token.text)
    if not text:
        return ""
    body = text.rstrip()
    mark = token_glyphs()[token.kind]
    style = _TOKEN_STYLES[token.kind]
    shown = click.style(body + mark, **style) if colour and style else body + mark
    return shown + text[len(body) :]


def format_legend(colour: bool) -> str:
    marks = token_glyphs()
    parts = (f"{marks[kind]} {_TOKEN_CLASS_NAMES[kind]}" for kind in marks)
    styles = _TOKEN_STYLES.values()
    shown = (click.style(p, **s) if colour else p for p, s in zip(parts, styles, strict=True))
    return "   ".join(shown)


def format_stats(
    plan: SpeculationPlan | None, totals: dict[str, Any], seed: int, *, plain: bool = False
) -> Iterator[str]:
    """The lines of `--stats`.  `plain`: without bars."""
    speculation, timings = totals["speculation"], totals["timings"]
    if plan is not None:
        yield f"{plan.state.upper()}  {plan.why}"
    if speculation["drafted"]:
        n_rounds, counts = speculation["rounds"], speculation["histogram"]
        yield (
            f"acceptance rate {percent(speculation['acceptance_rate'])}"
            f" ({speculation['accepted']} of {speculation['drafted']})"
            f" · {speculation['mean_accepted_length']:.1f} tokens per pass"
            f" · {n_rounds} round{'s' * (n_rounds != 1)}"
        )
        histogram = _format_histogram_words(counts) if plain else _format_histogram(counts)
        yield f"accepted tokens per round  {histogram}"
    if n_ties := speculation["guarded"]:
        yield f"exact mode: {n_ties} near-tie{'s' * (n_ties != 1)} recomputed"
    yield (
        f"{totals['tokens']} tokens · {token_rate(timings['tokens_per_second'])}"
        f" · first token {milliseconds(timings['first_token_ms'])}"
        f" · host {milliseconds(speculation['host_ms_per_round'])} per round · seed {seed}"
    )


def _format_histogram(counts: list[int]) -> str:
    """`counts[n]`: rounds in which n draft tokens were accepted."""
    highest = max(counts, default=0) or 1
    bars = (f"{i} {_format_bar(count / highest)} {count}" for i, count in enumerate(counts))
    return "  ".join(bars)


def _format_histogram_words(counts: list[int]) -> str:
    parts = (f"{i}: {n} time{'s' * (n != 1)}" for i, n in enumerate(counts) if n)
    return ", ".join(parts)


def _format_bar(share: float, width: int = 6) -> str:
    eighths = round(share * width * 8)
    if token_glyphs() is not TOKEN_GLYPHS:
        return "#" * round(share * width)
    return ("█" * (eighths // 8) + _BAR_BLOCKS[eighths % 8]).rstrip()


def format_round(event: Round, *, plain: bool, colour: bool = False) -> str:
    """One round as a line; `plain`: in words."""
    return _format_spoken_round(event) if plain else _format_marked_round(event, colour)


def _format_marked_round(event: Round, colour: bool) -> str:
    source = sanitize(event.source or "plain", multiline=False)
    accepted = f"{event.accepted}/{event.drafted}" if event.drafted else ""
    shown = " ".join(mark_token(_escape_whitespace(token), colour) for token in event.tokens)
    return (
        f"{event.n:>5}  {source:<7} {accepted:>5}  {milliseconds(_round_ms(event)):>8}  {shown}"
    ).rstrip()


def _format_spoken_round(event: Round) -> str:
    start = f"Round {event.n}, {milliseconds(_round_ms(event))}:"
    texts = [json.dumps(sanitize(token.text), ensure_ascii=False) for token in event.tokens]
    if not event.drafted:
        return f"{start} nothing drafted. Plain {', '.join(texts)}."
    source = sanitize(event.source or "", multiline=False)
    accepted = texts[: event.accepted]
    line = f"{start} {source} drafted {event.drafted}, {event.accepted} accepted"
    line += f": {', '.join(accepted)}." if accepted else "."
    labels = {"correction": "Corrected to", "bonus": "Bonus", "plain": "Then", "accepted": "Then"}
    for token, text in zip(event.tokens[event.accepted :], texts[event.accepted :], strict=True):
        line += f" {labels[token.kind]} {text}."
    return line


def _escape_whitespace(token: Token) -> Token:
    return replace(token, text=sanitize(token.text).translate(_WHITESPACE_ESCAPES))


def _round_ms(event: Round) -> float:
    return event.ms.draft + event.ms.verify + event.ms.host


def format_answer_summary(rounds: Sequence[Round], finished: GenerationFinished | None) -> str:
    """Totals of the rounds of an answer; `finished` is None if the recording is incomplete."""
    totals = RoundTotals()
    for event in rounds:
        totals.add(event)
    later_rounds = rounds[1:]  # as in tokens_per_second: after the first token
    seconds = sum(map(_round_ms, later_rounds)) / 1e3
    rate = sum(len(event.tokens) for event in later_rounds) / seconds if seconds > 0 else None
    n_tokens, n_passes = totals.tokens, len(rounds)
    parts = [f"{n_tokens} token{'s' * (n_tokens != 1)} in {n_passes} pass{'es' * (n_passes != 1)}"]
    if totals.drafted:
        counts = f"{totals.accepted} of {totals.drafted}"
        parts.append(f"acceptance rate {percent(totals.acceptance_rate)} ({counts})")
        parts.append(f"{totals.mean_accepted_length:.1f} tokens per speculative pass")
    parts.append(token_rate(rate))
    end = _FINISH_TEXT[finished.reason] if finished else "The recording ends here."
    return f"{', '.join(parts)}. {end}"


@dataclass(frozen=True, slots=True)
class AnswerStats:
    finished: GenerationFinished
    totals: RoundTotals
    plan: SpeculationPlan | None
    plain_tokens_per_second: float | None
    """Tokens per second without speculation; None until it is measured."""
    n_ctx: int
    stopped_ms: float | None = None
    """Milliseconds from Ctrl+C to the end; None if the answer was not stopped."""

    @property
    def tokens_per_second(self) -> float | None:
        rate = self.finished.totals.get("timings", {}).get("tokens_per_second")
        return float(rate) if isinstance(rate, int | float) else None

    @property
    def speedup(self) -> float | None:
        if (
            not self.tokens_per_second
            or not self.plain_tokens_per_second
            or not self.totals.drafted
        ):
            return None
        return self.tokens_per_second / self.plain_tokens_per_second

    @property
    def context_tokens(self) -> int:
        totals = self.finished.totals
        return int(totals.get("prompt_tokens", 0)) + int(totals.get("tokens", self.totals.tokens))

    @property
    def ended_in_thinking(self) -> bool:
        return bool(self.finished.totals.get("thinking", {}).get("open"))

    @property
    def is_context_full(self) -> bool:
        return self.finished.reason == "context"


def format_status_line(stats: AnswerStats) -> str:
    """E.g. `2.1× plain · acceptance rate 62 % · 79 tok/s · context 1.2k / 16k`."""
    parts = []
    if stats.stopped_ms is not None:
        parts.append(f"stopped in {milliseconds(stats.stopped_ms)}")
    if stats.finished.reason == "length":
        parts.append("stopped at the max-token limit")
    if stats.is_context_full:
        parts.append("context full")
    if stats.ended_in_thinking:
        parts.append("stopped while thinking")
    if stats.speedup is not None:
        parts.append(f"{stats.speedup:.1f}× plain")
    if stats.totals.drafted:
        parts.append(f"acceptance rate {percent(stats.totals.acceptance_rate)}")
    elif stats.plan is not None:
        parts.append(f"speculation {stats.plan.state}")
    if stats.tokens_per_second is not None:
        parts.append(token_rate(stats.tokens_per_second))
    parts.append(f"context {short_count(stats.context_tokens)} / {short_count(stats.n_ctx)}")
    return " · ".join(parts)


def format_status_sentences(stats: AnswerStats) -> str:
    """The status line as sentences for a screen reader."""
    parts = []
    if stats.stopped_ms is not None:
        parts.append(f"Stopped in {stats.stopped_ms:.0f} milliseconds.")
    if stats.finished.reason == "length":
        parts.append("Stopped at the max-token limit.")
    if stats.is_context_full:
        parts.append("The context is full.")
    if stats.ended_in_thinking:
        parts.append("Stopped while thinking.")
    if stats.totals.drafted:
        accepted = f"{stats.totals.accepted} of {stats.totals.drafted} draft tokens accepted"
        speedup = "" if stats.speedup is None else f", {stats.speedup:.1f} times plain speed"
        parts.append(f"{accepted}{speedup}.")
    if stats.tokens_per_second is not None:
        parts.append(f"{stats.tokens_per_second:.0f} tokens per second.")
    parts.append(f"Context: {stats.context_tokens} of {stats.n_ctx} tokens.")
    return " ".join(parts)


def format_stats_sentences(stats: AnswerStats) -> list[str]:
    """`/stats` as sentences for a screen reader."""
    lines = []
    if stats.plan is not None:
        lines.append(f"Speculation: {stats.plan.state}, {stats.plan.why}.")
    for accepted, n_rounds in enumerate(stats.totals.histogram):
        if n_rounds:
            rounds = f"{n_rounds} round{'s' * (n_rounds != 1)}"
            lines.append(f"{rounds} with {accepted} accepted token{'s' * (accepted != 1)}.")
    length = stats.totals.mean_accepted_length
    if length is not None:
        lines.append(f"{length:.1f} tokens per speculative pass.")
    return [*lines, format_status_sentences(stats)]
