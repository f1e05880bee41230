"""The doctor on the screen: what is listed, what is mended, and never unasked."""

import sys
import threading
from collections.abc import AsyncIterator, Iterator
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
from localspec.tui.screens.doctor import DoctorScreen
from localspec.tui.screens.log import LogScreen
from localspec.tui.widgets.log_view import LogView
from tests.support import scenes
from tests.support.app_driver import AppDriver
from tests.support.scenes import settled
from tests.support.scripted_engine import Opening, ScriptedEngine, answer

LINE = (
    "python -m pip install --force-reinstall --no-deps --extra-index-url "
    "https://wheels.example/whl/cu125 --only-binary llama-cpp-python llama-cpp-python==0.3.36"
)
WELL = (
    Finding(
        "versions",
        "engine",
        "ok",
        "localspec 0.1.0, Python 3.11.7, llama-cpp-python 0.3.36",
    ),
    Finding(
        "library",
        "engine",
        "ok",
        "~/venv/lib/llama_cpp/lib/libllama.so can use the CPU only",
    ),
    Finding("memory", "devices", "ok", "8 cores: 24.0 GB of 31.3 GB memory free"),
    Finding("room", "disk", "ok", "65.5 GB free for models"),
    Finding("unicode", "terminal", "ok", "Unicode"),
    Finding("models", "models", "ok", "3 here, 11.2 GB"),
)


SICK: dict[str, Any] = {
    "cpu-only-build engine warning": (
        "NVIDIA driver 570.86.15 is installed, but this build of llama.cpp can use the CPU only",
        LINE, "The GPU is idle: answers are several times slower than they could be.",
    ),
    "config-damaged disk error": (
        "~/.config/localspec/config.toml cannot be used: Expected ']' at the end of a table "
        "declaration (at line 3, column 8)",
        "Fix it or remove it.", "localspec does not start, because your settings would not apply.",
    ),
    "leftovers disk notice": (
        "4.1 GB in 2 files of downloads that ended early",
        "localspec pull resumes them; localspec rm --leftovers deletes them",
        "They use disk space. Downloading the same file again resumes from them.",
    ),
    "offline network notice": ("offline mode is on: HF_HUB_OFFLINE", "unset it"),
}  # fmt: skip


class Patient:
    """A computer that is mended by what is done to it; `done` says what was."""

    def __init__(
        self, command: str = "print('collecting')", *, gate: bool = False
    ) -> None:
        self.done: list[str] = []
        self.gate = threading.Event()
        if not gate:
            self.gate.set()
        self.looks = 0
        commands = (CommandLine((sys.executable, "-c", command)),)
        repairs = (
            (RepairAction("install it", f"Run this?\n\n{LINE}", commands=commands),),
            (RepairAction("rename it", "Rename it?", self._rename),),
            (
                RepairAction(
                    "remove them",
                    "Remove 2 unfinished downloads, 4.1 GB?",
                    self._refuse,
                ),
            ),
            (),
        )
        sick = zip(SICK.items(), repairs, strict=True)
        self._sick = [
            Finding(*[*h.split(), *words, *repair]) for (h, words), repair in sick
        ]

    def _rename(self) -> str:
        self.done.append("config-damaged")
        self._sick = [one for one in self._sick if one.id != "config-damaged"]
        return "It is now \x1b[31maside"

    def _refuse(self) -> str:
        self.done.append("refused")
        raise StorageError("The disk says no.", "Ask it.")

    def look(self, area: str) -> Iterator[Finding]:
        self.looks += area == "engine"
        self.gate.wait(60)
        yield from (one for one in (*self._sick, *WELL) if one.area == area)


def app(
    patient: Patient, runner: EngineRunner | None = None, **options: Any
) -> LocalspecApp:
    app_options = AppOptions(seed=1, **options)
    engines = runner or EngineRunner()
    return LocalspecApp(
        app_options, engines, lambda: DoctorScreen(engines, app_options, patient.look)
    )


class DoctorDriver(AppDriver):
    @property
    def doctor(self) -> DoctorScreen:
        return self.top(DoctorScreen)

    async def examined(self) -> None:
        await self.wait(lambda: self.doctor.is_done)
        await settled(self.pilot)

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await settled(self.pilot)


@asynccontextmanager
async def opened(
    patient: Patient, runner: EngineRunner | None = None, **options: Any
) -> AsyncIterator[DoctorDriver]:
    running = app(patient, runner, **options)
    async with running.run_test(size=(100, 34), notifications=True) as pilot:
        driver = DoctorDriver(pilot)
        if patient.gate.is_set():
            await driver.examined()
        yield driver


async def test_the_report_is_copied_and_enter_is_for_the_selected_finding(
    copied: list[str],
) -> None:
    async with opened(Patient()) as shown:
        await shown.sees("enter rename it")
        await shown.press("down", "c")
        await shown.sees("enter install it")
    assert copied[0].startswith("engine\n  ! NVIDIA driver")
    assert copied[0].endswith("✗ error, ! warning, · notice.")


async def test_one_looks_while_it_looks_and_the_pointer_stays() -> None:
    patient = Patient(gate=True)
    async with opened(patient) as shown:
        await shown.sees("checking engine …")
        await shown.pilot.press("c", "down", "enter")  # nothing is there yet
        patient.gate.set()
        await shown.examined()
        assert shown.doctor.highlighted_finding is not None
        assert shown.doctor.highlighted_finding.id == "config-damaged"
        await shown.press("down", "down")
        assert shown.doctor.highlighted_finding.id == "leftovers"
        await shown.press("r")
        await shown.wait(lambda: patient.looks == 2)


async def test_nothing_is_mended_but_by_a_yes() -> None:
    patient = Patient()
    async with opened(patient) as shown:
        await shown.press("enter")
        assert shown.is_on(ConfirmScreen)
        await shown.press("enter")  # which is no yes
        assert patient.done == [] and shown.is_on(DoctorScreen)
        await shown.press("enter", "y")
        await shown.sees("It is now aside", "1 warning, 2 notices")
        assert patient.done == ["config-damaged"] and "config.toml" not in shown.shown


async def test_what_fails_is_said_and_what_is_ones_own_to_do_too() -> None:
    patient = Patient()
    async with opened(patient) as shown:
        await shown.press("down", "down", "enter", "y")
        await shown.sees("The disk says no. Ask it.")
        await shown.examined()
        while getattr(shown.doctor.highlighted_finding, "id", "") != "offline":
            await shown.press("down")
        await shown.press("enter")
        assert "Fix it by hand: unset it" in shown.shown and patient.done == ["refused"]
        await shown.press("end")
        await shown.press("enter")  # all is well with it
        assert shown.is_on(DoctorScreen)


async def test_an_installer_is_watched_and_then_all_is_looked_at_again() -> None:
    patient = Patient("print('\\x1b[1mcollecting \\x07'); print('installed')")
    async with opened(patient, keymap={"doctor.back": "f4"}) as shown:
        await shown.press("down", "enter")
        await shown.sees("cu125")
        await shown.pilot.press("y")
        await shown.sees("Done.", "collecting installed", "f4 back")
        await shown.press("enter")
        await shown.wait(lambda: patient.looks == 2)
        assert "collecting installed" not in shown.shown
    async with opened(Patient("raise SystemExit('no wheel for this')")) as shown:
        await shown.pilot.press("down", "enter", "y")
        await shown.sees("Failed with exit code 1", "no wheel for this")


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_an_installer_is_stopped_and_may_put_things_back() -> None:
    patient = Patient(
        "import time\nprint('begun', flush=True)\n"
        "try: time.sleep(600)\nexcept KeyboardInterrupt: print('put back')"
    )
    async with opened(patient) as shown:
        await shown.pilot.press("down", "enter", "y")
        await shown.reaches(DoctorScreen)
        await shown.wait(lambda: "begun" in shown.doctor.query_one(LogView).lines)
        looks = patient.looks
        await shown.pilot.press("r")
        assert patient.looks == looks and shown.shown.endswith("esc stop")
        await shown.pilot.press("escape")
        await shown.sees("Stopped.", "put back", "esc back")


async def test_what_a_loaded_model_uses_is_not_replaced() -> None:
    runner = EngineRunner(Opening([ScriptedEngine(lambda: answer(["a"]))]))
    runner.load(SettingsRequest(LoadCommand("a.gguf", None)), lambda _: None)
    async with opened(Patient(), runner) as shown:
        await shown.press("down", "enter")
        assert "Leave its chat first" in shown.shown and shown.is_on(DoctorScreen)


@pytest.mark.parametrize("where", ["home", "chat"])
async def test_f9_from_everywhere_and_back(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "localspec.doctor.checks.AREAS", {"disk": lambda: iter(WELL[3:4])}
    )
    running = scenes.home() if where == "home" else scenes.chat(scenes.spoken)
    async with running.run_test(size=(80, 24)) as pilot:
        shown = DoctorDriver(pilot)
        before = pilot.app.screen
        await pilot.press("f9", "f9")
        await shown.reaches(DoctorScreen)
        await shown.press("l")
        assert shown.is_on(LogScreen)
        await shown.press("escape")
        assert shown.is_on(DoctorScreen)
        await shown.press("escape")
        assert shown.app.screen is before


@scenes.steps
async def having(pilot: Pilot[Any], *keys: str) -> None:
    shown = DoctorDriver(pilot)
    await shown.examined()
    for key in keys:
        await shown.press(key)
    if keys:
        await shown.sees("Done.")
        shown.doctor.query_one(LogView).set_lines(
            ["$ python -m pip install …", "collecting"]
        )
        await settled(pilot)
