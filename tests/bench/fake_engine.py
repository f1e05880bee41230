"""A fake engine with scripted drafts, on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from localspec.protocol.wire import GenerateCommand, MeasuredCosts, ProbeCommand
from tests.support.fake_engine import BareEngine

READY = EngineReady({"llama_cpp_python": "0"}, "big.gguf", "small.gguf", ("CPU",), {}, {}, 1.0)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeEngine(BareEngine):
    """Answers with `output`; a plain pass takes a second, a drafting round `round_s`.

    Each drafting round drafts `drafts` tokens; the numbers accepted cycle through `accepts`.
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
    stop_at: int | None = None
    """Index of the answer that stops by itself, as after Ctrl+C."""
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
            if self.stopped or (len(self.requests) - 1 == self.stop_at and at):
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
            Token(i, f"w{i} ", kind) for i, kind in zip(output[at:], kinds, strict=False)
        )
        source = self.source if drafted else None
        return Round(
            n, source, "", drafted, accepted, tokens, RoundTimes(0, 1, 2.0 if drafted else 1.0)
        )

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        yield SpeculationPlan("probing", "measuring")

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        pass


def collect_runs(engine: FakeEngine, request: BenchRequest) -> list[BenchRun]:
    """The complete runs of a benchmark; raises its error."""
    benchmark = Benchmark(request, engine.clock)
    for _ in benchmark.run(engine):
        pass
    return benchmark.runs
