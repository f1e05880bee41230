"""One answer with the passes it came from, and what the target alone says of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

from localspec.protocol.events import Dead, Event, Round, Token
from localspec.protocol.wire import Generate, Measured, Probe, Replay, Replayed
from localspec.worker import ending


class Engine(Protocol):
    """A loaded pair that can also be measured and asked again."""

    @property
    def measured(self) -> Measured | None: ...

    def generate(self, request: Generate) -> Iterator[Event]: ...

    def probe(self, probe: Probe) -> Iterator[Event]: ...

    def replay(self, replay: Replay) -> Replayed: ...


class Stopped(Exception):  # noqa: N818  no error
    """Somebody did not want to wait for the answer's end."""


class Stoppable:
    """An engine whose answers end with `Stopped` once they are not wanted any more."""

    def __init__(self, engine: Engine, stopped: Callable[[], bool]) -> None:
        self._engine, self._stopped = engine, stopped

    @property
    def measured(self) -> Measured | None:
        return self._engine.measured

    def generate(self, request: Generate) -> Iterator[Event]:
        events = self._engine.generate(request)
        try:
            for event in events:
                self._look()
                yield event
        finally:
            if isinstance(events, Generator):  # at once: the engine still writes
                events.close()

    def probe(self, probe: Probe) -> Iterator[Event]:
        return self._engine.probe(probe)

    def replay(self, replay: Replay) -> Replayed:
        self._look()
        return self._engine.replay(replay)

    def _look(self) -> None:
        if self._stopped():
            raise Stopped


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said to a request, round by round."""

    request: Generate
    rounds: tuple[Round, ...]

    @property
    def tokens(self) -> list[Token]:
        return [token for event in self.rounds for token in event.tokens]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def drafted(self) -> int:
        return sum(event.drafted for event in self.rounds)

    @property
    def accepted(self) -> int:
        return sum(event.accepted for event in self.rounds)

    def width_at(self, position: int) -> int:
        """Tokens in the pass that gave the token at this position; the last one beyond the end."""
        said = 0
        for event in self.rounds:
            said += len(event.tokens)
            if position < said:
                break
        return event.drafted + 1


def answer(engine: Engine, request: Generate) -> Answer:
    """The answer from an empty memory: what another text left there has its passes' shapes."""
    engine.replay(Replay(request.text, (), (), ()))
    rounds = []
    for event in engine.generate(request):
        if isinstance(event, Dead):
            raise ending.error(event)
        if isinstance(event, Round) and event.tokens:
            rounds.append(event)
    return Answer(request, tuple(rounds))


def replayed(engine: Engine, said: Answer) -> Replayed:
    """The target's own view of each token, in passes of the same shapes, without guessing.

    The first round reads the prompt, and a replay begins with that.
    """
    later = said.rounds[1:]
    return engine.replay(
        Replay(
            said.request.text,
            tuple(said.ids),
            tuple(event.drafted + 1 for event in later),
            tuple(len(event.tokens) for event in later),
            said.request.sampling,
        )
    )
