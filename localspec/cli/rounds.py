"""Rounds told one by one: with marks, or in words alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from localspec.clean import clean
from localspec.cli import marks
from localspec.protocol.events import Finished, Round, Token
from localspec.protocol.stats import Totals
from localspec.units import milliseconds, per_second, percent

_VISIBLE = str.maketrans({"\n": "\\n", "\t": "\\t"})
_ENDS = {
    "eog": "The model ended it.",
    "stop": "A stop text ended it.",
    "length": "The limit of tokens ended it.",
    "context": "The context was full.",
    "cancelled": "It was stopped.",
    "error": "An error ended it.",
}


def told(event: Round, *, plain: bool, colour: bool = False) -> str:
    """One round as a line."""
    return _in_words(event) if plain else _with_marks(event, colour)


def _with_marks(event: Round, colour: bool) -> str:
    source = clean(event.source or "plain", multiline=False)
    kept = f"{event.accepted}/{event.drafted}" if event.drafted else ""
    shown = " ".join(marks.marked(_on_one_line(token), colour) for token in event.tokens)
    return f"{event.n:>5}  {source:<7} {kept:>5}  {milliseconds(_ms(event)):>8}  {shown}".rstrip()


def _in_words(event: Round) -> str:
    beginning = f"Round {event.n}, {milliseconds(_ms(event))}:"
    texts = [json.dumps(clean(token.text), ensure_ascii=False) for token in event.tokens]
    if not event.drafted:
        return f"{beginning} no guess. Said {', '.join(texts)}."
    source = clean(event.source or "", multiline=False)
    kept = texts[: event.accepted]
    line = f"{beginning} {source} guessed {event.drafted}, {event.accepted} kept"
    line += f": {', '.join(kept)}." if kept else "."
    words = {"correction": "Corrected to", "bonus": "Bonus", "plain": "Then", "accepted": "Then"}
    for token, text in zip(event.tokens[event.accepted :], texts[event.accepted :], strict=True):
        line += f" {words[token.kind]} {text}."
    return line


def _on_one_line(token: Token) -> Token:
    return replace(token, text=clean(token.text).translate(_VISIBLE))


def _ms(event: Round) -> float:
    return event.ms.draft + event.ms.verify + event.ms.host


def summary(rounds: Sequence[Round], ended: Finished | None) -> str:
    """All rounds of an answer in a line or two, counted anew."""
    totals = Totals()
    for event in rounds:
        totals.add(event)
    later = rounds[1:]
    seconds = sum(map(_ms, later)) / 1e3
    rate = sum(len(event.tokens) for event in later) / seconds if seconds > 0 else None
    told = [f"{totals.tokens} tokens in {len(rounds)} passes"]
    if totals.drafted:
        kept = percent(totals.acceptance_rate)
        told.append(f"{totals.accepted} of {totals.drafted} guesses kept ({kept})")
        told.append(f"{totals.mean_accepted_length:.1f} tokens per pass that guessed")
    told.append(per_second(rate))
    end = _ENDS[ended.reason] if ended else "It breaks off here."
    return f"{', '.join(told)}. {end}"
