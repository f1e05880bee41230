"""Answers of the Python API, with the statistics of `run --json`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypedDict, cast

from msgspec import Struct
from msgspec.structs import replace

from localspec.chat import conversation
from localspec.chat.answer import AnswerDelta, GeneratedAnswer
from localspec.chat.conversation import CallResult
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
from localspec.protocol.wire import (
    ChatMessage,
    GenerateCommand,
    ToolCall,
    VerifyMode,
)
from localspec.tools.approval import REFUSALS, Verdict

_NO_PROMPT = {"prompt_tokens": 0, "reused_tokens": 0, "verify": "coupled"}
"""The totals of an answer that was stopped before it began."""


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


class AnswerCall(Struct, frozen=True):
    """A call of a tool in an answer, and what became of it."""

    name: str  # The tool's full name, such as `time.convert_time`, or a function's.
    arguments: Mapping[str, Any]  # Empty if the model wrote none that are an object.
    result: str  # What the model was told; untrusted text.
    is_error: bool
    verdict: Verdict
    """Why it ran (`once`, `named`, …), or did not (`no`, `stopped`, `wrong`)."""

    @property
    def has_run(self) -> bool:
        return self.verdict not in REFUSALS

    def to_json(self) -> dict[str, Any]:
        """For the documents of `run --json`."""
        return {
            "name": self.name,
            "arguments": dict(self.arguments),
            "result": self.result,
            "is_error": self.is_error,
            "verdict": self.verdict,
        }


class Answer(Struct, frozen=True):
    """A model's answer.

    `str()` returns the text; the fields are those of `run --json`.
    """

    text: str
    """The whole text, with thinking and calls. Control characters are not removed."""
    said: str  # The text without thinking and without calls.
    tokens: tuple[Token, ...]
    """With `id`, `text`, and the class as `kind`; on request with probabilities."""
    finish_reason: FinishReason
    """Why the answer ended.

    `eog` (end of generation), `stop` (a stop string), `length` (max_tokens), `context`
    (the context is full), `cancelled` (stopped by the caller).
    """
    model: str  # File name.
    draft: str | None  # File name; None without a draft.
    seed: int
    verify: VerifyMode
    """The verification method. With `coupled`, `seed` reproduces the answer."""
    prompt_tokens: int
    reused_tokens: int  # Prompt tokens reused from the last call.
    timings: AnswerTimings
    speculation: AnswerSpeculation
    notices: tuple[Notice, ...] = ()  # Each has `message` and `hint`.
    calls: tuple[AnswerCall, ...] = ()
    """The calls of tools, in their order."""
    messages: tuple[ChatMessage, ...] = ()
    """What the answer adds to a chat: add it to the messages before the next question."""

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
            "calls": [call.to_json() for call in self.calls],
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


def split_said(delta: AnswerDelta) -> list[Piece]:
    """The pieces of an answer that is offered tools: what is certainly said.

    A round's text comes with its last token.
    """
    said = "".join(part.text for part in delta.parts if not part.is_thinking)
    event = delta.event
    if isinstance(event, Round):
        *earlier, last = event.tokens
        return [*(Piece("", token) for token in earlier), Piece(said, last)]
    return [Piece(said)] if said else []


def build_answer(
    generated: GeneratedAnswer,
    request: GenerateCommand,
    ready: EngineReady,
    loaded: LoadedModel,
    load_notices: Sequence[Notice] = (),
) -> Answer:
    """A step of an answer, or all of it; the figures are those of all steps so far.

    One that was stopped before it began is empty and `cancelled`.
    """
    finished = generated.finished
    if finished is None:
        finished = GenerationFinished("cancelled")
    totals = {**_NO_PROMPT, **generated.joined_totals}
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
        verify=totals["verify"],
        prompt_tokens=totals["prompt_tokens"],
        reused_tokens=totals["reused_tokens"],
        timings=cast(AnswerTimings, timings),
        speculation=cast(AnswerSpeculation, totals["speculation"]),
        notices=(*load_notices, *generated.notices),
        messages=(conversation.build_answer(turn, loaded.thinking_markers),),
    )


def make_call(call: ToolCall, result: CallResult) -> AnswerCall:
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    return AnswerCall(
        name=result.tool,
        arguments=arguments,
        result=result.text,
        is_error=result.is_error,
        verdict=result.verdict,
    )


def join_steps(answers: Sequence[Answer]) -> Answer:
    """The answer of one step, or of several with calls between them.

    The figures are those of the last one: they have the steps before it.
    """
    last = answers[-1]
    if len(answers) == 1:
        return last
    tokens: list[Token] = []
    notices: list[Notice] = []
    for answer in answers:
        tokens += answer.tokens
        notices += answer.notices
    said = [answer.said.strip() for answer in answers]
    return replace(
        last,
        text="".join(answer.text for answer in answers),
        said="\n\n".join(filter(None, said)),
        tokens=tuple(tokens),
        notices=tuple(notices),
    )
