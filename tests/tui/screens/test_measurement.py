"""The screen of bench and verify: measured, stopped, failed, copied; and with the real demo."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from localspec import launch, paths
from localspec.bench import results, workloads
from localspec.bench.benchmark import Benchmark
from localspec.bench.lossless_check import LosslessMeasurement
from localspec.bench.results import BenchMachine, BenchReport
from localspec.chat.session import ChatSession
from localspec.errors import OutOfMemoryError
from localspec.machine import measurements
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens import measurement as screen_of_bench
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.measurement import MeasurementScreen
from tests.support import measuring as laboratory
from tests.support import scenes
from tests.support.measuring import Checkable, Measurable, held, late, measuring, until
from tests.support.scenes import Steps
from tests.support.scripted_engine import Gate, Opening, painted, wait_until

SIZE, VERIFY_SIZE = (100, 40), (120, 50)
VERIFY_ANSWERS = 15 + 9
"""Three prompts, plain and four ways greedily, plain and two with a seed."""
LONG = 90.0
"""Seconds for a real pair on a busy machine."""


def bench(pilot: Pilot[Any]) -> Benchmark:
    measurement = measuring(pilot).measurement
    assert isinstance(measurement, Benchmark)
    return measurement


def found(pilot: Pilot[Any]) -> BenchReport:
    return bench(pilot).report


def shown(pilot: Pilot[Any]) -> str:
    return painted(pilot.app.screen)


async def answers(pilot: Pilot[Any], engine: Measurable, n: int) -> None:
    """As many were asked for, and all but the last are on the screen."""

    def told() -> bool:
        return len(engine.requests) == n and len(bench(pilot).runs) == n - 1

    await wait_until(pilot, lambda: measuring(pilot).phase == "running")
    await wait_until(pilot, told)


# --- bench ------------------------------------------------------------------------------------


async def test_nothing_begins_by_itself_and_not_before_it_can() -> None:
    gate, engine = Gate(), Measurable()
    async with laboratory.bench(engine, gate=gate).run_test(size=SIZE) as pilot:
        assert "Loading the pair" in shown(pilot)
        gate.set()
        await until(pilot, "ready")
        assert "Benchmark qwen3-8b+qwen3-0.6b" in shown(pilot)
        assert "60 answers of 64 tokens: about 1 min 32 s." in shown(pilot)  # 60 × 64 × 24 ms
        assert not engine.requests and not engine.probes
    gate = Gate()
    async with laboratory.bench(Measurable(), gate=gate).run_test(size=SIZE) as pilot:
        await pilot.press("enter")
        assert "Starts when loaded" in shown(pilot)
        gate.set()
        await until(pilot, "done")


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_a_key_stops_within_the_answer_and_keeps_what_was_measured(key: str) -> None:
    gate = Gate()
    engine = Measurable(gates={7: gate})
    async with laboratory.bench(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await answers(pilot, engine, 8)
        await pilot.press(key)
        assert "stopping" in shown(pilot)
        gate.set()
        await until(pilot, "done")
        assert len(engine.requests) == 8 and found(pilot).interrupted
        assert len(found(pilot).trials) == 3  # three prompts both ways, one one way
        assert "Interrupted: partial results." in shown(pilot)


async def test_the_report_grows_while_it_runs() -> None:
    engine = Measurable(gates={7: held()})
    async with laboratory.bench(engine).run_test(size=(120, 50)) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await answers(pilot, engine, 8)
        await wait_until(pilot, lambda: "7 of 60 answers, about" in shown(pilot))
        await wait_until(pilot, lambda: "low–high accept tok/pass same" in shown(pilot))
        (code,) = (row for row in found(pilot).rows if row.name == "code")
        assert code.speedup and code.acceptance_rate
        assert f"{code.speedup.median:.2f}×" in shown(pilot)
        assert f"{100 * code.acceptance_rate:.0f} %" in shown(pilot)
        assert "Interrupted" not in shown(pilot)


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


async def test_it_shows_what_the_command_prints() -> None:
    async with laboratory.bench(Measurable()).run_test(size=(120, 60)) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done")
        words = shown(pilot)
        assert "plain over all workloads; best: " in words
        printed = bench(pilot).format_report()
        assert (
            "one pass 24 ms · verifying 8 tokens costs 1.3 passes · a draft token 0.09" in printed
        )
        # `painted` leaves out the thinnest part of a bar, as it does frames.
        assert all(" ".join(line.replace("▏", "").split()) in words for line in printed)


async def test_the_card_and_the_document_are_copied(copied: list[str]) -> None:
    async with laboratory.bench(Measurable()).run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, "ready")
        await pilot.press("c", "j")
        await pilot.pause()
        assert not copied and "Nothing to copy yet." in shown(pilot)
        await pilot.press("enter")
        await until(pilot, "done")
        assert "c copy j copy JSON" in shown(pilot)
        await pilot.press("c", "j")
        await pilot.pause()
    card, document = copied
    assert card.startswith("### localspec bench: qwen3-8b+qwen3-0.6b\n")
    assert card.count("\n| ") == 1 + len(workloads.load()) * 2
    assert json.loads(document)["trials"] == 30


async def test_an_engine_that_dies_leaves_what_was_measured(copied: list[str]) -> None:
    engine = Measurable(dies_at=9)
    app = laboratory.bench(engine, Measurable())
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "failed")
        assert "the GPU ran out of memory" in shown(pilot)
        assert len(found(pilot).trials) == 3
        await wait_until(pilot, lambda: engine.closed)
        await pilot.press("c")
        await pilot.pause()
        assert "Interrupted" in copied[0]
        await pilot.press("enter")
        await until(pilot, "done")
        assert len(found(pilot).trials) == 30


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


# --- from a chat ------------------------------------------------------------------------------


def chatting(*engines: Measurable) -> LocalspecApp:
    options, runner = AppOptions(seed=1), EngineRunner(Opening(engines))
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


# --- verify: the same screen -------------------------------------------------------------------


def verifying(pilot: Pilot[Any]) -> LosslessMeasurement:
    measurement = measuring(pilot).measurement
    assert isinstance(measurement, LosslessMeasurement)
    return measurement


async def checked(app: LocalspecApp, *keys: str) -> tuple[str, LosslessMeasurement]:
    """What is on the screen when it is over, and some keys were pressed."""
    async with app.run_test(size=VERIFY_SIZE, notifications=True) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done", "failed")
        await pilot.press(*keys)
        await pilot.pause()
        return shown(pilot), verifying(pilot)


async def test_parts_one_after_the_other() -> None:
    gate = held()
    engine = Checkable(gates={VERIFY_ANSWERS + 2: gate})
    async with laboratory.verify(engine).run_test(size=VERIFY_SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await wait_until(pilot, lambda: re.search(r"coupled: 80 tokens", shown(pilot)))
        words = shown(pilot)
        assert "3 prompts, 12 answers, 480 tokens: every token as its pass alone" in words
        assert "same seed 3 prompts" in words
        assert "Lossless" not in words and "rejection" not in words


async def test_another_text_by_rounding_is_lossless() -> None:
    words, found = await checked(laboratory.verify(Checkable(late, rounds=True)))
    assert "Lossless" in words and "rounds differently from a pass over one" in words
    assert found.report.verdict == "lossless"
    assert "12 with another text than plain" in words and "A bug" not in words


async def test_it_differs_and_says_where(copied: list[str]) -> None:
    words, found = await checked(laboratory.verify(Checkable(late)), "c", "j")
    assert "DIFFERS" in words and found.report.verdict == "divergent"
    assert "temperature 0 3 prompts, 12 answers, 480 tokens: 12 wrong" in words
    assert "prompt 1, token 18 (model, draft length 5)" in words and "A bug." in words
    text, document = copied
    assert text.startswith("qwen3-8b-q4_k_m.gguf with qwen3-0.6b-q8_0.gguf: DIFFERS")
    assert json.loads(document)["greedy"]["divergences"][0]["position"] == 17


async def test_a_pair_that_cannot_be_loaded() -> None:
    message, hint = "The model does not fit into the memory.", "Take a smaller context, or less."
    app = laboratory.verify(OutOfMemoryError(message, hint), Checkable())
    async with app.run_test(size=(36, 20)) as pilot:
        await until(pilot, "failed")
        lines = [strip.text.strip() for strip in app.screen._compositor.render_strips()]
        start = lines.index("▌ The model does not fit into the")
        wrapped = ["▌ memory.", "▌ Take a smaller context, or", "▌ less."]
        assert lines[start + 1 : start + 4] == wrapped
        await pilot.press("enter")
        await until(pilot, "done")
        assert "Lossless" in shown(pilot)


# --- pictures ---------------------------------------------------------------------------------

BENCHED = 25
"""Answers before the one that is being written in the pictures."""


def picture(what: str) -> tuple[App[None], Steps]:
    if what == "verify-differs":
        app = laboratory.verify(Checkable(late))
    else:
        gates = {BENCHED: held()} if what != "bench-done" else {}
        engine = Measurable(gates=gates)
        look: dict[str, Any] = {}
        if what == "bench-ascii":
            look = {"colour": False, "ascii_only": True}
        app = laboratory.bench(engine, **look)

    async def over(pilot: Pilot[Any]) -> None:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done")
        await scenes.settled(pilot)

    async def running(pilot: Pilot[Any]) -> None:
        await until(pilot, "ready")
        await pilot.press("down", "down", "enter")
        await answers(pilot, engine, BENCHED + 1)
        await scenes.settled(pilot)

    return app, running if what in ("bench-running", "bench-ascii") else over


@pytest.mark.pictures
@pytest.mark.parametrize("what", ["bench-running", "bench-done", "bench-ascii", "verify-differs"])
def test_picture(
    snap_compare: Callable[..., bool], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names the computer: here always the same one."""
    computer = BenchMachine("Ryzen 7 5800X", 8, 32 << 30, "Linux 6.12", {}, ("CPU",), 8)
    monkeypatch.setattr(results, "describe_machine", lambda _: computer)
    app, steps = picture(what)
    size = (100, 30) if what == "bench-ascii" else (80, 24)
    assert snap_compare(app, terminal_size=size, run_before=steps)
