"""The doctor on the screen: what is listed, what is mended, and never unasked."""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec.doctor.findings import CommandLine, Finding, RepairAction
from localspec.errors import StorageError
from localspec.fit.advisor import SettingsRequest
from localspec.protocol.wire import LoadCommand
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ConfirmScreen
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.doctor import DoctorScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.widgets.log_view import LogView
from tests.support import scenes
from tests.support.scenes import settled
from tests.support.scripted_engine import Opening, ScriptedEngine, answer, painted, wait_until

LINE = (
    "python -m pip install --force-reinstall --no-deps --extra-index-url "
    "https://wheels.example/whl/cu125 --only-binary llama-cpp-python llama-cpp-python==0.3.36"
)
WELL = (
    Finding("versions", "engine", "ok", "localspec 0.1.0, Python 3.11.7, llama-cpp-python 0.3.36"),
    Finding("library", "engine", "ok", "~/venv/lib/llama_cpp/lib/libllama.so can use the CPU only"),
    Finding("memory", "devices", "ok", "8 cores: 24.0 GiB of 31.3 GiB memory free"),
    Finding("room", "disk", "ok", "65.5 GB free for models"),
    Finding("unicode", "terminal", "ok", "Unicode"),
    Finding("models", "models", "ok", "3 here, 11.2 GB"),
)


class Patient:
    """A computer that is mended by what is done to it; `done` says what was."""

    def __init__(self, command: str = "print('collecting')", *, gate: bool = False) -> None:
        self.done: list[str] = []
        self.gate = threading.Event()
        if not gate:
            self.gate.set()
        self.looks = 0
        words = (sys.executable, "-c", command)
        self._sick = [
            Finding(
                "cpu-only-build",
                "engine",
                "warning",
                "NVIDIA driver 570.86.15 is installed, but this build of llama.cpp can use the "
                "CPU only",
                LINE,
                "The GPU is idle: answers are several times slower than they could be.",
                RepairAction("install it", f"Run this?\n\n{LINE}", commands=(CommandLine(words),)),
            ),
            Finding(
                "config-damaged",
                "disk",
                "error",
                "~/.config/localspec/config.toml cannot be used: Expected ']' at the end of a "
                "table declaration (at line 3, column 8)",
                "Fix it or remove it.",
                "localspec does not start, because your settings would not apply.",
                RepairAction("rename it", "Rename it?", self._mend("config-damaged")),
            ),
            Finding(
                "leftovers",
                "disk",
                "notice",
                "4.1 GB in 2 files of downloads that ended early",
                "localspec pull resumes them; localspec rm --leftovers deletes them",
                "They use disk space. Downloading the same file again resumes from them.",
                RepairAction("remove them", "Remove 2 unfinished downloads, 4.1 GB?", self._refuse),
            ),
            Finding(
                "offline", "network", "notice", "offline mode is on: HF_HUB_OFFLINE", "unset it"
            ),
        ]

    def _mend(self, name: str) -> Callable[[], str]:
        def do() -> str:
            self.done.append(name)
            self._sick = [one for one in self._sick if one.id != name]
            return "It is now \x1b[31maside"

        return do

    def _refuse(self) -> str:
        self.done.append("refused")
        raise StorageError("The disk says no.", "Ask it.")

    def look(self, area: str) -> Iterator[Finding]:
        self.looks += area == "engine"
        self.gate.wait(20)
        yield from (one for one in (*self._sick, *WELL) if one.area == area)


def app(patient: Patient, runner: EngineRunner | None = None, **options: Any) -> LocalspecApp:
    wanted, engines = AppOptions(seed=1, **options), runner or EngineRunner()
    return LocalspecApp(wanted, engines, lambda: DoctorScreen(engines, wanted, patient.look))


@asynccontextmanager
async def examined(
    patient: Patient, runner: EngineRunner | None = None, size: tuple[int, int] = (100, 34)
) -> AsyncIterator[Pilot[Any]]:
    async with app(patient, runner).run_test(size=size, notifications=True) as pilot:
        screen = pilot.app.screen
        assert isinstance(screen, DoctorScreen)
        await wait_until(pilot, lambda: screen.is_done)
        await settled(pilot)
        yield pilot


async def press(pilot: Pilot[Any], *keys: str) -> str:
    await pilot.press(*keys)
    await settled(pilot)
    return painted(pilot.app.screen)


# --- what is listed -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_worst_comes_first_with_what_it_means_and_what_mends_it() -> None:
    async with examined(Patient()) as pilot:
        seen = painted(pilot.app.screen)
        order = (
            "Problems ▸✗ disk: ~/.config",
            "! engine: NVIDIA",
            "Notes · disk: 4.1",
            "OK ✓ engine: loc",
        )
        assert sorted(map(seen.index, order)) == list(map(seen.index, order))
        assert "The GPU is idle" in seen and "--extra-index-url" in seen
        assert "1 error, 1 warning, 2 notices" in seen
        assert "enter rename it" in seen  # of the selected finding
        assert "enter install it" in await press(pilot, "down")


@pytest.mark.asyncio
async def test_one_looks_while_it_looks_and_the_pointer_stays() -> None:
    patient = Patient(gate=True)
    async with app(patient).run_test(size=(100, 34)) as pilot:
        await wait_until(pilot, lambda: "checking engine …" in painted(pilot.app.screen))
        await pilot.press("c", "down", "enter")  # nothing is there yet
        patient.gate.set()
        screen = pilot.app.screen
        assert isinstance(screen, DoctorScreen)
        await wait_until(pilot, lambda: screen.is_done)
        await settled(pilot)
        assert (
            screen.highlighted_finding is not None
            and screen.highlighted_finding.id == "config-damaged"
        )
        await press(pilot, "down", "down")
        name = screen.highlighted_finding.id
        assert name == "leftovers"
        await press(pilot, "r")
        await wait_until(pilot, lambda: screen.is_done)
        assert patient.looks == 2


@pytest.mark.asyncio
async def test_the_report_is_text_that_may_be_pasted(copied: list[str]) -> None:

    async with examined(Patient()) as pilot:
        assert "Copied." in await press(pilot, "c")
    (text,) = copied
    assert text.startswith("engine\n  ! NVIDIA driver")
    assert text.endswith("x error, ! warning, - notice.")


# --- mending ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_nothing_is_mended_but_by_a_yes() -> None:
    patient = Patient()
    async with examined(patient) as pilot:
        await press(pilot, "enter")
        assert isinstance(pilot.app.screen, ConfirmScreen)
        await press(pilot, "enter")  # which is no yes
        assert patient.done == [] and isinstance(pilot.app.screen, DoctorScreen)
        await press(pilot, "enter", "y")
        await wait_until(pilot, lambda: "It is now aside" in painted(pilot.app.screen))
        await wait_until(pilot, lambda: "1 warning, 2 notices" in painted(pilot.app.screen))
        assert patient.done == ["config-damaged"]
        assert "config.toml" not in painted(pilot.app.screen)


@pytest.mark.asyncio
async def test_what_fails_is_said_and_what_is_ones_own_to_do_too() -> None:
    patient = Patient()
    async with examined(patient) as pilot:
        await press(pilot, "down", "down", "enter", "y")
        await wait_until(pilot, lambda: "The disk says no. Ask it." in painted(pilot.app.screen))
        assert patient.done == ["refused"]
        screen = pilot.app.screen
        assert isinstance(screen, DoctorScreen)
        await wait_until(pilot, lambda: screen.is_done)
        while screen.highlighted_finding is None or screen.highlighted_finding.id != "offline":
            await press(pilot, "down")
        assert "Fix it by hand: unset it" in await press(pilot, "enter")
        await press(pilot, "end")
        await press(pilot, "enter")  # all is well with it
        assert pilot.app.screen is screen


@pytest.mark.asyncio
async def test_an_installer_is_watched_and_then_all_is_looked_at_again() -> None:
    patient = Patient("print('\\x1b[1mcollecting \\x07'); print('installed')")
    async with examined(patient) as pilot:
        assert "cu125" in await press(pilot, "down", "enter")
        await pilot.press("y")
        await wait_until(pilot, lambda: "Done." in painted(pilot.app.screen))
        assert "collecting installed" in painted(pilot.app.screen)
        await press(pilot, "enter")
        await wait_until(pilot, lambda: patient.looks == 2)
        assert "collecting installed" not in painted(pilot.app.screen)


@pytest.mark.asyncio
async def test_a_failed_installer_says_so() -> None:
    async with examined(Patient("raise SystemExit('no wheel for this')")) as pilot:
        await pilot.press("down", "enter", "y")
        await wait_until(pilot, lambda: "Failed with exit code 1" in painted(pilot.app.screen))
        assert "no wheel for this" in painted(pilot.app.screen)


@pytest.mark.asyncio
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_an_installer_is_stopped_and_may_put_things_back() -> None:
    patient = Patient(
        "import time\nprint('begun', flush=True)\n"
        "try: time.sleep(600)\nexcept KeyboardInterrupt: print('put back')"
    )
    async with examined(patient) as pilot:
        await pilot.press("down", "enter", "y")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))
        await wait_until(pilot, lambda: "begun" in pilot.app.screen.query_one(LogView).lines)
        screen, looks = pilot.app.screen, patient.looks
        await pilot.press("r")
        assert patient.looks == looks and painted(screen).endswith("esc stop")
        await pilot.press("escape")
        await wait_until(pilot, lambda: "Stopped." in painted(screen))
        assert "put back" in painted(screen) and painted(screen).endswith("esc back")


@pytest.mark.asyncio
async def test_the_way_back_from_an_installer_is_the_user_s_key() -> None:
    patient, engines = Patient(), EngineRunner()
    wanted = AppOptions(keymap={"doctor.back": "f4"})
    shown = LocalspecApp(wanted, engines, lambda: DoctorScreen(engines, wanted, patient.look))
    async with shown.run_test(size=(100, 34)) as pilot:
        await wait_until(pilot, lambda: "cu125" in painted(shown.screen))
        await pilot.press("down", "enter", "y")
        await wait_until(pilot, lambda: painted(shown.screen).endswith("f4 back"))


@pytest.mark.asyncio
async def test_what_a_loaded_model_uses_is_not_replaced() -> None:
    runner = EngineRunner(Opening([ScriptedEngine(lambda: answer(["a"]))]))
    runner.load(SettingsRequest(LoadCommand("a.gguf", None)), lambda _: None)
    async with examined(Patient(), runner) as pilot:
        assert "Leave its chat first" in await press(pilot, "down", "enter")
        assert isinstance(pilot.app.screen, DoctorScreen)


# --- how to get there ---------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["home", "chat"])
async def test_f9_from_everywhere_and_back(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.doctor.checks.AREAS", {"disk": lambda: iter(WELL[3:4])})
    shown = scenes.home() if where == "home" else scenes.chat(scenes.spoken)
    async with shown.run_test(size=(80, 24)) as pilot:
        before = pilot.app.screen
        assert isinstance(before, HomeScreen | ChatScreen)
        await pilot.press("f9", "f9")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, DoctorScreen))
        await press(pilot, "l")
        assert isinstance(pilot.app.screen, LogScreen)
        await press(pilot, "escape")
        assert isinstance(pilot.app.screen, DoctorScreen)
        await press(pilot, "escape")
        assert pilot.app.screen_stack[-1] is before


# --- pictures -----------------------------------------------------------------------------

Compare = Callable[..., bool]


def having(*keys: str) -> scenes.Steps:
    async def steps(pilot: Pilot[Any]) -> None:
        screen = pilot.app.screen
        assert isinstance(screen, DoctorScreen)
        await wait_until(pilot, lambda: screen.is_done)
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        if pilot.app.screen is screen and screen.query_one(LogView).display:
            await wait_until(pilot, lambda: "Done." in painted(pilot.app.screen))
            pilot.app.screen.query_one(LogView).set_lines(
                ["$ python -m pip install …", "collecting"]
            )
            await settled(pilot)

    return steps


MOMENTS = {"listed": (), "asked": ("down", "enter"), "running": ("down", "enter", "y")}


@pytest.mark.pictures
@pytest.mark.parametrize("moment", MOMENTS)
def test_doctor(snap_compare: Compare, moment: str) -> None:
    steps = having(*MOMENTS[moment])
    assert snap_compare(app(Patient()), run_before=steps)
