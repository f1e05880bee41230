"""An answer, whole or in pieces, with the numbers that `run --json` has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

from localspec.chat import thinking
from localspec.chat.settings import LoadedModel
from localspec.protocol.events import (
    EngineReady,
    Event,
    FinishReason,
    GenerationFinished,
    Notice,
    Prefill,
    Round,
    Token,
    TokenClass,
    token_to_json,
)
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import GenerateCommand, VerifyMode


class AnswerTimings(TypedDict):
    """Milliseconds; tokens a second after the first token, None where there was only one."""

    load_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    tokens_per_second: float | None


class AnswerSpeculation(TypedDict):
    """What guessing did, summed over the answer's rounds.  Rates are None where nothing was
    drafted."""

    rounds: int
    """Rounds that drafted."""
    drafted: int
    accepted: int
    acceptance_rate: float | None
    """accepted / drafted."""
    mean_accepted_length: float | None
    """Tokens emitted per target pass that verified a draft."""
    histogram: list[int]
    """How many drafting rounds kept 0, 1, 2, … tokens."""
    by_source: dict[str, dict[str, int]]
    host_ms_per_round: float | None
    paused_rounds: int
    """Rounds that did not draft."""
    guarded: int
    """Tokens computed again, alone: `exact`."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What a stream gives: one token, with the text that became certain by it.

    The text is empty while bytes wait for the rest of a character, or where it may begin a stop
    string; what was held back to the end comes in a last piece without a token.
    """

    text: str
    token: Token | None = None

    @property
    def kind(self) -> TokenClass | None:
        """`accepted`, `bonus`, `correction` or `plain`; None where there is no token."""
        return self.token.kind if self.token else None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """What a model answered.  `str()` of it is the text; the fields are those of `run --json`."""

    text: str
    """All of it, thinking included, as the model wrote it: control characters are not removed."""
    said: str
    """The text without what was thought."""
    tokens: tuple[Token, ...]
    """Each with `id`, `text`, and its class as `kind`; with `probabilities` also its chances."""
    finish_reason: FinishReason
    """`eog` (the model ended), `stop` (a stop string), `length` (max_tokens), `context` (no more
    room), `cancelled` (stopped by you)."""
    model: str
    draft: str | None
    """File names."""
    seed: int
    verify: VerifyMode
    """What reproduces the answer."""
    prompt_tokens: int
    reused_tokens: int
    """Of the prompt's, how many the engine still knew from the last call."""
    timings: AnswerTimings
    speculation: AnswerSpeculation
    notices: tuple[Notice, ...] = ()
    """What was to be told on the way: `message` and `hint`."""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 60 else f"{self.text[:59]}…"
        return f"Answer({text!r}, {len(self.tokens)} tokens, {self.finish_reason})"

    def document(self) -> dict[str, Any]:
        """The document of `localspec run --json`, ready for `json.dumps`."""
        return {
            "schema": 1,
            "text": self.text,
            "tokens": [token_to_json(token) for token in self.tokens],
            "finish_reason": self.finish_reason,
            "model": self.model,
            "draft": self.draft,
            "seed": self.seed,
            "verify": self.verify,
            "prompt_tokens": self.prompt_tokens,
            "timings": dict(self.timings),
            "speculation": dict(self.speculation),
        }


@dataclass(slots=True)
class AnswerBuilder:
    """An answer in the making: events in, pieces out."""

    tokens: list[Token] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    finished: GenerationFinished | None = None
    starts_in_thinking: bool = False
    """Whether it begins inside a thinking part."""

    def add_event(self, event: Event) -> list[Piece]:
        if isinstance(event, Round):
            self.tokens += event.tokens
            return [Piece(token.text, token) for token in event.tokens]
        if isinstance(event, GenerationFinished):
            self.finished = event
            return [Piece(event.tail)] if event.tail else []
        if isinstance(event, Notice):
            self.notices.append(event)
        elif isinstance(event, Prefill):
            self.starts_in_thinking = self.starts_in_thinking or event.thinking
        return []

    @property
    def text(self) -> str:
        """What came so far."""
        tail = self.finished.tail if self.finished else ""
        return "".join(token.text for token in self.tokens) + tail

    def build(self, request: GenerateCommand, ready: EngineReady, loaded: LoadedModel) -> Answer:
        """The whole; one that was stopped before it began has no text."""
        finished = self.finished or GenerationFinished("cancelled", totals=_empty_totals())
        totals, text = finished.totals, self.text
        return Answer(
            text=text,
            said=thinking.strip_thinking(text, loaded.thinking_markers, self.starts_in_thinking),
            tokens=tuple(self.tokens),
            finish_reason=finished.reason,
            model=ready.model,
            draft=ready.draft,
            seed=request.sampling.seed,
            verify=request.verify,
            prompt_tokens=totals["prompt_tokens"],
            reused_tokens=totals["reused_tokens"],
            timings=cast(AnswerTimings, {"load_ms": round(ready.load_ms, 3), **totals["timings"]}),
            speculation=cast(AnswerSpeculation, totals["speculation"]),
            notices=tuple(self.notices),
        )


def _empty_totals() -> dict[str, Any]:
    zero = ("prefill_ms", "first_token_ms", "decode_ms")
    timings = dict.fromkeys(zero, 0.0) | {"tokens_per_second": None}
    counts = {"prompt_tokens": 0, "reused_tokens": 0}
    return counts | {"timings": timings, "speculation": RoundTotals().to_json()}
