"""Pictures of the bench and verify screens: before, while, done, stopped, failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot

from localspec.bench import results
from localspec.bench.results import BenchMachine
from tests.bench.pairs import honest
from tests.support import measuring as laboratory
from tests.support.measuring import Checkable, Measurable, held, late, until
from tests.support.scenes import Steps, settled
from tests.support.scripted_engine import Gate, wait_until
from tests.tui.screens.test_measurement import answers

pytestmark = pytest.mark.pictures

Compare = Callable[..., bool]
Made = tuple[App[None], Steps]
BENCHED, CHECKED = 25, 28
"""Answers before the one that is being written in the pictures."""


@pytest.fixture(autouse=True)
def some_computer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names the computer: in the pictures always the same one."""
    computer = BenchMachine("Ryzen 7 5800X", 8, 32 << 30, "Linux 6.12", {}, ("CPU",), 8)
    monkeypatch.setattr(results, "describe_machine", lambda _: computer)


async def ready(pilot: Pilot[Any]) -> None:
    await until(pilot, "ready", "failed")
    await settled(pilot)


async def over(pilot: Pilot[Any]) -> None:
    await until(pilot, "ready")
    await pilot.press("enter")
    await until(pilot, "done", "failed")
    await settled(pilot)


def bench(what: str, **options: Any) -> Made:
    gate = held() if what == "running" else Gate()
    engine = Measurable(gates={BENCHED: gate}, dies_at=30 if what == "failed" else None)

    async def running(pilot: Pilot[Any]) -> None:
        await until(pilot, "ready")
        await pilot.press("down", "down", "enter")
        await answers(pilot, engine, BENCHED + 1)
        await settled(pilot)

    async def stopped(pilot: Pilot[Any]) -> None:
        await running(pilot)
        await pilot.press("escape")
        gate.set()
        await until(pilot, "done")
        await settled(pilot)

    if what not in ("running", "stopped"):
        gate.set()
    steps = {"before": ready, "running": running, "stopped": stopped}.get(what, over)
    return laboratory.bench(engine, **options), steps


def verify(what: str, **options: Any) -> Made:
    rounds = what in ("other texts", "failed")
    gate = held() if what == "running" else Gate()
    engine = Checkable(
        late if rounds or what == "differs" else honest,
        rounds=rounds,
        gates={CHECKED: gate},
        dies_at=30 if what == "failed" else None,
    )

    async def running(pilot: Pilot[Any]) -> None:
        await until(pilot, "ready")
        await pilot.press("enter")
        await wait_until(pilot, lambda: engine.answers == CHECKED + 1)
        await settled(pilot)

    async def stopped(pilot: Pilot[Any]) -> None:
        await running(pilot)
        await pilot.press("escape")
        gate.set()
        await until(pilot, "done")
        await settled(pilot)

    if what not in ("running", "stopped"):
        gate.set()
    steps = {"before": ready, "running": running, "stopped": stopped}.get(what, over)
    effort = None if what == "before" else laboratory.QUICK
    return laboratory.verify(engine, effort=effort, **options), steps


@pytest.mark.parametrize("what", ["running", "done", "failed"])
def test_bench(snap_compare: Compare, what: str) -> None:
    app, steps = bench(what)
    assert snap_compare(app, run_before=steps)


@pytest.mark.parametrize("what", ["running", "differs"])
def test_verify(snap_compare: Compare, what: str) -> None:
    app, steps = verify(what)
    assert snap_compare(app, run_before=steps)


def test_bench_in_ascii_without_colour(snap_compare: Compare) -> None:
    app, steps = bench("running", colour=False, ascii_only=True)
    assert snap_compare(app, terminal_size=(100, 30), run_before=steps)
