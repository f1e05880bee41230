"""The first screen of all: once ever, and what it says of this computer."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from localspec import paths
from localspec.chat.history import ChatHistory
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.launch import ResolvedPair, recent_pairs
from localspec.machine.device import Device
from localspec.models.local_files import inventory
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens import welcome
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.welcome import WelcomeScreen
from localspec.tui.screens.wizard import WizardScreen
from localspec.tui.wizard.what_if import WhatIf
from tests.models import packagefile
from tests.support import scenes, wizards
from tests.support.app_driver import AppDriver
from tests.support.scenes import settled
from tests.support.scripted_engine import (
    Opening,
    ScriptedEngine,
    answer,
    painted,
    wait_until,
)
from tests.support.wizards import CARD, CPU, GIB, NO_CARD
from tests.support.zoo import Zoo

SMALLER = replace(
    CARD, name="CUDA1", description="NVIDIA GeForce GTX 1660", total=6 * GIB
)
COMPUTERS = {
    "no-gpu": NO_CARD,
    "one-card": wizards.PLACE,
    "several-cards": MachineProfile(
        (CARD, replace(CARD, name="CUDA1")),
        CPU,
        from_devices((CARD, CARD), TYPICAL_CPU_SPEED),
    ),
}


def survey(folder: Path, computer: str, **more: Any) -> MachineSurvey:
    place = COMPUTERS[computer]
    found = wizards.candidates(place, "chat", WhatIf(), wizards.catalogue(folder))
    listed = found[1:] if computer == "several-cards" else found
    return MachineSurvey("8 cores", machine_profile=place, candidates=listed, **more)


def app(
    seen: Callable[[], MachineSurvey],
    closer: Callable[[MachineSurvey], MachineSurvey] | None = None,
) -> LocalspecApp:
    options = AppOptions(seed=1, first_run=welcome.is_first_run())
    opening = Opening([ScriptedEngine(lambda: answer(["a"]))])
    return scenes.home(options, None, seen, closer, opening)


async def told(pilot: Pilot[Any]) -> None:
    await wait_until(
        pilot, lambda: "Checking this computer" not in painted(pilot.app.screen)
    )
    await settled(pilot)


def test_it_is_due_where_nobody_was_before_and_never_again() -> None:
    assert welcome.is_first_run()
    assert not paths.data_dir().exists()  # to ask leaves no trace
    welcome.mark_welcomed()
    assert not welcome.is_first_run()
    assert sorted(p.name for p in paths.data_dir().iterdir()) == ["welcomed"]


@pytest.mark.parametrize("trace", ["chat", "pair", "run"])
def test_it_is_not_due_where_somebody_was(trace: str, tmp_path: Path) -> None:
    if trace == "chat":
        ChatHistory.open().close()
    elif trace == "pair":
        (tmp_path / "a.gguf").touch()
        recent_pairs.add(ResolvedPair(tmp_path / "a.gguf", None))
    else:
        recent_pairs.save_last("demo", "auto")
    assert not welcome.is_first_run()


async def test_it_is_shown_once_and_escape_leads_home(tmp_path: Path) -> None:
    for first in (WelcomeScreen, HomeScreen):
        async with app(lambda: survey(tmp_path, "one-card")).run_test(
            size=(80, 24)
        ) as pilot:
            await settled(pilot)
            assert isinstance(pilot.app.screen, first)
            await pilot.press("escape")
            await settled(pilot)
            assert isinstance(pilot.app.screen, HomeScreen)


async def test_where_nothing_can_be_written_it_is_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOCALSPEC_DATA_DIR", str(tmp_path / "file" / "data"))
    async with app(lambda: survey(tmp_path, "no-gpu")).run_test(size=(60, 15)) as pilot:
        await told(pilot)
        assert isinstance(pilot.app.screen, WelcomeScreen)
        assert pilot.app.screen.max_scroll_y == 0 and "skip" in painted(
            pilot.app.screen
        )
        await pilot.press("escape")
        await settled(pilot)
        assert isinstance(pilot.app.screen, HomeScreen)


async def test_the_starter_is_the_first_row_and_what_enter_opens(
    tmp_path: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    packagefile.install(tmp_path / "packages", zoo["chatty"], monkeypatch)
    screens = app(
        lambda: MachineSurvey("8 cores", local_models=inventory.list_models())
    )
    async with screens.run_test(size=(80, 24)) as pilot:
        shown = AppDriver(pilot)
        await settled(pilot)
        await shown.sees("enter SmolLM2 135M chat model, installed")
        await shown.press("escape")
        await settled(pilot)
        rows = shown.top(HomeScreen)._list.rows
        assert [row.name for row in rows] == ["SmolLM2 135M", "Demo"]
        await shown.sees("chat model, installed")
        assert "×" not in shown.shown  # no speed-up is promised
        await shown.press("enter")
        await shown.reaches(ChatScreen)
        assert shown.screen.session.pair.target.name == packagefile.FILE
        await settled(pilot)
        await shown.sees("This model is a toy, and often wrong. esc, then w")

        recent_pairs.save_last(str(zoo["target"]), "none")
        await shown.press("escape")
        await shown.reaches(HomeScreen)
        await shown.press("enter")
        await shown.reaches(ChatScreen)
        await settled(pilot)
        assert "toy" not in shown.shown


@pytest.mark.parametrize(
    ("key", "screen"), [("enter", ChatScreen), ("w", WizardScreen)]
)
async def test_the_demo_and_the_wizard_are_one_key_away(
    key: str, screen: type, tmp_path: Path
) -> None:
    async with app(lambda: survey(tmp_path, "one-card")).run_test(
        size=(80, 24)
    ) as pilot:
        shown = AppDriver(pilot)
        await told(pilot)
        await shown.press(key)
        await shown.reaches(screen)
        if shown.is_on(ChatScreen):
            assert shown.screen.session.pair.target.name == "demo-target.gguf"
        await settled(pilot)


def test_what_this_computer_can_do_and_what_is_unknown(tmp_path: Path) -> None:
    """The pictures show one card, and none."""
    line, room, _ = welcome._capability_lines(survey(tmp_path, "several-cards"))
    assert line == "2 × NVIDIA GeForce RTX 4070, together 24.0 GB, 21.8 GB free"
    assert room == "Runs models of about 15 billion parameters: Phi-4"
    seen = survey(tmp_path, "one-card")
    strange = replace(
        wizards.PLACE, devices=(Device("Vulkan0", "\x1b[31mcard"), SMALLER)
    )
    line, _, pace = welcome._capability_lines(
        replace(seen, machine_profile=strange, candidates=seen.candidates[2:])
    )
    assert line == "card and 1 more, together memory unknown"
    assert pace == "Its speed is known after the first run."
    assert (
        "only the demo"
        in list(welcome._capability_lines(replace(seen, candidates=())))[1]
    )
    idle = replace(seen, machine_profile=NO_CARD, unused_gpu_hint="a card is here")
    *_, pace = welcome._capability_lines(idle)
    assert pace == "This llama.cpp build cannot use your GPU: f9 fixes that."


async def test_it_waits_for_nothing_and_what_is_found_out_is_put_in(
    tmp_path: Path,
) -> None:
    gate = threading.Event()

    def closer(seen: MachineSurvey) -> MachineSurvey:
        gate.wait(60)
        return survey(tmp_path, "one-card", unused_gpu_hint="it cannot be used")

    async with app(lambda: MachineSurvey("8 cores"), closer).run_test(
        size=(80, 24), notifications=True
    ) as pilot:
        await settled(pilot)
        before = painted(pilot.app.screen)
        assert "Checking this computer …" in before and "enter the demo" in before
        gate.set()
        await told(pilot)
        await wait_until(pilot, lambda: "RTX 4070" in painted(pilot.app.screen))
        # it is said in other words
        assert "cannot be used" not in painted(pilot.app.screen)
