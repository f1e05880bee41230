"""How tokens and their numbers look as terminal text."""

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
    "accepted": "kept guess",
    "bonus": "bonus",
    "correction": "correction",
    "plain": "not guessed",
}
_BAR_BLOCKS = " ▏▎▍▌▋▊▉█"


def token_glyphs() -> dict[TokenClass, str]:
    """One mark a class; plain letters where stdout cannot show the real ones."""
    try:
        "".join(TOKEN_GLYPHS.values()).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII_GLYPHS
    return TOKEN_GLYPHS


def mark_token(token: Token, colour: bool) -> str:
    """The token's text with its mark, before any white space that ends it."""
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
    """The lines of `--stats`: the person's words first.  `plain`: no bars."""
    speculation, timings = totals["speculation"], totals["timings"]
    if plan is not None:
        yield f"{plan.state.upper()}  {plan.why}"
    if speculation["drafted"]:
        kept = f"{speculation['accepted']} of {speculation['drafted']}"
        yield (
            f"{percent(speculation['acceptance_rate'])} of guesses kept ({kept})"
            f" · {speculation['mean_accepted_length']:.1f} tokens per pass"
            f" · {speculation['rounds']} rounds"
        )
        counts = speculation["histogram"]
        yield "kept per round  " + (
            format_histogram_words(counts) if plain else format_histogram(counts)
        )
    if speculation["guarded"]:
        yield f"{speculation['guarded']} near-ties computed again, alone"
    yield (
        f"{totals['tokens']} tokens · {token_rate(timings['tokens_per_second'])}"
        f" · first token {milliseconds(timings['first_token_ms'])}"
        f" · host {milliseconds(speculation['host_ms_per_round'])} a round · seed {seed}"
    )


def format_histogram(counts: list[int]) -> str:
    """Counts of rounds that kept 0, 1, 2, … guesses, with bars."""
    most = max(counts, default=0) or 1
    return "  ".join(f"{i} {_format_bar(count / most)} {count}" for i, count in enumerate(counts))


def format_histogram_words(counts: list[int]) -> str:
    """The same in words."""
    return ", ".join(f"{kept}: {times} times" for kept, times in enumerate(counts) if times)


def _format_bar(share: float, width: int = 6) -> str:
    eighths = round(share * width * 8)
    if token_glyphs() is not TOKEN_GLYPHS:
        return "#" * round(share * width)
    return ("█" * (eighths // 8) + _BAR_BLOCKS[eighths % 8]).rstrip()


# --- Rounds told one by one: with marks, or in words alone.

_WHITESPACE_ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t"})
_FINISH_TEXT = {
    "eog": "The model ended it.",
    "stop": "A stop text ended it.",
    "length": "The limit of tokens ended it.",
    "context": "The context was full.",
    "cancelled": "It was stopped.",
    "error": "An error ended it.",
}


def format_round(event: Round, *, plain: bool, colour: bool = False) -> str:
    """One round as a line."""
    return _format_spoken_round(event) if plain else _format_marked_round(event, colour)


def _format_marked_round(event: Round, colour: bool) -> str:
    source = sanitize(event.source or "plain", multiline=False)
    kept = f"{event.accepted}/{event.drafted}" if event.drafted else ""
    shown = " ".join(mark_token(_escape_whitespace(token), colour) for token in event.tokens)
    return (
        f"{event.n:>5}  {source:<7} {kept:>5}  {milliseconds(_round_ms(event)):>8}  {shown}"
    ).rstrip()


def _format_spoken_round(event: Round) -> str:
    beginning = f"Round {event.n}, {milliseconds(_round_ms(event))}:"
    texts = [json.dumps(sanitize(token.text), ensure_ascii=False) for token in event.tokens]
    if not event.drafted:
        return f"{beginning} no guess. Said {', '.join(texts)}."
    source = sanitize(event.source or "", multiline=False)
    kept = texts[: event.accepted]
    line = f"{beginning} {source} guessed {event.drafted}, {event.accepted} kept"
    line += f": {', '.join(kept)}." if kept else "."
    words = {"correction": "Corrected to", "bonus": "Bonus", "plain": "Then", "accepted": "Then"}
    for token, text in zip(event.tokens[event.accepted :], texts[event.accepted :], strict=True):
        line += f" {words[token.kind]} {text}."
    return line


def _escape_whitespace(token: Token) -> Token:
    return replace(token, text=sanitize(token.text).translate(_WHITESPACE_ESCAPES))


def _round_ms(event: Round) -> float:
    return event.ms.draft + event.ms.verify + event.ms.host


def format_answer_summary(rounds: Sequence[Round], finished: GenerationFinished | None) -> str:
    """All rounds of an answer in a line or two, counted anew."""
    totals = RoundTotals()
    for event in rounds:
        totals.add(event)
    later = rounds[1:]
    seconds = sum(map(_round_ms, later)) / 1e3
    rate = sum(len(event.tokens) for event in later) / seconds if seconds > 0 else None
    told = [f"{totals.tokens} tokens in {len(rounds)} passes"]
    if totals.drafted:
        kept = percent(totals.acceptance_rate)
        told.append(f"{totals.accepted} of {totals.drafted} guesses kept ({kept})")
        told.append(f"{totals.mean_accepted_length:.1f} tokens per pass that guessed")
    told.append(token_rate(rate))
    end = _FINISH_TEXT[finished.reason] if finished else "It breaks off here."
    return f"{', '.join(told)}. {end}"


# --- What is said of an answer when it is done, in the person's words.


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """The numbers of one answer."""

    finished: GenerationFinished
    totals: RoundTotals
    plan: SpeculationPlan | None
    plain_tokens_per_second: float | None
    """Tokens a second without speculation, as measured here; None until it is."""
    n_ctx: int
    stopped_ms: float | None = None
    """How long it took to stop, where it was asked to."""

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
        """Tokens in the context now."""
        known = self.finished.totals
        return int(known.get("prompt_tokens", 0)) + int(known.get("tokens", self.totals.tokens))

    @property
    def ended_in_thinking(self) -> bool:
        """Whether it ended before the thinking did."""
        return bool(self.finished.totals.get("thinking", {}).get("open"))

    @property
    def is_context_full(self) -> bool:
        return self.finished.reason == "context"


def format_status_line(stats: AnswerStats) -> str:
    """The status line: `2.1× plain · 62 % of guesses kept · 79 tok/s · context 1.2k / 16k`."""
    parts = []
    if stats.stopped_ms is not None:
        parts.append(f"stopped in {milliseconds(stats.stopped_ms)}")
    if stats.finished.reason == "length":
        parts.append("limit of tokens reached")
    if stats.is_context_full:
        parts.append("context full")
    if stats.ended_in_thinking:
        parts.append("stopped in thinking")
    if stats.speedup is not None:
        parts.append(f"{stats.speedup:.1f}× plain")
    if stats.totals.drafted:
        parts.append(f"{percent(stats.totals.acceptance_rate)} of guesses kept")
    elif stats.plan is not None:
        parts.append(f"speculation {stats.plan.state}")
    if stats.tokens_per_second is not None:
        parts.append(token_rate(stats.tokens_per_second))
    parts.append(f"context {short_count(stats.context_tokens)} / {short_count(stats.n_ctx)}")
    return " · ".join(parts)


def format_status_sentences(stats: AnswerStats) -> str:
    """The same without signs, to be read aloud."""
    told = []
    if stats.stopped_ms is not None:
        told.append(f"Stopped in {stats.stopped_ms:.0f} milliseconds.")
    if stats.finished.reason == "length":
        told.append("The limit of tokens is reached.")
    if stats.is_context_full:
        told.append("The context is full.")
    if stats.ended_in_thinking:
        told.append("It stopped in its thinking.")
    if stats.totals.drafted:
        kept = f"{stats.totals.accepted} of {stats.totals.drafted} guesses kept"
        faster = "" if stats.speedup is None else f", {stats.speedup:.1f} times plain speed"
        told.append(f"{kept}{faster}.")
    if stats.tokens_per_second is not None:
        told.append(f"{stats.tokens_per_second:.0f} tokens per second.")
    told.append(f"Context: {stats.context_tokens} of {stats.n_ctx} tokens.")
    return " ".join(told)


def format_stats_sentences(stats: AnswerStats) -> list[str]:
    """`/stats` in words alone."""
    told = []
    if stats.plan is not None:
        told.append(f"Speculation: {stats.plan.state}, {stats.plan.why}.")
    for kept, times in enumerate(stats.totals.histogram):
        if times:
            often = "Once" if times == 1 else f"{times} times"
            told.append(f"{often} {kept} {'guess' if kept == 1 else 'guesses'} kept.")
    length = stats.totals.mean_accepted_length
    if length is not None:
        told.append(f"{length:.1f} tokens per pass that guessed.")
    return [*told, format_status_sentences(stats)]
