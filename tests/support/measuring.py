"""Engines for the bench and verify screens, the screens with them, and how a test gets there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from localspec.bench.benchmark import Benchmark
from localspec.bench.lossless_check import LosslessMeasurement, VerifyEffort
from localspec.errors import Hint, LocalspecError
from localspec.launch import ResolvedPair
from localspec.protocol.events import (
    EngineExit,
    EngineReady,
    Event,
    Round,
    SpeculationPlan,
)
from localspec.protocol.wire import (
    GenerateCommand,
    MeasuredCosts,
    ProbeCommand,
)
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.measurement import MeasurementScreen, make_benchmark
from tests.bench.fake_engine import Clock, FakeEngine
from tests.bench.pairs import Draw, Scripted, honest
from tests.support.scripted_engine import Gate, Opening, wait_until

PAIR = ResolvedPair(Path("qwen3-8b-q4_k_m.gguf"), Path("qwen3-0.6b-q8_0.gguf"))
NAME = "qwen3-8b+qwen3-0.6b"
READY = EngineReady(
    {"llama_cpp_python": "0.3.36"}, PAIR.target.name, "qwen3-0.6b-q8_0.gguf", ("CPU",), {}, {}, 1.0
)
COSTS = MeasuredCosts(24.0, {"1": 1.0, "2": 1.04, "4": 1.11, "8": 1.32, "16": 2.1}, c=0.087)
DEAD = EngineExit("oom-gpu", ("cudaMalloc failed",), Hint("Try a smaller {ctx}, or {draft=none}."))


@dataclass
class Measurable(FakeEngine):
    """As fast as it is told, on its own clock; kinds of text differ.

    `gates`: by the number of an answer, where it waits after its first rounds.
    """

    clock: Clock = field(default_factory=Clock)
    ready: EngineReady = READY
    measured: MeasuredCosts | None = COSTS
    gates: dict[int, Gate] = field(default_factory=dict)
    dies_at: int | None = None
    closed: bool = False
    probes: int = 0

    def probe(self, probe: ProbeCommand) -> Iterator[Event]:
        self.probes += 1
        yield SpeculationPlan("probing", "measuring passes of several tokens")
        self.measured = COSTS

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self.closed = False
        answer = len(self.requests)
        self.accepts = (3, 2, 3) if "def " in request.text else (0, 2, 1)
        for n, event in enumerate(super().generate(request)):
            yield event
            if n < 6:
                continue
            if answer == self.dies_at:
                yield DEAD
                return
            gate = self.gates.get(answer)
            while gate is not None and not gate.wait(0.005) and not self.closed:
                pass

    def _round(self, n: int, says: Sequence[int], at: int, *, plain: bool) -> Round:
        """A pass takes 24 ms, not a second."""
        before = self.clock.now
        event = super()._round(n, says, at, plain=plain)
        self.clock.now = before + (self.clock.now - before) * 0.024
        return event

    def close(self) -> None:
        self.closed = True


class Checkable(Scripted):
    """Says what it is told; waits at the gates, by the number of an answer."""

    def __init__(
        self,
        says: Draw = honest,
        *,
        rounds: bool = False,
        gates: dict[int, Gate] | None = None,
    ) -> None:
        super().__init__(says, repeats=rounds)
        self.ready = READY
        self.answers = 0
        self.closed = False
        self._gates = gates or {}

    def generate(self, request: GenerateCommand) -> Iterator[Event]:
        self.closed = False
        answer, self.answers = self.answers, self.answers + 1
        for n, event in enumerate(super().generate(request)):
            yield event
            gate = self._gates.get(answer) if n == 2 else None
            while gate is not None and not gate.wait(0.005) and not self.closed:
                pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def late(request: GenerateCommand, place: int) -> int:
    """Another greedy token at one place, where guessing."""
    wrong = request.spec != "off" and not request.sampling.temperature and place == 17
    return (honest(request, place) + wrong) % 8


QUICK = VerifyEffort(seconds_per_part=0, tokens_per_answer=40, min_sampled_tokens=240)
"""For scripted engines: the same of everything each time."""


def bench(
    *engines: Measurable | LocalspecError, gate: Gate | None = None, **options: Any
) -> LocalspecApp:
    wanted = AppOptions(seed=1, **options)
    runner = EngineRunner(Opening(engines, gate=gate))
    clock = next((e.clock for e in engines if isinstance(e, Measurable)), Clock())
    benchmark = Benchmark(make_benchmark(NAME, PAIR).request, clock)
    return _app(benchmark, runner, wanted)


def verify(*engines: Checkable | LocalspecError) -> LocalspecApp:
    return _app(LosslessMeasurement(QUICK), EngineRunner(Opening(engines)), AppOptions(seed=1))


def _app(
    measurement: Benchmark | LosslessMeasurement, runner: EngineRunner, options: AppOptions
) -> LocalspecApp:
    return LocalspecApp(
        options, runner, lambda: MeasurementScreen(measurement, NAME, PAIR, runner, options)
    )


def measuring(pilot: Pilot[Any]) -> MeasurementScreen:
    screen = pilot.app.screen
    assert isinstance(screen, MeasurementScreen)
    return screen


async def until(pilot: Pilot[Any], *phases: str) -> None:
    await wait_until(pilot, lambda: measuring(pilot).phase in phases)


def held() -> Gate:
    """One that no test opens: whoever waits is let go when the app ends."""
    return Gate()
