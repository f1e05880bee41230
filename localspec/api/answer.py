"""Answers of the Python API, with the statistics of `run --json`."""

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
    """Milliseconds. `tokens_per_second` counts from the first token; None for a single token."""

    load_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_ms: float
    tokens_per_second: float | None


class AnswerSpeculation(TypedDict):
    """Speculation statistics of an answer. Rates are None if nothing was drafted."""

    rounds: int
    """Rounds with draft tokens."""
    drafted: int
    accepted: int
    acceptance_rate: float | None
    """accepted / drafted."""
    mean_accepted_length: float | None
    """Tokens emitted per target pass that verified a draft."""
    histogram: list[int]
    """Number of drafting rounds with 0, 1, 2, … accepted tokens."""
    by_source: dict[str, dict[str, int]]
    host_ms_per_round: float | None
    paused_rounds: int
    """Rounds without draft tokens."""
    guarded: int
    """Near-ties computed again in a pass of their own (exact mode)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One streamed token, with the text that it completes.

    The text is empty while a character is incomplete or a stop string may begin. Text held back
    at the end comes in a last piece without a token.
    """

    text: str
    token: Token | None = None

    @property
    def kind(self) -> TokenClass | None:
        """`accepted`, `bonus`, `correction` or `plain`; None without a token."""
        return self.token.kind if self.token else None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, repr=False)
class Answer:
    """A model's answer. `str()` returns the text; the fields are those of `run --json`."""

    text: str
    """The whole text, thinking included. Control characters are not removed."""
    said: str
    """The text without thinking."""
    tokens: tuple[Token, ...]
    """With `id`, `text`, and the class as `kind`; optionally also with probabilities."""
    finish_reason: FinishReason
    """`eog` (end of generation), `stop` (a stop string), `length` (max_tokens), `context` (the
    context is full), `cancelled` (stopped by the caller)."""
    model: str
    """File name."""
    draft: str | None
    """File name; None without a draft."""
    seed: int
    """Reproduces the answer, together with `verify`."""
    verify: VerifyMode
    prompt_tokens: int
    reused_tokens: int
    """Prompt tokens reused from the last call."""
    timings: AnswerTimings
    speculation: AnswerSpeculation
    notices: tuple[Notice, ...] = ()
    """Each has `message` and `hint`."""

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
    """Builds an answer from engine events."""

    tokens: list[Token] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    finished: GenerationFinished | None = None
    starts_in_thinking: bool = False
    """Whether the chat template opened the thinking part before the answer."""

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
        """The text so far."""
        tail = self.finished.tail if self.finished else ""
        return "".join(token.text for token in self.tokens) + tail

    def build(self, request: GenerateCommand, ready: EngineReady, loaded: LoadedModel) -> Answer:
        """Return the whole answer. An answer stopped before it began is empty and `cancelled`."""
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
    zeros = dict.fromkeys(("prefill_ms", "first_token_ms", "decode_ms"), 0.0)
    timings = zeros | {"tokens_per_second": None}
    counts = {"prompt_tokens": 0, "reused_tokens": 0}
    return counts | {"timings": timings, "speculation": RoundTotals().to_json()}
