"""A measurement with growing results, and the recording of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Protocol

from msgspec import Struct

from localspec.engine_process import exit_causes
from localspec.errors import EngineError
from localspec.launch import Engine
from localspec.protocol.events import EngineExit, GenerationFinished, Round, Token
from localspec.protocol.wire import GenerateCommand


class MeasurementProgress(Struct, frozen=True):
    """One line about what is measured now."""

    text: str
    is_step: bool = False  # Begins a part of the measurement.


class Measurement(Protocol):
    """What a command measures.

    Once it has begun, any thread may read its results.
    """

    @property
    def has_begun(self) -> bool: ...

    @property
    def has_results(self) -> bool: ...

    def to_json(self) -> dict[str, Any]: ...


class AnswerCancelled(Exception):  # noqa: N818  not an error
    """The user cancelled the measurement."""


class RecordedAnswer(Struct, frozen=True):
    request: GenerateCommand
    rounds: tuple[Round, ...]
    # Seconds from the request to each round, by the parent's clock.
    arrivals: tuple[float, ...]
    end: GenerationFinished

    @property
    def tokens(self) -> list[Token]:
        tokens: list[Token] = []
        for event in self.rounds:
            tokens += event.tokens
        return tokens

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens) + self.end.tail

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token, by the engine's clock."""
        return self.end.totals.get("timings", {}).get("tokens_per_second") or None

    @property
    def first_token_ms(self) -> float | None:
        """From the request to the first round, by the parent's clock."""
        return self.arrivals[0] * 1e3 if self.arrivals else None

    @property
    def latencies(self) -> list[float]:
        """Milliseconds of each token after the first round.

        A round's time is divided by its tokens: one that arrives 30 ms after the round
        before it with three tokens gives 10, 10 and 10.
        """
        latencies: list[float] = []
        waits = zip(self.rounds[1:], self.arrivals, self.arrivals[1:], strict=False)
        for event, before, now in waits:
            n_tokens = len(event.tokens)
            if n_tokens:
                latencies += [(now - before) * 1e3 / n_tokens] * n_tokens
        return latencies


def record_answer(
    engine: Engine,
    request: GenerateCommand,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> RecordedAnswer:
    """Raises AnswerCancelled, also after `engine.stop()`, and EngineError."""
    rounds: list[Round] = []
    arrivals: list[float] = []
    began = clock()
    events = engine.generate(request)
    try:
        for event in events:
            if should_stop():
                raise AnswerCancelled
            if isinstance(event, Round):
                arrivals.append(clock() - began)
                rounds.append(event)
            elif isinstance(event, EngineExit):
                raise exit_causes.exit_error(event)
            elif isinstance(event, GenerationFinished):
                if event.reason == "cancelled":
                    raise AnswerCancelled
                return RecordedAnswer(request, tuple(rounds), tuple(arrivals), event)
    finally:
        # Closing stops the engine now, not at garbage collection.
        if isinstance(events, Generator):
            events.close()
    raise EngineError(
        "The engine ended an answer without a final event.", "This is a bug."
    )
