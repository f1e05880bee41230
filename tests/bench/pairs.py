"""A scripted engine for the tests of `verify`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from localspec.protocol import events, wire
from tests.support.fake_engine import BareEngine

Draw = Callable[[wire.GenerateCommand, int], int]
"""Returns an engine's token at a position of its answer."""


class Scripted(BareEngine):
    """An engine with eight tokens, always equally likely; the seed selects one.

    It answers with `draw`. A replay gives the honest tokens, or with `repeats` those of `draw`
    again, as if rounding in wide passes caused them.
    """

    def __init__(self, draw: Draw, *, repeats: bool = False) -> None:
        self._draw, self._repeats = draw, repeats
        self.measured: wire.MeasuredCosts | None = None
        self.ready = events.EngineReady({}, "big.gguf", "small.gguf", (), {}, {}, 1.0)

    def probe(self, probe: wire.ProbeCommand) -> Iterator[events.Event]:
        self.measured = wire.MeasuredCosts(1.0, {"1": 1.0})
        yield from ()

    def generate(self, request: wire.GenerateCommand) -> Iterator[events.Event]:
        position = 0
        while position < request.max_tokens:
            width = 2 if position and request.spec != "off" else 1
            ids = [self._draw(request, position + i) for i in range(width)]
            ids = ids[: request.max_tokens - position]
            tokens = tuple(events.Token(i, f"t{i}", "plain") for i in ids)
            drafted = len(ids) - 1
            yield events.Round(
                position, None, "", drafted, drafted, tokens, events.RoundTimes(0, 0, 0)
            )
            position += len(ids)
        yield events.GenerationFinished("length")

    def replay(self, replay: wire.ReplayCommand) -> wire.ReplayResult:
        wide = max(replay.widths, default=1) > 1
        request = wire.GenerateCommand(
            replay.text, replay.sampling, spec="model" if wide else "off"
        )
        draw = self._draw if self._repeats else honest
        n = len(replay.tokens)
        return wire.ReplayResult(
            best=tuple(draw(request, position) for position in range(n)),
            probability=tuple(1 / 8 if token < 8 else 0.0 for token in replay.tokens),
            below=tuple(min(token / 8, 1.0) for token in replay.tokens),
            above=tuple(min(token / 8, 1.0) for token in replay.tokens),
        )


def honest(request: wire.GenerateCommand, position: int) -> int:
    """The token of the right distribution; greedy answers ignore the seed."""
    seed = request.sampling.seed if request.sampling.temperature else 0
    return random.Random(1_000_003 * seed + position).randrange(8)
