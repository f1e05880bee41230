"""The bench screen: chosen, measured, stopped, failed, shared; and with the real demo pair."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec import launch, paths
from localspec.bench import workloads
from localspec.bench.benchmark import BenchEstimate, BenchFinished, RunFinished, run_benchmark
from localspec.bench.results import BenchReport
from localspec.chat.session import ChatSession
from localspec.errors import OutOfMemoryError
from localspec.machine import measurements
from localspec.tui import clipboard
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens import bench as screen_of_bench
from localspec.tui.screens.bench import BenchMeasurement
from localspec.tui.screens.bench_table import LiveBenchResults
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.measurement import MeasurementScreen
from localspec.tui.widgets.pointer_list import PointerList
from tests.tui import laboratory, scenes
from tests.tui.laboratory import COSTS, Measurable, held, measuring, until
from tests.tui.scripted import Gate, painted, wait_until

pytestmark = pytest.mark.asyncio

SIZE = (100, 40)
LONG = 90.0
"""Seconds for a real pair on a busy machine."""


def bench(pilot: Pilot[Any]) -> BenchMeasurement:
    measurement = measuring(pilot).measurement
    assert isinstance(measurement, BenchMeasurement)
    return measurement


def found(pilot: Pilot[Any]) -> BenchReport:
    report = bench(pilot).report
    assert report is not None
    return report


def standing(pilot: Pilot[Any]) -> LiveBenchResults:
    told = bench(pilot).live_results
    assert told is not None
    return told


def shown(pilot: Pilot[Any]) -> str:
    return painted(pilot.app.screen)


async def answers(pilot: Pilot[Any], engine: Measurable, n: int) -> None:
    """As many were asked for, and all but the last are on the screen."""

    def told() -> bool:
        return len(engine.requests) == n and standing(pilot).done == n - 1

    await wait_until(pilot, lambda: measuring(pilot).phase == "running")
    await wait_until(pilot, told)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes to the clipboard."""
    texts: list[str] = []

    def copy(_: object, text: str) -> str:
        texts.append(text)
        return "Copied."

    monkeypatch.setattr(clipboard, "copy", copy)
    return texts


# --- before -----------------------------------------------------------------------------------


async def test_nothing_begins_by_itself_and_it_says_how_long_it_takes() -> None:
    engine = Measurable()
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        assert "qwen3-8b-q4_k_m.gguf with qwen3-0.6b-q8_0.gguf" in shown(pilot)
        assert all(w.name in shown(pilot) for w in workloads.load())
        assert "60 answers of 64 tokens: about 1 min 32 s." in shown(pilot)  # 60 × 64 × 24 ms
        assert not engine.requests and not engine.probes


async def test_what_is_left_out_is_not_measured_and_takes_no_time() -> None:
    engine = Measurable()
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("down", "space", "down", "space", "down", "space", "down", "space")
        await pilot.press("down", "space")
        assert "18 answers of 64 tokens in 3 rounds: about 28 s." in shown(pilot)
        await pilot.press("enter")
        await until(pilot, "done")
        assert {asked.sampling.temperature for asked in engine.requests} == {0}
        assert {row.name for row in found(pilot).rows} == {"code"}


async def test_nothing_chosen_is_told() -> None:
    engine = Measurable()
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("space", *["down", "space"] * 4, "enter")
        await pilot.pause()
        assert "No workload is selected" in shown(pilot)
        assert measuring(pilot).phase == "ready" and not engine.requests


async def test_started_while_it_loads_it_begins_when_it_can() -> None:
    gate = Gate()
    async with laboratory.bench(Measurable(), gate=gate).run_test(size=SIZE) as pilot:
        assert "Loading the pair" in shown(pilot)
        await pilot.press("enter")
        assert "Starts when loaded" in shown(pilot)
        gate.set()
        await until(pilot, "done")


# --- while it runs ----------------------------------------------------------------------------


async def test_bars_while_it_runs() -> None:
    engine = Measurable(gates={7: held()})
    async with laboratory.bench(engine).run_test(size=(120, 50)) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await answers(pilot, engine, 8)
        await wait_until(pilot, lambda: "7 of 60 answers" in shown(pilot))
        assert "left" in shown(pilot)
        code = next(line for line in standing(pilot).rows() if line.name == "code")
        assert code.plain == pytest.approx(1 / 0.024)
        assert code.speculative and code.plain and code.speedup and code.acceptance_rate
        assert code.speedup == pytest.approx(code.speculative / code.plain)
        assert 0 < code.acceptance_rate < 1
        assert f"{code.speedup:.2f}×" in shown(pilot)
        assert f"{100 * code.acceptance_rate:.0f} % accepted" in shown(pilot)


async def test_a_bar_grows_within_an_answer() -> None:
    """The first answer is not whole, and has a speed already."""
    engine = Measurable(gates={0: held()})
    async with laboratory.bench(engine).run_test(size=(120, 50)) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "41.7 tok/s" in shown(pilot))
        assert standing(pilot).done == 0
        assert 0 < standing(pilot).share < 1 / 60


async def test_esc_stops_after_the_answer_and_keeps_what_was_measured() -> None:
    gate = Gate()
    engine = Measurable(gates={7: gate})
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await answers(pilot, engine, 8)
        await pilot.press("escape")
        assert "stopping after this answer" in shown(pilot)
        gate.set()
        await until(pilot, "done")
        assert len(engine.requests) == 8
        report = found(pilot)
        assert report.interrupted and report.trials == 3  # three prompts both ways, and two one way
        assert "Interrupted: partial results." in shown(pilot)
        assert "8 of 60 answers" in shown(pilot)


async def test_esc_twice_leaves_and_ends_the_engine() -> None:
    engine = Measurable(gates={3: held()})
    app = laboratory.bench(engine)
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await answers(pilot, engine, 4)
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: engine.closed)
        assert app.runner.engine is None


async def test_ctrl_c_stops_too() -> None:
    gate = Gate()
    engine = Measurable(gates={3: gate})
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await answers(pilot, engine, 4)
        await pilot.press("ctrl+c")
        assert measuring(pilot).phase == "stopping"
        gate.set()
        await until(pilot, "done")


async def test_drawn_a_few_times_a_second_whatever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = 0
    draw = MeasurementScreen.draw

    def counted(screen: MeasurementScreen) -> None:
        nonlocal drawn
        drawn += 1
        draw(screen)

    monkeypatch.setattr(MeasurementScreen, "draw", counted)
    engine = Measurable()
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        drawn = 0
        await pilot.press("enter")
        await until(pilot, "done")
        assert sum(request.max_tokens for request in engine.requests) > 3000
        assert drawn < 25  # thousands of rounds, in whatever time they took


# --- after ------------------------------------------------------------------------------------


async def test_the_summary_and_the_costs_in_plain_words() -> None:
    async with laboratory.bench(Measurable()).run_test(size=(120, 60)) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done")
        words = shown(pilot)
        assert "plain over all workloads; best: " in words
        assert "one pass 24 ms the target model, for one token t1" in words
        assert "draft token 0.09 passes the draft model, for one token c, draft cost ratio" in words
        assert "verify 7 drafted 1.32 passes" in words and "v(8), verify curve" in words


async def test_the_card_is_copied_and_saved(
    copied: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with laboratory.bench(Measurable()).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("c", "s")
        await pilot.pause()
        assert not copied and not list(tmp_path.glob("*.md")), "there is nothing yet"
        await pilot.press("enter")
        await until(pilot, "done")
        await pilot.press("c", "s", "s")
        await pilot.pause()
    (card,) = copied
    assert card.startswith("### localspec bench: qwen3-8b+qwen3-0.6b\n")
    assert card.count("\n| ") == 1 + len(workloads.load()) * 2
    saved = sorted(tmp_path.glob("*.md"))
    assert [path.name for path in saved] == [
        "localspec-bench-qwen3-8b+qwen3-0.6b-2.md",
        "localspec-bench-qwen3-8b+qwen3-0.6b.md",
    ]
    assert all(path.read_text("utf-8") == card for path in saved)


async def test_a_folder_that_is_gone_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    app = laboratory.bench(Measurable())
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done")
        monkeypatch.chdir(gone)
        gone.rmdir()
        await pilot.press("s")
        await pilot.pause()
        assert "cannot be written" in shown(pilot)


async def test_again_measures_anew() -> None:
    engine = Measurable()
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done")
        first = len(engine.requests)
        await pilot.press("enter")
        await until(pilot, "done")
        await wait_until(pilot, lambda: len(engine.requests) == 2 * first)


# --- where it fails ---------------------------------------------------------------------------


async def test_a_pair_that_cannot_be_loaded() -> None:
    refusal = OutOfMemoryError("It does not fit.", "Take a smaller one.")
    async with laboratory.bench(refusal, Measurable()).run_test(size=SIZE) as pilot:
        await until(pilot, "failed")
        assert "It does not fit. Take a smaller one." in shown(pilot).replace(" ▌", "")
        assert "enter reload" in shown(pilot)
        await pilot.press("enter")
        await until(pilot, "done")


async def test_an_engine_that_dies_leaves_what_was_measured(copied: list[str]) -> None:
    engine = Measurable(dies_at=9)
    app = laboratory.bench(engine, Measurable())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "failed")
        assert "the GPU ran out of memory" in shown(pilot)
        assert found(pilot).trials == 3
        await wait_until(pilot, lambda: engine.closed)
        await pilot.press("c")
        await pilot.pause()
        assert "Interrupted" in copied[0]
        await pilot.press("enter")
        await until(pilot, "done")
        assert found(pilot).trials == 30


# --- from Home, with a real pair --------------------------------------------------------------


async def test_the_demo_from_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two answers of each way on real models, kept as the command keeps them."""
    demo = launch.resolve_pair("demo", "auto")
    short = [replace(w, prompts=w.prompts[:1]) for w in workloads.load(["code"])]
    monkeypatch.setattr(workloads, "load", lambda: short)
    monkeypatch.setattr(screen_of_bench, "_TOKENS", 12)
    options, runner = AppOptions(seed=1), EngineRunner()
    app = LocalspecApp(options, runner, lambda: HomeScreen(runner, options))
    try:
        async with app.run_test(size=SIZE) as pilot:
            await scenes.surveyed(pilot)
            assert "b bench" in shown(pilot)
            await pilot.press("b")
            await wait_until(pilot, lambda: isinstance(app.screen, MeasurementScreen))
            await wait_until(pilot, lambda: measuring(pilot).phase == "ready", LONG)
            await pilot.press("enter")
            await wait_until(pilot, lambda: measuring(pilot).phase in ("done", "failed"), LONG)
            assert measuring(pilot).error is None
            (greedy, sampled) = found(pilot).rows
            assert greedy.acceptance_rate and greedy.plain_tps and sampled.spec_tps
            assert found(pilot).pair == "demo" and found(pilot).why
            await pilot.press("escape")
            await wait_until(pilot, lambda: isinstance(app.screen, HomeScreen))
            assert runner.engine is None
    finally:
        runner.close(wait=10)
    store = measurements.MeasurementStore(paths.data_dir() / "measured.sqlite")
    kept = [one for one in store.read_all() if str(demo.target) in one.key]
    assert kept and kept[0].measured is not None and kept[0].measured.c


async def test_home_says_where_there_is_nothing_to_measure() -> None:
    app = scenes.home()
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await scenes.surveyed(pilot)
        screen = app.screen
        assert isinstance(screen, HomeScreen)
        screen.query_one(PointerList).clear_options()
        screen.action_bench()
        await pilot.pause()
        assert "Select an installed pair" in shown(pilot)


# --- from a chat ------------------------------------------------------------------------------


def chatting(*engines: Measurable) -> LocalspecApp:
    options, runner = AppOptions(seed=1), EngineRunner(laboratory.Loading(engines))
    screen = lambda: ChatScreen(ChatSession(laboratory.PAIR, 1), runner, options)  # noqa: E731
    return LocalspecApp(options, runner, screen)


async def asked_in(pilot: Pilot[Any]) -> ChatScreen:
    chat = pilot.app.screen
    assert isinstance(chat, ChatScreen)
    await wait_until(pilot, lambda: chat.phase == "ready")
    chat.composer.replace_text("/bench")
    await pilot.press("enter")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, MeasurementScreen))
    return chat


async def test_a_chats_own_engine_is_measured_and_given_back() -> None:
    engine = Measurable()
    app = chatting(engine)
    async with app.run_test(size=SIZE) as pilot:
        chat = await asked_in(pilot)
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done")
        await pilot.press("escape")
        await wait_until(pilot, lambda: app.screen is chat)
        assert app.runner.engine is engine and not engine.closed and chat.phase == "ready"


async def test_a_chat_loads_anew_what_a_bench_left_in_the_middle() -> None:
    first, second = Measurable(gates={3: held()}), Measurable()
    app = chatting(first, second)
    async with app.run_test(size=SIZE) as pilot:
        chat = await asked_in(pilot)
        await until(pilot, "ready")
        await pilot.press("enter")
        await answers(pilot, first, 4)
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: app.screen is chat and chat.phase == "ready")
        assert first.closed and app.runner.engine is second


# --- folding ----------------------------------------------------------------------------------


async def test_standing_counts_what_it_is_told() -> None:
    engine = Measurable()
    asked = BenchMeasurement("x", laboratory.PAIR).request
    sums = LiveBenchResults(asked)
    last = None
    for told in run_benchmark(engine, asked, clock=engine.clock):
        if isinstance(told, BenchFinished):
            last = told
            continue
        sums.add_event(told)
        if isinstance(told, BenchEstimate):
            assert (sums.total, sums.done, sums.share) == (60, 0, 0.0)
        if isinstance(told, RunFinished):
            assert sums.share == pytest.approx(sums.done / 60)
    assert last is not None and last.error is None and last.report.trials == 30
    assert [line.name for line in sums.rows()] == [w.name for w in asked.workloads] * 2
    assert sums.seconds_left == 0
    assert last.report.t1_ms == COSTS.t1_ms
