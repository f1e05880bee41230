"""The pictures of docs/tour.md: `scripts/screenshots.py --only tour`.

The app, the catalogue, the estimates and the demo pair are real. The GPU, two downloads
and the doctor's findings are simulated.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.app import App
from textual.pilot import Pilot

from localspec.doctor.findings import Finding, RepairAction, ok, problem
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import TYPICAL_CPU_SPEED, from_devices
from localspec.machine.device import Device
from localspec.models import catalog
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.download import DownloadPhase, DownloadState
from localspec.models.reference import RepoFile
from localspec.tui import app as tui_app
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.doctor import DoctorScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.measurement import MeasurementScreen
from localspec.tui.screens.welcome import WelcomeScreen
from localspec.tui.wizard.shortlist import suggest_candidates
from localspec.tui.wizard.what_if import WhatIf

SIZE = (120, 30)
GIB = 1 << 30
CARD = Device(
    name="CUDA0",
    description="NVIDIA RTX 4070",
    kind="gpu",
    free=int(10.9 * GIB),
    total=12 * GIB,
    backend="CUDA",
    driver="570",
)
CPU = Device(
    name="CPU",
    description="8 cores",
    kind="cpu",
    free=24 * GIB,
    total=32 * GIB,
    backend="CPU",
    unified=True,
)
PLACE = MachineProfile((CARD,), CPU, from_devices((CARD,), TYPICAL_CPU_SPEED))
MACHINE = "NVIDIA RTX 4070 · 12 GB, 10.9 GB free · CUDA"
PAIR = "gemma-4-12b+gemma-4-12b-mtp"


class FakeDownloads(DownloadManager):
    """Two downloads that never progress, from the moment they are requested."""

    asked = False

    def states(self) -> tuple[DownloadState, ...]:
        if not self.asked:
            return ()
        pair = catalog.load().pairs[PAIR]
        assert pair.draft is not None
        return (_state(pair.draft, 1.0), _state(pair.target, 0.61))


def _state(model: catalog.CatalogModel, share: float) -> DownloadState:
    total = model.size or 0
    job = DownloadJob(str(model.repo), "main", RepoFile(model.file, total))
    if share == 1:
        return DownloadState(job, DownloadPhase.DONE, total)
    left = (1 - share) * total
    return DownloadState(
        job, DownloadPhase.LOADING, int(total * share), 48e6, left / 48e6
    )


def _on_a_card(seen: MachineSurvey) -> MachineSurvey:
    found = suggest_candidates(PLACE, "chat", WhatIf(), catalog.load())
    return replace(seen, machine_label=MACHINE, machine_profile=PLACE, candidates=found)


def findings(area: str) -> Iterator[Finding]:
    """Findings of a computer whose llama.cpp cannot use its GPU."""
    line = "LOCALSPEC_BACKEND=cuda scripts/run doctor"
    without_gpu = problem(
        "cpu-only-build",
        "NVIDIA driver 570.86 is installed, but this build of llama.cpp can use the CPU only",
        line,
    )
    leftovers = problem(
        "leftovers",
        "4.1 GB in 2 incomplete downloads",
        "localspec pull resumes them; localspec rm --leftovers deletes them",
    )
    install = RepairAction("install it", f"Run this?\n\n{line}")
    remove = RepairAction("remove them", "Remove 2 incomplete downloads, 4.1 GB?")
    found = (
        ("engine", replace(without_gpu, action=install)),
        ("disk", replace(leftovers, action=remove)),
        ("engine", ok("versions", "localspec 0.1.0, Python 3.11.7")),
        ("devices", ok("memory", "8 cores: 24.0 GiB of 32.0 GiB memory free")),
        ("disk", ok("room", "65.5 GB free for models")),
        ("terminal", ok("unicode", "Unicode")),
    )
    yield from (replace(one, area=area) for of, one in found if of == area)


# --- the tour
# ---------------------------------------------------------------------------------


async def pictures(folder: Path) -> dict[str, str]:
    """SVGs by name; `folder` is an empty data folder for the app."""
    os.environ |= {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}
    os.environ["LOCALSPEC_CONFIG"] = "config.toml"  # a path without personal data
    os.environ["LOCALSPEC_STARTER"] = "0"  # the demo is shown and measured
    with chdir(folder):
        return {**await _choosing(), **await _measuring(), **await _rest()}


def _app(options: AppOptions, downloads: DownloadManager | None = None) -> LocalspecApp:
    runner = EngineRunner()

    def home() -> HomeScreen:
        return HomeScreen(runner, options, MachineSurvey, downloads, _on_a_card)

    return LocalspecApp(options, runner, home)


async def _choosing() -> dict[str, str]:
    """First screen, Home, wizard, download."""
    coming = FakeDownloads()
    app = _app(AppOptions(seed=1, first_run=True), coming)
    made: dict[str, str] = {}
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: isinstance(app.screen, WelcomeScreen))
        await until(pilot, lambda: _shows(app, "billion"))
        for name, keys in (
            ("first", ()),
            ("home", ("escape",)),
            ("wizard", ("w", "1")),
        ):
            await _press(pilot, *keys)
            if name == "wizard":
                await until(pilot, lambda: _shows(app, "without draft"))
            made[name] = svg(app, name)
        names = [one.pair.id for one in _on_a_card(MachineSurvey()).candidates]
        await pilot.press(*["down"] * names.index(PAIR))
        await _press(pilot, "enter")
        made["card"] = svg(app, "card")
        await _press(pilot, "escape", "escape", "escape")
        assert isinstance(app.screen, HomeScreen)
        coming.asked = True
        app.screen.fill_list()
        await _press(pilot, "end")
        made["download"] = svg(app, "download")
    return made


def _shows(app: LocalspecApp, words: str) -> bool:
    return words in svg(app, "").replace("&#160;", " ")


async def _press(pilot: Pilot[Any], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await still(pilot)


async def _measuring() -> dict[str, str]:
    """Bench and verify of the demo pair on this computer."""
    app = _app(AppOptions(seed=1))
    made: dict[str, str] = {}
    async with app.run_test(size=SIZE) as pilot:
        try:
            await _press(pilot)
            for name, key in (("bench", "b"), ("verify", "v")):
                await pilot.press(key)
                await until(pilot, lambda: _phase(app) == "ready")
                await _press(pilot, "enter")
                await until(pilot, lambda: _phase(app) == "done")
                await still(pilot)
                made[name] = svg(app, name)
                await _press(pilot, "escape")
        finally:
            app.runner.close()
    return made


def _phase(app: LocalspecApp) -> str:
    return app.screen.phase if isinstance(app.screen, MeasurementScreen) else ""


async def _rest() -> dict[str, str]:
    """The doctor, and the preferences after a change."""
    del os.environ["HF_HUB_OFFLINE"]  # the preferences would show it
    options = tui_app.load_options()
    options.first_run = False
    app = _app(options)
    made: dict[str, str] = {}
    async with app.run_test(size=SIZE) as pilot:
        app.push_screen(DoctorScreen(app.runner, options, findings))
        await still(pilot)
        made["doctor"] = svg(app, "doctor")
        await _press(pilot, "escape", "f10")
        while app.focused is None or app.focused.name != "answers.temperature":
            await _press(pilot, "down")
        await _press(pilot, *"0.7", "enter")
        made["preferences"] = svg(app, "preferences")
    return made


# --- the running app
# --------------------------------------------------------------------------


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + 240
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("the app did not reach the expected state")
        await pilot.pause(0.05)


async def still(pilot: Pilot[Any]) -> None:
    """Waits until the screen stops changing."""
    shown = ""
    n_same = 0
    while n_same < 3:
        await pilot.pause(0.15)
        now = pilot.app.export_screenshot()
        if now == shown:
            n_same += 1
        else:
            n_same = 0
        shown = now


def svg(app: App[Any], name: str) -> str:
    """Replaces the random id of an export, so that a new picture differs less."""
    return re.sub(
        r"terminal-\d+-", f"localspec-{name}-", app.export_screenshot(title="localspec")
    )
