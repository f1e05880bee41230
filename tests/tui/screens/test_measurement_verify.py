"""The verify screen: its parts, its one word, what it found; and with the real demo pair."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec.bench import lossless_check
from localspec.bench.lossless_check import LosslessMeasurement, VerifyEffort
from localspec.errors import OutOfMemoryError
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.measurement import MeasurementScreen
from tests.support import measuring as laboratory
from tests.support import scenes
from tests.support.measuring import Checkable, held, late, measuring, until
from tests.support.scripted_engine import Gate, painted, wait_until

pytestmark = pytest.mark.asyncio

SIZE = (120, 50)
LONG = 90.0
"""Seconds for a real pair on a busy machine."""
ANSWERS = 15 + 9
"""That are compared: three prompts, plain and four ways greedily, plain and two with a seed."""


def shown(pilot: Pilot[Any]) -> str:
    return painted(pilot.app.screen)


def verifying(pilot: Pilot[Any]) -> LosslessMeasurement:
    measurement = measuring(pilot).measurement
    assert isinstance(measurement, LosslessMeasurement)
    return measurement


async def checked(app: LocalspecApp, *keys: str) -> tuple[str, LosslessMeasurement]:
    """What is on the screen when it is over, and some keys were pressed."""
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await until(pilot, "done", "failed")
        await pilot.press(*keys)
        await pilot.pause()
        return shown(pilot), verifying(pilot)


# --- before -----------------------------------------------------------------------------------


async def test_what_will_be_checked_and_how_long_that_takes() -> None:
    engine = Checkable()
    async with laboratory.verify(engine, effort=None).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        assert "Speculation should make the model faster, not different." in shown(pilot)
        assert "About 1 min 41 s" in shown(pilot)
        assert not engine.answers


# --- while it runs ----------------------------------------------------------------------------


async def test_parts_one_after_the_other() -> None:
    gate = held()
    engine = Checkable(gates={ANSWERS + 2: gate})
    async with laboratory.verify(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await wait_until(pilot, lambda: re.search(r"coupled: 80 tokens", shown(pilot)))
        words = shown(pilot)
        assert "3 prompts, 12 answers, 480 tokens: every token as its pass alone" in words
        assert "same seed 3 prompts" in words
        assert "Lossless" not in words and "rejection" not in words


async def test_esc_stops_within_an_answer_and_keeps_what_was_found() -> None:
    gate = Gate()
    engine = Checkable(gates={17: gate})  # in the first seeded prompt
    async with laboratory.verify(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.answers == 18)
        await pilot.press("escape")
        assert "stopping" in shown(pilot)
        gate.set()
        await until(pilot, "done")
        assert engine.answers == 18
        report = verifying(pilot).report
        assert not report.is_complete and report.verdict is None
        assert (report.greedy.prompts, report.seeded.prompts) == (3, 0)
        assert "Not finished" in shown(pilot) and "No problem found so far" in shown(pilot)


async def test_esc_twice_ends_the_engine() -> None:
    engine = Checkable(gates={3: held()})
    async with laboratory.verify(engine).run_test(size=SIZE) as pilot:
        await until(pilot, "ready")
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.answers == 4)
        await pilot.press("escape", "escape")
        await wait_until(pilot, lambda: engine.closed)


# --- what it says -----------------------------------------------------------------------------


async def test_nothing_differs() -> None:
    words, found = await checked(laboratory.verify(Checkable()))
    assert "Lossless" in words and found.report.verdict == "lossless"
    assert "draft tokens verified" in words
    assert "the model's distribution" in words


async def test_another_text_by_rounding_is_lossless() -> None:
    words, found = await checked(laboratory.verify(Checkable(late, rounds=True)))
    assert "Lossless" in words and "rounds differently from a pass over one" in words
    assert found.report.verdict == "lossless"
    assert "12 with another text than plain" in words and "A bug" not in words


async def test_it_differs_and_says_where() -> None:
    words, found = await checked(laboratory.verify(Checkable(late)))
    assert "DIFFERS" in words and found.report.verdict == "divergent"
    assert "temperature 0 3 prompts, 12 answers, 480 tokens: 12 wrong" in words
    assert "prompt 1, token 18 (model, draft length 5)" in words and "A bug." in words


async def test_copied_as_text_and_as_json(copied: list[str]) -> None:
    await checked(laboratory.verify(Checkable(late)), "c", "j")
    text, document = copied
    assert text.startswith("qwen3-8b-q4_k_m.gguf with qwen3-0.6b-q8_0.gguf: DIFFERS")
    body = json.loads(document)
    assert (body["schema"], body["verdict"]) == (1, "divergent")
    assert body["greedy"]["divergences"][0]["position"] == 17


async def test_there_is_nothing_to_copy_before(copied: list[str]) -> None:
    async with laboratory.verify(Checkable()).run_test(size=SIZE, notifications=True) as pilot:
        await until(pilot, "ready")
        await pilot.press("c", "j")
        await pilot.pause()
        assert not copied and "Nothing to copy yet." in shown(pilot)


# --- where it fails ---------------------------------------------------------------------------


async def test_an_engine_that_dies_leaves_what_was_found() -> None:
    engine = Checkable(late, dies_at=3 + 2 * 12 + 1)
    words, _ = await checked(laboratory.verify(engine))
    assert "the GPU ran out of memory" in words
    assert "12 wrong" in words and "same seed not compared" in words
    assert "enter reload" in words and "ctrl+l log" in words


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


# --- from Home, with a real pair --------------------------------------------------------------


@pytest.mark.long  # the command's own run of the demo is for every day
async def test_the_demo_from_home(monkeypatch: pytest.MonkeyPatch) -> None:
    little = partial(VerifyEffort, seconds_per_part=0, tokens_per_answer=8)
    monkeypatch.setattr(lossless_check, "VerifyEffort", little)
    options, runner = AppOptions(seed=1), EngineRunner()
    app = LocalspecApp(options, runner, lambda: HomeScreen(runner, options))
    try:
        async with app.run_test(size=SIZE) as pilot:
            await scenes.surveyed(pilot)
            await pilot.press("v")
            await wait_until(pilot, lambda: isinstance(app.screen, MeasurementScreen))
            await wait_until(pilot, lambda: measuring(pilot).phase == "ready", LONG)
            await pilot.press("enter")
            await wait_until(pilot, lambda: measuring(pilot).phase in ("done", "failed"), LONG)
            assert measuring(pilot).error is None
            assert verifying(pilot).report.verdict in ("lossless", "near-ties")
            assert verifying(pilot).report.drafted > 0
            await pilot.press("escape")
            await wait_until(pilot, lambda: isinstance(app.screen, HomeScreen))
    finally:
        runner.close(wait=10)
