"""The screen of bench and verify: measured, stopped, failed, copied."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from localspec.bench import results, workloads
from localspec.bench.benchmark import Benchmark
from localspec.bench.lossless_check import LosslessMeasurement, VerifyEffort
from localspec.bench.results import BenchMachine, BenchReport
from localspec.chat.session import ChatSession
from localspec.errors import Hint, LocalspecError, OutOfMemoryError
from localspec.launch import ResolvedPair
from localspec.protocol.events import EngineExit, EngineReady, Event, Round
from localspec.protocol.wire import GenerateCommand, MeasuredCosts
from localspec.report.lines import plain_text
from localspec.report.measurement import format_measurement
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.measurement import MeasurementScreen, make_benchmark
from tests.bench.fake_engine import Clock, Draw, FakeEngine, Scripted, honest
from tests.support import scenes
from tests.support.app_driver import AppDriver
from tests.support.scenes import Steps
from tests.support.scripted_engine import Gate, Opening

SIZE = (100, 40)
LARGE = (120, 60)
PAIR = ResolvedPair(Path("qwen3-8b-q4_k_m.gguf"), Path("qwen3-0.6b-q8_0.gguf"))
NAME = "qwen3-8b+qwen3-0.6b"
READY = EngineReady(
    engine={"llama_cpp_python": "0.3.36"},
    model=PAIR.target.name,
    draft="qwen3-0.6b-q8_0.gguf",
    devices=("CPU",),
    settings={},
    memory={},
    load_ms=1.0,
)
COSTS = MeasuredCosts(
    24.0, {"1": 1.0, "2": 1.04, "4": 1.11, "8": 1.32, "16": 2.1}, c=0.087
)
DEAD = EngineExit(
    "oom-gpu", ("cudaMalloc failed",), Hint("Try a smaller {ctx}, or {draft=none}.")
)


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

    def _round(self, n: int, output: Sequence[int], n_drafted: int) -> Round:
        """A pass takes 24 ms, not a second."""
        before = self.clock.now
        event = super()._round(n, output, n_drafted)
        self.clock.now = before + (self.clock.now - before) * 0.024
        return event

    def close(self) -> None:
        self.closed = True


def checkable(draw: Draw = honest) -> Scripted:
    engine = Scripted(draw)
    engine.ready = READY
    return engine


def late(request: GenerateCommand, place: int) -> int:
    """Speculation gives another greedy token at one place."""
    token = honest(request, place)
    is_greedy = request.sampling.temperature == 0
    if request.spec != "off" and is_greedy and place == 17:
        token += 1
    return token % 8


def bench(
    *engines: Measurable, gate: Gate | None = None, **options: Any
) -> LocalspecApp:
    benchmark = Benchmark(make_benchmark(NAME, PAIR).request, engines[0].clock)
    return _app(benchmark, EngineRunner(Opening(engines, gate=gate)), **options)


def verify(*engines: Scripted | LocalspecError) -> LocalspecApp:
    """Measures the same number of answers each time."""
    effort = VerifyEffort(
        seconds_per_part=0, tokens_per_answer=40, min_sampled_tokens=240
    )
    return _app(LosslessMeasurement(effort), EngineRunner(Opening(engines)))


def _app(
    measurement: Benchmark | LosslessMeasurement, runner: EngineRunner, **options: Any
) -> LocalspecApp:
    wanted = AppOptions(seed=1, **options)
    return LocalspecApp(
        wanted,
        runner,
        lambda: MeasurementScreen(measurement, NAME, PAIR, runner, wanted),
    )


def chatting(*engines: Measurable) -> LocalspecApp:
    options = AppOptions(seed=1)
    runner = EngineRunner(Opening(engines))
    return LocalspecApp(
        options, runner, lambda: ChatScreen(ChatSession(PAIR, 1), runner, options)
    )


class MeasurementDriver(AppDriver):
    @property
    def measuring(self) -> MeasurementScreen:
        return self.top(MeasurementScreen)

    @property
    def report(self) -> BenchReport:
        assert isinstance(self.measuring.measurement, Benchmark)
        return self.measuring.measurement.report

    async def is_in(self, *phases: str) -> None:
        await self.wait(lambda: self.measuring.phase in phases)

    async def start(self) -> None:
        await self.is_in("ready")
        await self.press("enter")

    async def answers(self, engine: Measurable, n: int) -> None:
        """As many were asked for, and all but the last are on the screen."""
        measurement = self.measuring.measurement
        assert isinstance(measurement, Benchmark)
        await self.is_in("running")
        await self.wait(
            lambda: len(engine.requests) == n and len(measurement.runs) == n - 1
        )


@asynccontextmanager
async def opened(
    app: LocalspecApp, size: tuple[int, int] = SIZE
) -> AsyncIterator[MeasurementDriver]:
    async with app.run_test(size=size, notifications=True) as pilot:
        yield MeasurementDriver(pilot)


# --- bench
# ------------------------------------------------------------------------------------


async def test_nothing_begins_by_itself() -> None:
    gate = Gate()
    engine = Measurable()
    async with opened(bench(engine, gate=gate)) as lab:
        await lab.sees("Loading the pair")
        gate.set()
        await lab.is_in("ready")
        await lab.sees("Benchmark qwen3-8b+qwen3-0.6b")
        await lab.sees("60 answers of 64 tokens: about 1 min 32 s.")  # 60 × 64 × 24 ms
        assert not engine.requests


async def test_what_is_started_while_the_pair_loads_begins_afterwards() -> None:
    gate = Gate()
    async with opened(bench(Measurable(), gate=gate)) as lab:
        await lab.press("enter")
        await lab.sees("Starts when loaded")
        gate.set()
        await lab.is_in("done")


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_key_stops_within_the_answer_and_keeps_what_was_measured(
    key: str,
) -> None:
    gate = Gate()
    engine = Measurable(gates={7: gate})
    async with opened(bench(engine), LARGE) as lab:
        await lab.start()
        await lab.answers(engine, 8)
        await lab.sees("7 of 60 answers, about", "low–high accept tok/pass same")
        (code,) = [row for row in lab.report.rows if row.name == "code"]
        assert code.speedup
        assert code.acceptance_rate
        speedup = f"{code.speedup.median:.2f}×"
        acceptance_rate = f"{100 * code.acceptance_rate:.0f} %"
        await lab.sees(speedup, acceptance_rate)
        assert "Interrupted" not in lab.shown
        await lab.press(key)
        await lab.sees("stopping")
        gate.set()
        await lab.is_in("done")
        assert len(engine.requests) == 8
        assert lab.report.interrupted
        # Three prompts were answered both ways, one only one way.
        assert len(lab.report.trials) == 3
        await lab.sees("Interrupted: partial results.")


async def test_before_the_measurement_there_is_nothing_to_copy(
    copied: list[str],
) -> None:
    async with opened(bench(Measurable()), LARGE) as lab:
        await lab.is_in("ready")
        await lab.press("c", "j")
        await lab.sees("Nothing to copy yet.")
        assert not copied


async def test_the_report_is_what_the_command_prints() -> None:
    async with opened(bench(Measurable()), LARGE) as lab:
        await lab.start()
        await lab.is_in("done")
        await lab.sees("plain over all workloads; best: ", "c copy j copy JSON")
        report = format_measurement(lab.measuring.measurement)
        printed = [plain_text(line) for line in report]
        costs = (
            "one pass 24 ms · verifying 8 tokens costs 1.3 passes · a draft token 0.09"
        )
        assert costs in printed
        for line in printed:
            # `painted` leaves out the thinnest part of a bar, as it does frames.
            await lab.sees(" ".join(line.replace("▏", "").split()))


async def test_card_and_document_are_copied(copied: list[str]) -> None:
    async with opened(bench(Measurable()), LARGE) as lab:
        await lab.start()
        await lab.is_in("done")
        await lab.press("c", "j")
    card, document = copied
    assert card.startswith("### localspec bench: qwen3-8b+qwen3-0.6b\n")
    assert card.count("\n| ") == 1 + len(workloads.load()) * 2
    assert json.loads(document)["trials"] == 30


async def test_an_engine_that_dies_leaves_what_was_measured(copied: list[str]) -> None:
    engine = Measurable(dies_at=9)
    async with opened(bench(engine, Measurable())) as lab:
        await lab.start()
        await lab.is_in("failed")
        await lab.sees("the GPU ran out of memory")
        assert len(lab.report.trials) == 3
        await lab.wait(lambda: engine.closed)
        await lab.press("c")
        assert "Interrupted" in copied[0]
        await lab.press("enter")
        await lab.is_in("done")
        assert len(lab.report.trials) == 30


async def begin_bench(lab: MeasurementDriver) -> None:
    """From a chat, by its command."""
    lab.screen.composer.replace_text("/bench")
    await lab.press("enter")
    await lab.reaches(MeasurementScreen)
    await lab.start()


async def test_a_chat_gets_its_engine_back_after_a_benchmark() -> None:
    engine = Measurable()
    app = chatting(engine)
    async with opened(app) as lab:
        await lab.until("ready")
        chat = lab.screen
        await begin_bench(lab)
        await lab.is_in("done")
        measuring = lab.measuring
        await lab.press("escape")
        await lab.wait(lambda: app.screen is chat and chat.phase == "ready")
        # A redraw that was requested before the screen was left may come after it.
        measuring._show_keys()
        assert not engine.closed
        assert app.runner.engine is engine


async def test_a_benchmark_that_is_left_in_the_middle_makes_the_chat_load_again() -> (
    None
):
    first = Measurable(gates={3: Gate()})
    second = Measurable()
    app = chatting(first, second)
    async with opened(app) as lab:
        await lab.until("ready")
        chat = lab.screen
        await begin_bench(lab)
        await lab.wait(lambda: len(first.requests) == 4)
        measuring = lab.measuring
        await lab.press("escape", "escape")
        await lab.wait(lambda: app.screen is chat and chat.phase == "ready")
        measuring._show_keys()
        assert first.closed
        assert app.runner.engine is second


# --- verify: the same screen
# -------------------------------------------------------------------


async def test_a_difference_is_shown_with_its_place_and_copied(
    copied: list[str],
) -> None:
    async with opened(verify(checkable(late)), LARGE) as lab:
        await lab.start()
        await lab.is_in("done")
        await lab.press("c", "j")
        await scenes.settled(lab.pilot)
        measurement = lab.measuring.measurement
        shown = lab.shown
    assert isinstance(measurement, LosslessMeasurement)
    assert measurement.report.verdict == "divergent"
    assert "DIFFERS" in shown
    assert "temperature 0 3 prompts, 12 answers, 480 tokens: 12 wrong" in shown
    assert "prompt 1, token 18 (model, draft length 5)" in shown
    assert "A bug." in shown
    text, document = copied
    assert text.startswith("qwen3-8b-q4_k_m.gguf with qwen3-0.6b-q8_0.gguf: DIFFERS")
    assert json.loads(document)["greedy"]["divergences"][0]["position"] == 17


async def test_a_pair_that_cannot_be_loaded_says_why_and_is_tried_again() -> None:
    error = OutOfMemoryError(
        "The model does not fit into the memory.", "Take a smaller context, or less."
    )
    async with opened(verify(error, checkable()), (36, 20)) as lab:
        await lab.is_in("failed")
        await lab.sees("memory", "less.")
        strips = lab.app.screen._compositor.render_strips()
        lines = [strip.text.strip() for strip in strips]
        start = lines.index("▌ The model does not fit into the")
        wrapped = ["▌ memory.", "▌ Take a smaller context, or", "▌ less."]
        assert lines[start + 1 : start + 4] == wrapped
        await lab.press("enter")
        await lab.is_in("done")
        await lab.sees("Lossless")


# --- pictures
# ---------------------------------------------------------------------------------

BENCHED = 25


def picture(**look: Any) -> tuple[App[None], Steps]:
    engine = Measurable(gates={BENCHED: Gate()})

    async def steps(pilot: Pilot[Any]) -> None:
        lab = MeasurementDriver(pilot)
        await lab.is_in("ready")
        await pilot.press("down", "down", "enter")
        await lab.answers(engine, BENCHED + 1)
        await lab.sees(f"{BENCHED} of 60 answers")
        await scenes.settled(pilot)

    return bench(engine, **look), steps


@pytest.mark.pictures
@pytest.mark.parametrize("what", ["bench-running", "bench-ascii"])
def test_picture(
    snap_compare: Callable[..., bool], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the computer: here always the same one."""
    computer = BenchMachine(
        cpu="Ryzen 7 5800X",
        cores=8,
        memory=32 << 30,
        system="Linux 6.12",
        engine={},
        devices=("CPU",),
        threads=8,
    )
    monkeypatch.setattr(results, "describe_machine", lambda _: computer)
    ascii_only = what == "bench-ascii"
    app, steps = picture(colour=not ascii_only, ascii_only=ascii_only)
    size = (100, 30) if ascii_only else (80, 24)
    assert snap_compare(app, terminal_size=size, run_before=steps)
