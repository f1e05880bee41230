"""One answer as it is generated: its events, text, tokens and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.chat.conversation import Turn
from localspec.chat.decode_speed import DecodeSpeed
from localspec.models.chat_template.thinking_tags import (
    AnswerPart,
    make_parser,
    merge_parts,
)
from localspec.protocol.events import (
    EngineExit,
    EngineReady,
    Event,
    FinishReason,
    GenerationFinished,
    Notice,
    PictureReading,
    Prefill,
    Round,
    SpeculationPlan,
    Token,
)
from localspec.protocol.round_totals import RoundTotals
from localspec.protocol.wire import ToolCall

if TYPE_CHECKING:
    from localspec.chat.answer_calls import AnswerCallReader

_WHOLE: tuple[FinishReason, ...] = ("eog", "stop")
"""How an answer ends whose last call is complete."""
_MAY_CALL: tuple[FinishReason, ...] = (*_WHOLE, "length")
"""How an answer ends whose complete calls run.

A weak model writes on behind its calls, up to the limit of tokens. A full context has
no place for results, and a person who stops an answer wants nothing run.
"""
PLAIN_SPEED = "plain_tokens_per_second"
"""A key of the timings of an answer that has ended, which a chat adds."""


def read_timing(end: GenerationFinished, name: str) -> float | None:
    """None if it was not measured; what comes from a file may be anything."""
    timings = end.totals.get("timings")
    value = timings.get(name) if isinstance(timings, dict) else None
    return float(value) if isinstance(value, int | float) else None


def with_plain_speed(end: GenerationFinished, speed: float) -> GenerationFinished:
    """The end of an answer, with tokens per second without speculation.

    It is saved with the answer: later answers of the chat, and a later start of the
    program, measure another speed. One that is there already stays.
    """
    if read_timing(end, PLAIN_SPEED) is not None:
        return end
    timings = end.totals.get("timings", {})
    return replace(
        end, totals={**end.totals, "timings": {**timings, PLAIN_SPEED: speed}}
    )


class AnswerFigures(Struct, frozen=True):
    """The rounds of one step of an answer, or of several, and their sums."""

    rounds: list[Round]
    totals: RoundTotals
    decode_speed: DecodeSpeed

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> AnswerFigures:
        figures = cls([], RoundTotals(), DecodeSpeed())
        for event in rounds:
            figures.add(event)
        return figures

    def add(self, event: Round) -> None:
        self.rounds.append(event)
        self.totals.add(event)
        self.decode_speed.add(event)


class AnswerDelta(Struct, frozen=True):
    """An event, and the text that it adds to an answer."""

    event: Event
    parts: tuple[AnswerPart, ...] = ()
    """Text that is certainly thinking, or certainly visible.

    A marker's beginning is held back.
    """
    in_thinking: bool = False  # Whether the answer is inside its thinking part now.


class GeneratedAnswer:
    """Accumulates the events of one answer.

    An answer with calls of tools has a step before each of its results: each is a
    `GeneratedAnswer`. Its `figures` and `joined_totals` are those of all steps so far,
    and everything else is its own.

    One thread adds events. Others may read the statistics meanwhile, but not `turn` and
    `text`.
    """

    def __init__(
        self, turn: Turn | None = None, thinking_markers: tuple[str, str] | None = None
    ) -> None:
        self.rounds: list[Round] = []
        self.totals = RoundTotals()
        self.decode_speed = DecodeSpeed()
        self.decode_ms = 0.0  # Of all rounds but the first, which reads the prompt.
        self.plan: SpeculationPlan | None = None
        # The last one: its `total` is the size of the prompt.
        self.prefill: Prefill | None = None
        self.is_reading_prompt = False
        self.picture: PictureReading | None = None
        """The picture that is being read; None before and after."""
        self.notices: list[Notice] = []
        self.earlier_steps: tuple[GeneratedAnswer, ...] = ()
        self._all_steps: AnswerFigures | None = None  # None for a first step.
        self.finished: GenerationFinished | None = None
        self.engine_exit: EngineExit | None = None
        self._turn = turn or Turn("")
        self._new_events: list[Event] = []  # Events that are not part of `_turn` yet.
        self._tokens_in_prompt = 0
        """Tokens of this answer that the prompt has: it is read again on an overflow."""
        self._markers = thinking_markers
        self._splitter = make_parser(thinking_markers)
        self._calls: AnswerCallReader | None = None
        """None if the answer is offered no tools: then its text has no calls."""

    def continue_from(self, earlier_steps: Sequence[GeneratedAnswer]) -> None:
        """Make it a later step of an answer."""
        if not earlier_steps:
            return
        rounds: list[Round] = []
        for step in earlier_steps:
            rounds += step.rounds
        self.earlier_steps = tuple(earlier_steps)
        self._all_steps = AnswerFigures.of([*rounds, *self.rounds])

    @property
    def figures(self) -> AnswerFigures:
        """The figures of all steps so far."""
        if self._all_steps is not None:
            return self._all_steps
        return AnswerFigures(self.rounds, self.totals, self.decode_speed)

    def offer_tools(
        self, format_name: str, schemas: Mapping[str, Any] | None = None
    ) -> None:
        """Take calls out of the text from now on.

        `schemas` are the JSON Schemas of the tools' arguments, by the tools' names.
        """
        # The parsers of calls take a moment to import, and few chats have calls.
        from localspec.chat.answer_calls import AnswerCallReader  # noqa: PLC0415

        self._calls = AnswerCallReader(format_name, schemas)

    @property
    def n_call_characters(self) -> int:
        """How many characters of calls were written; it is quicker than `partial_calls`."""
        if self._calls is None:
            return 0
        return self._calls.n_characters

    @property
    def partial_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, of which the last one may not be complete."""
        if self._calls is None:
            return ()
        return self._calls.make_calls(self._turn.id)

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of an answer that has ended, without one that was cut.

        There are none if the answer was stopped, or has filled the context.
        """
        if self._calls is None or self.finished is None:
            return ()
        if self.finished.reason not in _MAY_CALL:
            return ()
        return self._calls.make_complete_calls(self._turn.id)

    def add(self, event: Event) -> AnswerDelta:
        if isinstance(event, EngineReady):
            return AnswerDelta(event)
        self._new_events.append(event)
        self.is_reading_prompt = isinstance(event, Prefill) and event.done < event.total
        if not isinstance(event, Notice):
            self.picture = None
        text = ""
        if isinstance(event, Round):
            if self.rounds:
                self.decode_ms += event.ms.total
            self.rounds.append(event)
            self.totals.add(event)
            self.decode_speed.add(event)
            if self._all_steps is not None:
                self._all_steps.add(event)
            text = "".join(token.text for token in event.tokens)
        elif isinstance(event, Prefill):
            self.prefill = event
            self._tokens_in_prompt = self.totals.tokens
            if not self.rounds:
                self._splitter = make_parser(self._markers, event.thinking)
        elif isinstance(event, SpeculationPlan):
            self.plan = event
        elif isinstance(event, PictureReading):
            self.picture = event
        elif isinstance(event, Notice):
            self.notices.append(event)
        elif isinstance(event, GenerationFinished):
            self.finished = event
            text = event.tail
        else:
            self.engine_exit = event
        parts = self._splitter.feed(text)
        if self.has_ended:
            parts += self._splitter.flush()
        if self._calls is not None:
            parts = self._take_calls_out(self._calls, parts)
        return AnswerDelta(event, merge_parts(parts), self._splitter.in_thinking)

    def _take_calls_out(
        self, reader: AnswerCallReader, parts: Sequence[AnswerPart]
    ) -> list[AnswerPart]:
        texts: list[AnswerPart] = []
        for part in parts:
            texts += reader.feed(part)
        if self.has_ended:
            is_cut = self.finished is None or self.finished.reason not in _WHOLE
            texts += reader.finish(is_cut=is_cut)
        return texts

    @property
    def has_ended(self) -> bool:
        return self.finished is not None or self.engine_exit is not None

    @property
    def turn(self) -> Turn:
        if self._new_events:
            self._turn = self._turn.with_events(self._new_events)
            self._new_events = []
            calls = self.calls
            if calls and self._calls is not None:
                self._turn = replace(
                    self._turn, calls=calls, call_format=self._calls.format
                )
        return self._turn

    @property
    def text(self) -> str:
        """The model's text so far, thinking included, unfiltered."""
        return self.turn.answer

    @property
    def tokens(self) -> tuple[Token, ...]:
        tokens: list[Token] = []
        for event in self.rounds:
            tokens += event.tokens
        return tuple(tokens)

    @property
    def context_tokens(self) -> int:
        """Tokens of the prompt and the answer; after the end, as the engine counts."""
        totals = self.final_totals
        if "prompt_tokens" in totals:
            n_answered = int(totals.get("tokens", self.totals.tokens))
            return int(totals["prompt_tokens"]) + n_answered
        n_prompt = self.prefill.total if self.prefill is not None else 0
        return n_prompt + self.totals.tokens - self._tokens_in_prompt

    @property
    def tokens_per_second(self) -> float | None:
        """As the engine has measured it; None before the end."""
        return self._timing("tokens_per_second")

    @property
    def first_token_ms(self) -> float | None:
        """The time to the first token of the first step; None before its end."""
        if self.earlier_steps:
            return self.earlier_steps[0].first_token_ms
        return self._timing("first_token_ms")

    @property
    def plain_tokens_per_second(self) -> float | None:
        """What its speed was compared with when it ended; see `with_plain_speed`."""
        return self._timing(PLAIN_SPEED)

    def _timing(self, name: str) -> float | None:
        return read_timing(self.finished, name) if self.finished else None

    @property
    def ended_in_thinking(self) -> bool:
        return bool(self.final_totals.get("thinking", {}).get("open"))

    @property
    def final_totals(self) -> dict[str, Any]:
        """Those of the event that ended the answer; empty before it."""
        return self.finished.totals if self.finished else {}

    @property
    def joined_totals(self) -> dict[str, Any]:
        """`final_totals`, with the sums of all steps.

        The prompt is that of the last step, which has the steps before it. An answer
        that was stopped before it began has sums of nothing.
        """
        own = self.final_totals
        if not self.earlier_steps and "speculation" in own:
            return own
        totals = self.figures.totals
        return {
            **own,
            "tokens": totals.tokens,
            "timings": self._join_timings(),
            "speculation": totals.to_json(),
        }

    def _join_timings(self) -> dict[str, float | None]:
        """Speed counts from the first token of each step.

        Of two steps with 3 and 5 tokens, 6 tokens were decoded in `decode_ms`.
        """
        prefill_ms = 0.0
        decode_ms = 0.0
        n_decoded = 0
        for step in (*self.earlier_steps, self):
            prefill_ms += step._timing("prefill_ms") or 0.0
            decode_ms += step._timing("decode_ms") or 0.0
            n_decoded += max(0, step.totals.tokens - 1)
        speed = None
        if n_decoded and decode_ms:
            speed = round(n_decoded / decode_ms * 1000, 3)
        return {
            "prefill_ms": round(prefill_ms, 3),
            "first_token_ms": self.first_token_ms,
            "decode_ms": round(decode_ms, 3),
            "tokens_per_second": speed,
        }


def replay_turn(
    turn: Turn, thinking_markers: tuple[str, str] | None
) -> tuple[GeneratedAnswer, Sequence[AnswerDelta]]:
    """An answer that was generated earlier, and its deltas."""
    answer = GeneratedAnswer(turn.without_answer(), thinking_markers)
    if turn.calls:
        answer.offer_tools(turn.call_format)
    return answer, [answer.add(event) for event in turn.events]
