"""What fails on a thread is shown on the screen that started it: none waits for ever."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from textual.app import App
from textual.widgets import Input, Static

from localspec import paths
from localspec.bench.lossless_check import LosslessMeasurement
from localspec.chat.front_end import PickerChoices
from localspec.doctor import repairs
from localspec.doctor.findings import Finding, RepairAction
from localspec.errors import LocalspecError, StorageError
from localspec.models import model_lookup
from localspec.tui import scheduling
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs import open_files
from localspec.tui.dialogs.choices import PickerScreen
from localspec.tui.dialogs.pull import PullScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.screens.doctor import DoctorScreen
from localspec.tui.screens.measurement import MeasurementScreen
from localspec.tui.text.markdown import UncolouredBlock
from localspec.tui.widgets import transcript
from localspec.tui.wizard import what_if
from tests.support import scenes, wizards
from tests.support.app_driver import AppDriver, Chat, home_app
from tests.support.scenes import PAIR
from tests.support.scripted_engine import (
    Opening,
    ScriptedEngine,
    answer,
    wait_until,
)
from tests.tui.screens.test_wizard import shown

BUG = "planted-bug"


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(BUG)


def fail_when_asked() -> Iterator[Finding]:
    raise RuntimeError(BUG)
    yield


# --- the two ways to run a thread
# ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (StorageError("The disk is full.", "Free some."), "The disk is full."),
        (PermissionError(13, "Permission denied", "x.gguf"), "x.gguf cannot be used"),
        (ImportError("no module"), "cannot be imported"),
        (KeyError("some bug"), "Internal error: KeyError"),
    ],
)
async def test_whatever_work_raises_reaches_the_screen(
    raised: Exception, message: str
) -> None:
    def work() -> None:
        raise raised

    shown_errors: list[LocalspecError] = []
    app = App[None]()
    async with app.run_test() as pilot:
        scheduling.run_on_thread(app, "test", work, failed=shown_errors.append)
        await wait_until(pilot, lambda: shown_errors)
    assert message in shown_errors[0].message


async def test_a_bug_on_a_thread_is_in_the_crash_log() -> None:
    shown_errors: list[LocalspecError] = []
    app = App[None]()
    async with app.run_test() as pilot:
        scheduling.run_on_thread(app, "test", fail, failed=shown_errors.append)
        await wait_until(pilot, lambda: shown_errors)
    log = paths.data_dir() / "crash.log"
    assert str(log) in shown_errors[0].hint
    assert BUG in log.read_text()


async def test_a_worker_goes_on_after_a_job_that_failed() -> None:
    failures: list[LocalspecError] = []
    done = threading.Event()
    app = App[None]()
    async with app.run_test() as pilot:
        worker = scheduling.LatestOnlyWorker(app, "test")
        worker.submit(fail, failed=failures.append)
        await wait_until(pilot, lambda: failures)
        worker.submit(done.set, failed=failures.append)
        assert done.wait(60)
    assert len(failures) == 1


async def test_work_that_fails_after_the_app_has_ended_is_dropped() -> None:
    failures: list[LocalspecError] = []
    gate = threading.Event()

    def work() -> None:
        gate.wait(60)
        fail()

    app = App[None]()
    async with app.run_test():
        scheduling.run_on_thread(app, "late work", work, failed=failures.append)
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "late work":
            thread.join(60)
    assert failures == []


def test_no_screen_starts_a_thread_in_another_way() -> None:
    """These files start threads that no screen waits for, or guard them."""
    guarded = {"scheduling.py", "engine_runner.py", "terminal.py", "app.py"}
    folder = Path(scheduling.__file__).parent
    starts_thread = re.compile(r"threading\.Thread\(|run_worker\(|to_thread\(|@work")
    found = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if starts_thread.search(path.read_text(encoding="utf-8"))
    }
    assert found == guarded


# --- every screen that uses them
# ---------------------------------------------------------------------------------


@asynccontextmanager
async def dialog_over_home(dialog: Any) -> AsyncIterator[AppDriver]:
    async with scenes.home().run_test(size=(100, 30), notifications=True) as pilot:
        await scenes.surveyed(pilot)
        pilot.app.push_screen(dialog)
        yield AppDriver(pilot)


async def test_the_download_dialog_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_lookup, "resolve", fail)
    async with dialog_over_home(PullScreen("qwen3-8b", DownloadManager())) as driver:
        await driver.sees(BUG)
        assert "Contacting the hub" not in driver.shown


async def test_the_picker_shows_it() -> None:
    choices = PickerChoices("Models", "a name", load=fail, takes_text=True)
    async with dialog_over_home(PickerScreen(choices, "now")) as driver:
        await driver.sees(BUG)


async def test_the_survey_of_home_shows_it() -> None:
    app = scenes.home(survey=fail)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        await AppDriver(pilot).sees(BUG, "not examined")


async def test_the_search_of_the_hub_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DownloadManager, "hub", property(fail))
    async with home_app() as driver:
        await driver.press("slash", *"abc")
        driver.home._search.search_hub("abc")
        await driver.sees(BUG)


async def test_the_search_of_the_chats_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("localspec.tui.saved_chats.search_section", fail)
    async with home_app() as driver:
        await driver.press("slash", *"abc")
        await driver.sees(BUG)


def doctor_app(examine: Callable[[str], Iterator[Finding]]) -> LocalspecApp:
    options = AppOptions(seed=1)
    runner = EngineRunner()
    return LocalspecApp(options, runner, lambda: DoctorScreen(runner, options, examine))


async def test_the_diagnostics_list_a_check_that_failed() -> None:
    app = doctor_app(lambda _: fail_when_asked())
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        driver = AppDriver(pilot)
        await driver.sees("the check failed", BUG)
        assert driver.top(DoctorScreen).is_done


async def test_a_repair_that_failed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs.RepairRunner, "run", fail)
    action = RepairAction("mend it", "Mend it?", lambda: "mended")
    finding = Finding("broken", "disk", "error", "It is broken.", action=action)
    app = doctor_app(lambda area: iter([finding] if area == "disk" else []))
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        driver = AppDriver(pilot)
        await driver.wait(lambda: driver.top(DoctorScreen).is_done)
        await driver.press("enter", "y")
        await driver.sees(BUG)


async def test_the_shortlist_of_the_wizard_ends_empty(tmp_path: Path) -> None:
    services = wizards.stock(tmp_path, suggest=fail)
    app = wizards.app(services)
    async with app.run_test(size=(110, 36), notifications=True) as pilot:
        driver = AppDriver(pilot)
        await driver.sees("1 of 3")
        await driver.press("1")
        await driver.sees(BUG, "2 of 3")
        assert what_if.SEARCHING_TEXT not in driver.shown


async def test_headers_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    services = wizards.stock(tmp_path, read_headers=fail)
    app = wizards.app(services)
    async with app.run_test(size=(110, 36), notifications=True) as pilot:
        driver = AppDriver(pilot)
        await driver.sees("1 of 3")
        await driver.press("1")
        await driver.sees("2 of 3", "without draft")
        await driver.press("enter")
        await driver.sees(BUG)


async def test_the_fit_of_own_files_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_files, "describe_files", fail)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    async with shown(wizards.stock(tmp_path), "1", "o") as driver:
        driver.app.screen.query_one("#target", Input).value = str(model)
        verdict = driver.app.screen.query_one("#fit-verdict", Static)
        await driver.wait(lambda: BUG in str(verdict.content))


async def test_code_that_cannot_be_coloured_stays_plain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Other tests replace the worker by one without a thread.
    monkeypatch.setattr(transcript, "LatestOnlyWorker", scheduling.LatestOnlyWorker)
    monkeypatch.setattr(UncolouredBlock, "render", fail)
    script = answer(["```python\nprint(1)\n```\n"])
    async with Chat(ScriptedEngine(lambda: script)) as chat:
        await chat.send("code?")
        await chat.until("ready")
        await chat.sees("print(1)", BUG)


async def test_a_load_that_fails_by_a_bug_ends() -> None:
    options = AppOptions(seed=1)
    runner = EngineRunner(fail)
    app = LocalspecApp(
        options,
        runner,
        lambda: MeasurementScreen(LosslessMeasurement(), "p", PAIR, runner, options),
    )
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        driver = AppDriver(pilot)
        await driver.sees(BUG)
        assert driver.top(MeasurementScreen).phase == "failed"


async def test_a_measurement_that_fails_by_a_bug_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LosslessMeasurement, "run", fail)
    options = AppOptions(seed=1)
    runner = EngineRunner(Opening([ScriptedEngine(lambda: answer(["a"]))]))
    app = LocalspecApp(
        options,
        runner,
        lambda: MeasurementScreen(LosslessMeasurement(), "p", PAIR, runner, options),
    )
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        driver = AppDriver(pilot)
        screen = driver.top(MeasurementScreen)
        await driver.wait(lambda: screen.phase == "ready")
        await driver.press("enter")
        await driver.sees(BUG)
        assert screen.phase == "failed"
