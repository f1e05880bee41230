"""Fake engines: of scripted drafts on a clock of its own, and of known distributions."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from localspec.bench.benchmark import Benchmark
from localspec.bench.workloads import BenchRequest, BenchRun
from localspec.protocol.events import (
    EngineReady,
    Event,
    GenerationFinished,
    Prefill,
    Round,
    RoundTimes,
    SpeculationPlan,
    Token,
    TokenClass,
)
from localspec.protocol.wire import (
    GenerateCommand,
    MeasuredCosts,
    ProbeCommand,
    ReplayCommand,
    ReplayResult,
)
from tests.support.fake_engine import BareEngine

READY = EngineReady(
    {"llama_cpp_python": "0"}, "big.gguf", "small.gguf", ("CPU",), {}, {}, 1.0
)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeEngine(BareEngine):
    """Answers with `output`; a plain pass takes a second, a drafting round `round_s`.

    Each drafting round drafts `drafts` tokens; the numbers accepted cycle through
    `accepts`.
    """

    clock: Clock
    output: Sequence[int] = tuple(range(100, 200))
    accepts: Sequence[int] = (2,)
    drafts: int = 3
    round_s: float = 1.5
    source: str = "model"
    requests: list[GenerateCommand] = field(default_factory=list)
    ready: EngineReady = READY
    measured: MeasuredCosts | None = None
    stopped: bool = False

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self.requests.append(request)
        self.stopped = False
        output = self.output[: request.max_tokens]
        yield SpeculationPlan("off" if request.spec == "off" else "on", "")
        yield Prefill(4, 4, 0)
        self.clock.now += 0.25
        began = self.clock.now
        n = at = 0
        while at < len(output):
            if self.stopped:
                yield GenerationFinished("cancelled")
                return
            event = self._round(n, output, at, plain=request.spec == "off" or at == 0)
            at += len(event.tokens)
            n += 1
            yield event
        rate = (len(output) - 1) / (self.clock.now - began) if len(output) > 1 else None
        yield GenerationFinished("length", "", {"timings": {"tokens_per_second": rate}})

    def _round(self, n: int, output: Sequence[int], at: int, *, plain: bool) -> Round:
        accepted = 0 if plain else self.accepts[(n - 1) % len(self.accepts)]
        drafted = 0 if plain else min(self.drafts, max(len(output) - at - 1, 0))
        accepted = min(accepted, drafted)
        if at:
            self.clock.now += self.round_s if drafted else 1.0
        last: TokenClass = "plain" if not drafted else "correction"
        kinds: list[TokenClass] = [*(["accepted"] * accepted), last]  # type: ignore[list-item]
        tokens = tuple(
            Token(i, f"w{i} ", kind)
            for i, kind in zip(output[at:], kinds, strict=False)
        )
        source = self.source if drafted else None
        return Round(
            n,
            source,
            "",
            drafted,
            accepted,
            tokens,
            RoundTimes(0, 1, 2.0 if drafted else 1.0),
        )

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        yield SpeculationPlan("probing", "measuring")

    def stop(self) -> None:
        self.stopped = True


Draw = Callable[[GenerateCommand, int], int]
"""Returns an engine's token at a position of its answer."""


class Scripted(BareEngine):
    """An engine with eight tokens, always equally likely; the seed selects one.

    It answers with `draw`. A replay gives the honest tokens, or with `repeats` those of
    `draw` again, as if rounding in wide passes caused them.
    """

    def __init__(self, draw: Draw, *, repeats: bool = False) -> None:
        self._draw, self._repeats = draw, repeats
        self.measured: MeasuredCosts | None = None
        self.ready = EngineReady({}, "big.gguf", "small.gguf", (), {}, {}, 1.0)

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        self.measured = MeasuredCosts(1.0, {"1": 1.0})
        yield from ()

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        position = 0
        while position < request.max_tokens:
            width = 2 if position and request.spec != "off" else 1
            ids = [self._draw(request, position + i) for i in range(width)]
            ids = ids[: request.max_tokens - position]
            tokens = tuple(Token(i, f"t{i}", "plain") for i in ids)
            drafted = len(ids) - 1
            yield Round(
                position, None, "", drafted, drafted, tokens, RoundTimes(0, 0, 0)
            )
            position += len(ids)
        yield GenerationFinished("length")

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        wide = max(replay.widths, default=1) > 1
        request = GenerateCommand(
            replay.text, replay.sampling, spec="model" if wide else "off"
        )
        draw = self._draw if self._repeats else honest
        n = len(replay.tokens)
        return ReplayResult(
            best=tuple(draw(request, position) for position in range(n)),
            probability=tuple(1 / 8 if token < 8 else 0.0 for token in replay.tokens),
            below=tuple(min(token / 8, 1.0) for token in replay.tokens),
            above=tuple(min(token / 8, 1.0) for token in replay.tokens),
        )


def honest(request: GenerateCommand, position: int) -> int:
    """The token of the right distribution; greedy answers ignore the seed."""
    seed = request.sampling.seed if request.sampling.temperature else 0
    return random.Random(1_000_003 * seed + position).randrange(8)


def collect_runs(engine: FakeEngine, request: BenchRequest) -> list[BenchRun]:
    """The complete runs of a benchmark; raises its error."""
    benchmark = Benchmark(request, engine.clock)
    for _ in benchmark.run(engine):
        pass
    return benchmark.runs
