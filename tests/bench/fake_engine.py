"""Fake engines: of scripted drafts on a clock of its own, and of known distributions."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

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
    engine={"llama_cpp_python": "0"},
    model="big.gguf",
    draft="small.gguf",
    devices=("CPU",),
    settings={},
    memory={},
    load_ms=1.0,
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
        is_plain = request.spec == "off"
        yield SpeculationPlan("off" if is_plain else "on", "")
        yield Prefill(done=4, total=4, reused=0)
        self.clock.now += 0.25
        began = self.clock.now
        n = 0
        position = 0
        while position < len(output):
            if self.stopped:
                yield GenerationFinished("cancelled")
                return
            n_drafted = 0
            if not is_plain and position > 0:
                n_drafted = min(self.drafts, len(output) - position - 1)
            event = self._round(n, output[position:], n_drafted)
            position += len(event.tokens)
            n += 1
            yield event
        rate = None
        if len(output) > 1:
            rate = (len(output) - 1) / (self.clock.now - began)
        yield GenerationFinished("length", "", {"timings": {"tokens_per_second": rate}})

    def _round(self, n: int, output: Sequence[int], n_drafted: int) -> Round:
        """A round that begins `output`; round 0, the prompt's, takes no time."""
        source = None
        n_accepted = 0
        seconds = 1.0
        host_ms = 1.0
        classes: list[TokenClass] = ["plain"]
        if n_drafted:
            source = self.source
            n_accepted = min(self.accepts[(n - 1) % len(self.accepts)], n_drafted)
            seconds = self.round_s
            host_ms = 2.0
            classes = ["accepted"] * n_accepted
            classes.append("correction")
        if n > 0:
            self.clock.now += seconds
        tokens = [
            Token(id_, f"w{id_} ", class_)
            for id_, class_ in zip(output, classes, strict=False)
        ]
        return Round(
            n=n,
            source=source,
            reason="",
            drafted=n_drafted,
            accepted=n_accepted,
            tokens=tuple(tokens),
            ms=RoundTimes(draft=0, verify=1, host=host_ms),
        )

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        yield SpeculationPlan("probing", "measuring")

    def stop(self) -> None:
        self.stopped = True


Draw = Callable[[GenerateCommand, int], int]
"""Returns an engine's token at a position of its answer."""


class Scripted(BareEngine):
    """An engine with eight tokens, always equally likely; the seed selects one.

    It answers with `draw`, a pass over two tokens in every round that speculates. A
    replay gives the honest tokens, or with `repeats` those of `draw` again, as if
    rounding in wide passes caused them.
    """

    def __init__(self, draw: Draw, *, repeats: bool = False) -> None:
        self._draw = draw
        self._draw_in_replay = draw if repeats else honest
        self.measured: MeasuredCosts | None = None
        self.ready = replace(READY, engine={}, devices=())

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        self.measured = MeasuredCosts(1.0, {"1": 1.0})
        yield from ()

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        position = 0
        while position < request.max_tokens:
            width = 1
            if position > 0 and request.spec != "off":
                width = min(2, request.max_tokens - position)
            ids = [self._draw(request, position + i) for i in range(width)]
            yield Round(
                n=position,
                source=None,
                reason="",
                drafted=width - 1,
                accepted=width - 1,
                tokens=tuple(Token(id_, f"t{id_}", "plain") for id_ in ids),
                ms=RoundTimes(draft=0, verify=0, host=0),
            )
            position += width
        yield GenerationFinished("length")

    def replay(self, replay: ReplayCommand) -> ReplayResult:
        is_wide = max(replay.widths, default=1) > 1
        spec = "model" if is_wide else "off"
        request = GenerateCommand(replay.text, replay.sampling, spec=spec)
        best = []
        probability = []
        below = []
        for position, token in enumerate(replay.tokens):
            best.append(self._draw_in_replay(request, position))
            is_possible = token < 8
            probability.append(1 / 8 if is_possible else 0.0)
            below.append(min(token / 8, 1.0))
        return ReplayResult(
            best=tuple(best),
            probability=tuple(probability),
            below=tuple(below),
            above=tuple(below),
        )


def honest(request: GenerateCommand, position: int) -> int:
    """The token of the right distribution; greedy answers ignore the seed."""
    seed = 0
    if request.sampling.temperature:
        seed = request.sampling.seed
    return random.Random(1_000_003 * seed + position).randrange(8)


def collect_runs(engine: FakeEngine, request: BenchRequest) -> list[BenchRun]:
    """The complete runs of a benchmark; raises its error."""
    benchmark = Benchmark(request, engine.clock)
    for _ in benchmark.run(engine):
        pass
    return benchmark.runs
