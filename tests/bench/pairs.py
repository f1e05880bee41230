"""Pairs in this very process, for the checks of `verify`; and pairs whose words are bent."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from localspec.engine.session import Session
from localspec.protocol.events import (
    EngineReady,
    Event,
    GenerationFinished,
    Round,
    RoundTimes,
    Token,
)
from localspec.protocol.wire import (
    GenerateCommand,
    LoadCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
)
from tests.sessions import SETTINGS

DIFFERENCE = 0.01
"""How far widths disagree in a scripted engine, in logits."""


class InProcess:
    """A session, as the parent sees one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.measured: MeasuredCosts | None = None

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        return self._session.generate(request)

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        for event in self._session.probe(probe):
            if isinstance(event, MeasuredCosts):
                self.measured = event
            else:
                yield event

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        return self._session.replay(replay)


@contextmanager
def opened(target: Path, draft: Path | None = None) -> Iterator[InProcess]:
    session = Session(LoadCommand(str(target), str(draft) if draft else None, SETTINGS, SETTINGS))
    try:
        yield InProcess(session)
    finally:
        session.close()


Draw = Callable[[GenerateCommand, int], int]
"""The token that an engine says at a place of its answer."""


class Scripted:
    """An engine of eight tokens, equally likely everywhere; which one it is the seed says.

    `says` is what it answers.  Asked again it says what it ought to have said, or where it `rounds`
    in passes of several tokens, the same again.
    """

    def __init__(self, says: Draw, *, margin: float = 1.0, rounds: bool = False) -> None:
        self._says, self._margin, self._rounds = says, margin, rounds
        self.measured: MeasuredCosts | None = None
        self.ready = EngineReady({}, "big.gguf", "small.gguf", (), {}, {}, 1.0)

    def close(self) -> None:
        pass

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        assert probe.difference
        self.measured = MeasuredCosts(1.0, {"1": 1.0}, difference=DIFFERENCE)
        yield from ()

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        place = 0
        while place < request.max_tokens:
            width = 2 if place and request.spec != "off" else 1
            ids = [self._says(request, place + i) for i in range(width)]
            ids = ids[: request.max_tokens - place]
            tokens = tuple(Token(i, f"t{i}", "plain") for i in ids)
            drafted = len(ids) - 1
            yield Round(place, None, "", drafted, drafted, tokens, RoundTimes(0, 0, 0))
            place += len(ids)
        yield GenerationFinished("length")

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        wide = max(replay.widths, default=1) > 1
        request = GenerateCommand(replay.text, replay.sampling, spec="model" if wide else "off")
        again = self._says if self._rounds else honest
        n = len(replay.tokens)
        return ReplayResult(
            best=tuple(again(request, place) for place in range(n)),
            margin=(self._margin,) * n,
            probability=tuple(1 / 8 if token < 8 else 0.0 for token in replay.tokens),
            below=tuple(min(token / 8, 1.0) for token in replay.tokens),
            above=tuple(min(token / 8, 1.0) for token in replay.tokens),
        )


def honest(request: GenerateCommand, place: int) -> int:
    """The token that the seed picks; a greedy one needs no seed."""
    seed = request.sampling.seed if request.sampling.temperature else 0
    return random.Random(1_000_003 * seed + place).randrange(8)
