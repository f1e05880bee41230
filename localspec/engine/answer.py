"""The steps of one answer become rounds of text, with their sums."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from localspec.engine.insight import Chance, Insight
from localspec.engine.loop import End, Step
from localspec.engine.text import TextStream
from localspec.engine.thought import Thought
from localspec.protocol.events import (
    Alternative,
    Event,
    Finished,
    FinishReason,
    Notice,
    Plan,
    Prefill,
    Round,
    Token,
    TokenClass,
)
from localspec.protocol.stats import Totals
from localspec.protocol.wire import Generate


class Vocabulary(Protocol):
    def is_end(self, token: int) -> bool: ...

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for."""
        ...

    def token_text(self, token: int) -> bytes:
        """How the vocabulary writes a token, a control token too."""
        ...


class Answer:
    """Turns the loop's steps into rounds of text."""

    def __init__(
        self,
        request: Generate,
        vocabulary: Vocabulary,
        why: str,
        news: Callable[[], Plan | None] = lambda: None,
        thought: Thought | None = None,
    ) -> None:
        self._text = TextStream(request.stop)
        self._vocabulary = vocabulary
        self._why = why
        self._thought = thought
        self._news = news
        """Asked after every round whether the way of speculating changed."""
        self._totals = Totals()
        self._began = time.perf_counter()
        self._first: float | None = None
        self._prompt_tokens = 0
        self._reused = 0
        for token in request.begun:  # was told; what it left unfinished comes with the next one
            self._text.push(self._piece(token))

    def events(self, loop: Iterator[Prefill | Step | End]) -> Iterator[Event]:
        if self._text.stopped:
            yield self._finished("stop")
            return
        for step in loop:
            if isinstance(step, Prefill):
                self._prompt_tokens, self._reused = step.total, step.reused
                yield step
            elif isinstance(step, End):
                yield self._finished(step.reason)
            else:
                event = self._round(step)
                self._totals.add(event)
                self._first = self._first or time.perf_counter()
                yield event
                plan = self._news()
                if plan is not None:
                    yield plan
                if step.width == 0:
                    yield _cut_short(self._thought)
                if self._text.stopped:
                    yield self._finished("stop")
                    return

    def _round(self, step: Step) -> Round:
        drafted = len(step.draft.tokens)
        tokens: list[Token] = []
        for i, token in enumerate(step.tokens):
            kind = _class(i, drafted, step.accepted)
            tokens.append(Token(token, self._text.push(self._piece(token)), kind))
            if self._text.stopped:
                break
        if step.insights:
            tokens = list(map(self._seen, tokens, step.insights))
        n = self._totals.rounds + self._totals.plain_rounds
        return Round(
            n=n,
            source=step.draft.source if drafted else None,
            reason=step.draft.reason or self._why_of(drafted, n),
            drafted=drafted,
            accepted=min(step.accepted, len(tokens)),
            tokens=tuple(tokens),
            ms=step.ms,
            guarded=step.guarded,
        )

    def _piece(self, token: int) -> bytes:
        return b"" if self._vocabulary.is_end(token) else self._vocabulary.piece(token)

    def _seen(self, token: Token, insight: Insight) -> Token:
        taken = insight.taken
        return replace(
            token,
            p_target=taken.p,
            p_draft=taken.p_draft,
            rank=taken.rank,
            instead=alternatives(insight, self._vocabulary),
        )

    def _why_of(self, drafted: int, n: int) -> str:
        if drafted:
            return self._why
        return "nothing to guess with yet" if n == 0 else "no guess"

    def _finished(self, reason: FinishReason) -> Finished:
        now = time.perf_counter()
        first = self._first or now
        later = self._totals.tokens - 1
        decode = now - first
        totals: dict[str, Any] = {
            "tokens": self._totals.tokens,
            "prompt_tokens": self._prompt_tokens,
            "reused_tokens": self._reused,
            "timings": {
                "prefill_ms": round((first - self._began) * 1e3, 3),
                "first_token_ms": round((first - self._began) * 1e3, 3),
                "decode_ms": round(decode * 1e3, 3),
                "tokens_per_second": round(later / decode, 3) if later > 0 and decode else None,
            },
            "speculation": self._totals.speculation(),
        }
        if self._thought is not None and self._thought.begun:
            totals["thinking"] = {"tokens": self._thought.tokens, "open": self._thought.inside}
        return Finished(reason, self._text.finish(), totals)


def _cut_short(thought: Thought | None) -> Notice:
    n = thought.tokens if thought else 0
    return Notice(
        "info", "thinking-ended", f"The thinking was ended after {n:,} tokens: its budget."
    )


def alternatives(insight: Insight, words: Vocabulary) -> tuple[Alternative, ...]:
    """What was not taken, with its text."""
    return tuple(_alternative(other, words) for other in insight.instead)


def _alternative(other: Chance, words: Vocabulary) -> Alternative:
    piece = b"" if words.is_end(other.id) else words.piece(other.id)
    text = (piece or words.token_text(other.id)).decode("utf-8", "replace")
    return Alternative(other.id, text, other.p, other.rank, other.p_draft, other.guessed)


def _class(i: int, drafted: int, accepted: int) -> TokenClass:
    if i < accepted:
        return "accepted"
    if not drafted:
        return "plain"
    return "bonus" if accepted == drafted else "correction"
