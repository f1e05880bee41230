"""How tokens and their numbers look as terminal text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from localspec.clean import clean
from localspec.protocol.events import Plan, Token, TokenClass
from localspec.units import milliseconds, per_second, percent

GLYPHS: dict[TokenClass, str] = {
    "accepted": "ˢ",
    "bonus": "⁺",
    "correction": "▔",
    "plain": "·",
}
_ASCII: dict[TokenClass, str] = {"accepted": "~", "bonus": "+", "correction": "^", "plain": "."}
_STYLES: dict[TokenClass, dict[str, Any]] = {
    "accepted": {"fg": "green"},
    "bonus": {"fg": "cyan", "bold": True},
    "correction": {"fg": "yellow", "underline": True},
    "plain": {},
}
_WORDS = {
    "accepted": "kept guess",
    "bonus": "bonus",
    "correction": "correction",
    "plain": "not guessed",
}
_BLOCKS = " ▏▎▍▌▋▊▉█"


def glyphs() -> dict[TokenClass, str]:
    """One mark a class; plain letters where stdout cannot show the real ones."""
    try:
        "".join(GLYPHS.values()).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return _ASCII
    return GLYPHS


def marked(token: Token, colour: bool) -> str:
    """The token's text with its mark, before any white space that ends it."""
    text = clean(token.text)
    if not text:
        return ""
    body = text.rstrip()
    mark = glyphs()[token.kind]
    style = _STYLES[token.kind]
    shown = click.style(body + mark, **style) if colour and style else body + mark
    return shown + text[len(body) :]


def legend(colour: bool) -> str:
    marks = glyphs()
    parts = (f"{marks[kind]} {_WORDS[kind]}" for kind in marks)
    styles = _STYLES.values()
    shown = (click.style(p, **s) if colour else p for p, s in zip(parts, styles, strict=True))
    return "   ".join(shown)


def summary(
    plan: Plan | None, totals: dict[str, Any], seed: int, *, plain: bool = False
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
        yield "kept per round  " + (counted(counts) if plain else histogram(counts))
    if speculation["guarded"]:
        yield f"{speculation['guarded']} near-ties computed again, alone"
    yield (
        f"{totals['tokens']} tokens · {per_second(timings['tokens_per_second'])}"
        f" · first token {milliseconds(timings['first_token_ms'])}"
        f" · host {milliseconds(speculation['host_ms_per_round'])} a round · seed {seed}"
    )


def histogram(counts: list[int]) -> str:
    """Counts of rounds that kept 0, 1, 2, … guesses, with bars."""
    most = max(counts, default=0) or 1
    return "  ".join(f"{i} {_bar(count / most)} {count}" for i, count in enumerate(counts))


def counted(counts: list[int]) -> str:
    """The same in words."""
    return ", ".join(f"{kept}: {times} times" for kept, times in enumerate(counts) if times)


def _bar(share: float, width: int = 6) -> str:
    eighths = round(share * width * 8)
    if glyphs() is not GLYPHS:
        return "#" * round(share * width)
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip()
