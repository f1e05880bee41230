"""Answers of the Python API, with the statistics of `run --json`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, cast

from msgspec import Struct

from localspec.chat.answer import GeneratedAnswer
from localspec.chat.settings import LoadedModel
from localspec.errors import LocalspecError, OptionHint, render_hint
from localspec.protocol.events import (
    EngineReady,
    Event,
    FinishReason,
    GenerationFinished,
    Notice,
    Round,
    Token,
    TokenClass,
    token_to_json,
)
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import GenerateCommand, VerifyMode


class AnswerTimings(TypedDict):
    """Milliseconds.

    `tokens_per_second` counts from the first token; it is None for a single token.
    `first_token_ms` is None if the answer was stopped before it.
    """

    load_ms: float
    prefill_ms: float
    first_token_ms: float | None
    decode_ms: float
    tokens_per_second: float | None


class AnswerSpeculation(TypedDict):
    """Speculation statistics of an answer. Rates are None if nothing was drafted."""

    rounds: int  # Rounds with draft tokens.
    drafted: int
    accepted: int
    acceptance_rate: float | None  # accepted / drafted.
    mean_accepted_length: float | None
    """Tokens emitted per target pass that verified a draft."""
    histogram: list[int]  # Number of drafting rounds with 0, 1, 2, … accepted tokens.
    by_source: dict[str, dict[str, int]]
    host_ms_per_round: float | None
    paused_rounds: int  # Rounds without draft tokens.


class Piece(Struct, frozen=True):
    """One streamed token, with the text that it completes.

    The text is empty while a character is incomplete or a stop string may begin. Text
    held back at the end comes in a last piece without a token.
    """

    text: str
    token: Token | None = None

    @property
    def kind(self) -> TokenClass | None:
        """`accepted`, `bonus`, `correction` or `plain`; None without a token."""
        return self.token.kind if self.token else None

    def __str__(self) -> str:
        return self.text


class Answer(Struct, frozen=True):
    """A model's answer.

    `str()` returns the text; the fields are those of `run --json`.
    """

    text: str  # The whole text, thinking included. Control characters are not removed.
    said: str  # The text without thinking.
    tokens: tuple[Token, ...]
    """With `id`, `text`, and the class as `kind`; on request with probabilities."""
    finish_reason: FinishReason
    """Why the answer ended.

    `eog` (end of generation), `stop` (a stop string), `length` (max_tokens), `context`
    (the context is full), `cancelled` (stopped by the caller).
    """
    model: str  # File name.
    draft: str | None  # File name; None without a draft.
    seed: int  # Reproduces the answer, together with `verify`.
    verify: VerifyMode
    prompt_tokens: int
    reused_tokens: int  # Prompt tokens reused from the last call.
    timings: AnswerTimings
    speculation: AnswerSpeculation
    notices: tuple[Notice, ...] = ()  # Each has `message` and `hint`.

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


@contextmanager
def python_hints() -> Iterator[None]:
    """In the hints of errors, options are arguments of Python."""
    try:
        yield
    except LocalspecError as error:
        error.hint = python_hint(error.hint)
        raise


def python_hint(hint: str) -> str:
    return render_hint(hint, _python_option)


def _python_option(option: OptionHint) -> str:
    """`--kv q8_0` becomes `kv="q8_0"`, `--ctx 8192` becomes `ctx=8192`."""
    name = option.name
    value = option.value
    if name == "anyway":
        return ""
    if name == "verbose":
        return "`detail` of this error"
    if not value:
        return name
    if value in ("on", "off"):
        is_on = value == "on"
        return f"{name}={is_on}"
    if value[0].islower():
        return f'{name}="{value}"'
    return f"{name}={value}"


def split_pieces(event: Event) -> list[Piece]:
    if isinstance(event, Round):
        return [Piece(token.text, token) for token in event.tokens]
    if isinstance(event, GenerationFinished) and event.tail:
        return [Piece(event.tail)]
    return []


def build_answer(
    generated: GeneratedAnswer,
    request: GenerateCommand,
    ready: EngineReady,
    loaded: LoadedModel,
    load_notices: Sequence[Notice] = (),
) -> Answer:
    """The whole answer. One that was stopped before it began is empty and `cancelled`."""
    finished = generated.finished
    if finished is None:
        finished = GenerationFinished("cancelled", totals=_empty_totals())
    totals = finished.totals
    turn = generated.turn
    timings = {"load_ms": round(ready.load_ms, 3), **totals["timings"]}
    return Answer(
        text=turn.answer,
        said=turn.visible_answer(loaded.thinking_markers),
        tokens=generated.tokens,
        finish_reason=finished.reason,
        model=ready.model,
        draft=ready.draft,
        seed=request.sampling.seed,
        verify=request.verify,
        prompt_tokens=totals["prompt_tokens"],
        reused_tokens=totals["reused_tokens"],
        timings=cast(AnswerTimings, timings),
        speculation=cast(AnswerSpeculation, totals["speculation"]),
        notices=(*load_notices, *generated.notices),
    )


def _empty_totals() -> dict[str, Any]:
    timings = {
        "prefill_ms": 0.0,
        "first_token_ms": None,
        "decode_ms": 0.0,
        "tokens_per_second": None,
    }
    counts = {"prompt_tokens": 0, "reused_tokens": 0}
    return counts | {"timings": timings, "speculation": RoundTotals().to_json()}
