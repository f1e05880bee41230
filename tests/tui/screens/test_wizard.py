"""The wizard: three steps by keys alone, dials that answer at once, and what it ends with."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from localspec import paths
from localspec.fit import machine_profile, pair_shapes
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.fit.speed import DeviceSpeed, UseCase, from_devices
from localspec.fit.verdict import DeviceFit, FitReport
from localspec.launch import ResolvedPair
from localspec.machine.device import DeviceMemory
from localspec.models import catalog
from localspec.models.catalog import Catalog, CatalogPair
from localspec.models.gguf import reader
from localspec.models.local_files.local_model import LocalModel
from localspec.symbols import ASCII_TRANSLATION, MEMORY_PARTS
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import PickerScreen
from localspec.tui.dialogs.open_files import OpenFilesScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.scheduling import LatestOnlyWorker
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.wizard import WizardScreen
from localspec.tui.wizard import fit_text, pair_details, shortlist
from localspec.tui.wizard.shortlist import (
    Candidate,
    EstimateCache,
    WizardServices,
    suggest_candidates,
)
from localspec.tui.wizard.what_if import CONTEXT_SIZES, MachineProfiles, WhatIf, gpu_name, list_gpus
from tests.support import scenes, wizards
from tests.support.scripted_engine import Opening, ScriptedEngine, answer, painted, wait_until
from tests.support.wizards import CARD, GIB, NO_CARD, PLACE
from tests.support.zoo import Zoo


class Wizard:
    """What a person sees of it, and the keys."""

    def __init__(self, pilot: Pilot[Any]) -> None:
        self.pilot = pilot

    @property
    def shown(self) -> str:
        return painted(self.pilot.app.screen)

    async def sees(self, *words_: str) -> None:
        await wait_until(self.pilot, lambda: all(word in self.shown for word in words_))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    @property
    def screen(self) -> WizardScreen:
        screen = self.pilot.app.screen
        assert isinstance(screen, WizardScreen)
        return screen


@asynccontextmanager
async def shown(stock: WizardServices, *keys: str, size: tuple[int, int] = (110, 36)) -> Any:
    """The wizard after some keys."""
    async with wizards.app(stock).run_test(size=size) as pilot:
        seen = Wizard(pilot)
        await seen.sees("1 of 3")
        if keys:
            await seen.press(keys[0])
            await seen.sees("2 of 3", "speculative")
            await seen.press(*keys[1:])
        yield seen


@pytest.fixture
def stock(tmp_path: Path) -> WizardServices:
    return wizards.stock(tmp_path)


# --- three steps ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_for_then_which_then_whether(stock: WizardServices) -> None:
    async with shown(stock) as wizard:
        await wizard.press("down", "enter")
        await wizard.sees("2 of 3", "qwen3-8b+qwen3-0.6b", "76–106 tok/s", "5.7 GB")
        await wizard.sees("2.4–2.8×")  # for code: the second use
        await wizard.press("enter")
        await wizard.sees("3 of 3", "fits, 3.4", "target 4.7", "draft 0.6", "KV 1.3", "38–44 tok/s")
        await wizard.sees("recurrent state: none", "vocabularies: compared before", "212.0 GB free")
        await wizard.press("escape")
        await wizard.sees("2 of 3")
        await wizard.press("escape")
        await wizard.sees("1 of 3")


@pytest.mark.asyncio
async def test_a_use_by_its_number(stock: WizardServices) -> None:
    async with shown(stock, "4") as wizard:
        assert "2.2–2.6×" in wizard.shown  # documents


@pytest.mark.asyncio
async def test_nothing_that_fits_says_what_to_try(tmp_path: Path) -> None:
    def nothing(*_: object) -> tuple[Candidate, ...]:
        return ()

    async with wizards.app(wizards.stock(tmp_path, suggest=nothing)).run_test(
        size=(80, 24)
    ) as pilot:
        wizard = Wizard(pilot)
        await wizard.sees("1 of 3")
        await wizard.press("1")
        await wizard.sees("Nothing in the catalogue fits.", "another GPU")


@pytest.mark.asyncio
async def test_what_has_no_shape_is_judged_by_its_files(stock: WizardServices) -> None:
    async with shown(stock, "1", "end") as wizard:
        await wizard.sees("model shape not in the catalogue")
        await wizard.press("enter")
        await wizard.sees("3 of 3", "model shape not in the catalogue", "7.0 GB to download")


@pytest.mark.asyncio
async def test_a_computer_without_a_card_and_an_unknown_speed(tmp_path: Path) -> None:
    plain = wizards.stock(tmp_path, NO_CARD, suggest=suggest_candidates)
    async with shown(plain, "1") as wizard:
        await wizard.press("enter")
        await wizard.sees("3 of 3", "24.0 free", "unknown", "not measured yet")
        await wizard.press("t")
        await wizard.sees("model shape not in the catalogue")


def test_what_has_no_shape_is_judged_anew_for_another_card(tmp_path: Path) -> None:
    """It was said to fit the memory of this computer while another card was chosen."""
    found = suggest_candidates(NO_CARD, "chat", WhatIf(), wizards.catalogue(tmp_path))
    (here,) = (one for one in found if one.pair.target.id == "shapeless-12b")
    assert here.size_verdict == "fits"
    small = replace(CARD, total=6 * GIB, free=6 * GIB)
    place = replace(PLACE, devices=(small,))
    there = EstimateCache().estimate(here, place, "chat", WhatIf())
    assert there.size_verdict == "no" and "more than" in there.no_fit_reason


# --- the dials --------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_dial_changes_price_and_speed_at_once(tmp_path: Path) -> None:
    held = threading.Event()
    begun = []

    def slow(*asked: Any) -> tuple[Candidate, ...]:
        begun.append(asked[2])
        if len(begun) > 1:
            held.wait(20)
        return wizards.candidates(*asked)

    async with shown(wizards.stock(tmp_path, suggest=slow), "1", "enter", "tab") as wizard:
        await wizard.sees("‹ context 16k ›")
        await wizard.press("right")
        assert wizard.screen.what_if.ctx == CONTEXT_SIZES[1] == 2048
        await wizard.sees("‹ context 2k ›", "fits with context 2k")  # though the list is not there
        await wizard.press("left", "left")
        await wizard.sees("‹ context 128k ›")
        await wizard.press("tab", "right", "right")
        await wizard.sees("‹ KV q8_0 ›")
        held.set()


@pytest.mark.asyncio
async def test_what_is_too_big_has_no_speed(tmp_path: Path) -> None:
    small = tuple(replace(one, total=4 * GIB, free=4 * GIB) for one in PLACE.devices)
    place = replace(PLACE, devices=small)
    async with shown(wizards.stock(tmp_path, place), "1") as wizard:
        await wizard.sees("too big")
        assert "tok/s" not in wizard.shown
        await wizard.press("enter")
        await wizard.sees("does not fit: needs")
        assert "tok/s" not in wizard.shown
        assert "enter download" in wizard.shown and "and chat" not in wizard.shown


@pytest.mark.asyncio
async def test_home_suggests_first_what_is_fast_enough_to_read() -> None:
    """Review B 10: a download of 19 GB at 3 tok/s came first."""
    cpu = DeviceSpeed(30.0, 1.0, 0.3, "cpu")
    slow = replace(NO_CARD, hardware=from_devices((), cpu))
    found = suggest_candidates(slow, "chat", WhatIf(), catalog.load())
    here = MachineSurvey(scenes.MACHINE, machine_profile=slow, candidates=found)
    async with scenes.home(survey=lambda: here).run_test(size=(120, 40)) as pilot:
        await scenes.surveyed(pilot)
        ranges = re.findall(r"([\d.]+)–([\d.]+) tok/s", painted(pilot.app.screen))
    assert len(ranges) >= 3
    assert all(float(low) + float(high) >= 20 for low, high in ranges)


@pytest.mark.asyncio
async def test_a_draft_that_would_not_be_used_is_said_so_before_the_download(
    tmp_path: Path,
) -> None:
    def dropped(*asked: Any) -> tuple[Candidate, ...]:
        first, *others = wizards.candidates(*asked)
        assert first.fit is not None
        estimate = replace(first.fit.memory_estimate, draft=None)
        return (replace(first, fit=replace(first.fit, memory_estimate=estimate)), *others)

    async with shown(wizards.stock(tmp_path, suggest=dropped), "1", "enter") as wizard:
        await wizard.sees("✗ draft model: recurrent state, not used")


@pytest.mark.asyncio
async def test_another_card_by_its_name(tmp_path: Path) -> None:
    async with shown(wizards.stock(tmp_path, suggest=suggest_candidates), "1", "g") as wizard:
        assert isinstance(wizard.pilot.app.screen, PickerScreen)
        await wizard.press(*"3060")
        await wizard.sees("RTX 3060, 12 GiB", "RTX 3060 Ti, 8 GiB")
        await wizard.press("down", "enter")
        await wizard.sees("‹ RTX 3060, 8 GiB ›")
        await wizard.sees("240 GB/s (RTX 3060)")  # the one with 8 GiB reads more slowly
        await wizard.press("g", *"no such card", "enter", "escape")
        await wizard.sees("‹ RTX 3060, 8 GiB ›")
        await wizard.press("g")
        await wizard.sees("now: RTX 3060, 8 GiB")
        await wizard.press("enter")  # the current one is marked
        await wizard.sees("‹ RTX 3060, 8 GiB ›")
        await wizard.press("g", *"3060")
        await wizard.sees("RTX 3060, 12 GiB", "RTX 3060 Ti, 8 GiB")
        await wizard.pilot.click("#picker-list", offset=(5, 1))
        await wizard.sees("‹ RTX 3060, 12 GiB ›")
        await wizard.press("left", "left")
        assert wizard.screen.what_if.gpu is not None


def test_every_card_is_one_place_and_none_costs_a_look_at_this_computer() -> None:
    looks = []

    def here() -> Any:
        looks.append(1)
        return PLACE

    places = MachineProfiles(here)
    assert places.get_loaded(None) is None
    places.load(None)
    for card in list_gpus():
        device = places.load(card).devices[0]
        assert device.simulated and gpu_name(card).partition(",")[0] in device.description
    assert len(looks) == 1
    assert places.get_loaded(None) is PLACE


def test_dials_go_round() -> None:
    what = WhatIf()
    for _ in CONTEXT_SIZES:
        what = what.turn_dial("context", 1)
    assert what == WhatIf()
    assert what.turn_dial("kv", -1).kv == "q4_0"
    assert what.turn_dial("gpu", 1).turn_dial("gpu", -1) == what


# --- the card of a pair -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_another_draft_and_another_target(stock: WizardServices) -> None:
    async with shown(stock, "1", "enter", "d") as wizard:
        await wizard.sees("with qwen3-1.7b Q8_0", "licence: see model page")
        await wizard.press("d")
        await wizard.sees("with qwen3-0.6b Q8_0")
        await wizard.press("t")
        await wizard.sees("phi-4 Q4_K_M prompt lookup, no draft model", "licence mit")
        await wizard.press("d")
        await wizard.sees("phi-4 Q4_K_M")  # which has no other


@pytest.mark.asyncio
async def test_a_pair_that_is_here_names_the_command_that_compares_its_drafts(
    stock: WizardServices,
) -> None:
    """With the drafts that are installed; without one, any model may draft by text."""
    choice = ResolvedPair(Path("target.gguf"), Path("draft.gguf"))
    stock.ready_pairs = {"qwen3-8b+qwen3-0.6b": choice, "phi-4+lookup": choice}
    async with shown(stock, "1", "enter") as wizard:
        await wizard.sees("localspec pair test qwen3-8b qwen3-0.6b lookup")
        await wizard.press("d")
        await wizard.sees("with qwen3-1.7b Q8_0", "to download")
        assert "pair test" not in wizard.shown
        await wizard.press("t")
        await wizard.sees("by text: localspec pair test phi-4 MODEL lookup")
    stock.ready_pairs = {**stock.ready_pairs, "qwen3-8b+qwen3-1.7b": choice}
    async with shown(stock, "1", "enter") as wizard:
        await wizard.sees("localspec pair test qwen3-8b qwen3-0.6b qwen3-1.7b lookup")


@pytest.mark.asyncio
async def test_headers_refine_what_the_catalogue_estimated(tmp_path: Path, zoo: Zoo) -> None:
    """They come later, from a thread; the pair on the screen may be another by then."""
    gate = threading.Event()

    def read_headers(pair: CatalogPair) -> PairShapes | None:
        gate.wait(20)
        about = reader.read(zoo["chatty"])
        part = pair_shapes.member("chatty", "file", about, zoo["chatty"])
        return PairShapes(part, part) if pair.draft else None

    async with shown(wizards.stock(tmp_path, read_headers=read_headers), "1", "enter") as wizard:
        await wizard.sees("estimated from the catalogue", "compared before the download")
        gate.set()
        await wizard.sees("from the files' headers", "vocabularies match", "target 0.0")
        await wizard.press("t")
        await wizard.sees("phi-4", "estimated from the catalogue")


@pytest.mark.asyncio
async def test_what_headers_say_is_asked_of_llama_once(tmp_path: Path, zoo: Zoo) -> None:
    asked: list[FitReport] = []
    part = pair_shapes.member("chatty", "file", reader.read(zoo["chatty"]), zoo["chatty"])

    def confirm(
        fit: FitReport, found: PairShapes, place: MachineProfile, use: UseCase
    ) -> FitReport:
        asked.append(fit)
        return WizardServices.confirm_fit(services, fit, found, place, use)

    services = wizards.stock(
        tmp_path,
        machine_profile.detect(),
        read_headers=lambda _: PairShapes(part, part),
        confirm_fit=confirm,
    )
    async with shown(services, "1", "enter") as wizard:
        await wizard.sees("exact, from the files' headers")
        await wizard.press("escape", "enter")
        await wizard.sees("exact, from the files' headers")
    assert len(asked) == 1 and asked[0].memory_estimate.method == "analytic"


@pytest.mark.asyncio
async def test_a_pair_whose_vocabularies_differ_says_so(tmp_path: Path, zoo: Zoo) -> None:
    def read_headers(_: CatalogPair) -> PairShapes:
        names = ("target", "renamed")
        parts = [pair_shapes.member(n, "hub", reader.read(zoo[n])) for n in names]
        return pair_shapes.join(*parts)

    async with shown(wizards.stock(tmp_path, read_headers=read_headers), "1", "enter") as wizard:
        await wizard.sees("✗ vocabularies differ: token 257")


# --- how it ends ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_files_of_ones_own_with_their_fit(
    stock: WizardServices, zoo: Zoo, tmp_path: Path
) -> None:
    async with shown(stock, "1", "o") as wizard:
        screen = wizard.pilot.app.screen
        assert isinstance(screen, OpenFilesScreen)
        screen.query_one("#target", Input).value = str(zoo["chatty"])
        await wizard.press("enter")
        await wizard.sees("a GGUF model", "with context", "with prompt lookup")
        screen.query_one("#draft", Input).value = str(zoo["chatty"])
        await wizard.sees("with the draft model", "tok/s")
        await wizard.press("escape")
        await wizard.sees("2 of 3")


def said() -> Iterator[Any]:
    return iter(answer(["Well", "."]))


@pytest.mark.asyncio
async def test_from_home_to_the_chat_of_a_pair_that_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zoo: Zoo
) -> None:
    """With the context that was chosen, until the app ends."""
    shelf = tmp_path / "shelf.yaml"
    shelf.write_text(wizards.MODELS)
    monkeypatch.setattr(paths, "catalog_file", lambda: shelf)
    listing = tuple(
        LocalModel(zoo["chatty"], 1, repo, file, None, None, True, "hub", False)
        for repo, file in (("a/A-GGUF", "A-Q4_K_M.gguf"), ("a/B-GGUF", "B-Q8_0.gguf"))
    )
    opening = Opening([ScriptedEngine(said)])
    runner, options = EngineRunner(opening), AppOptions(seed=1)
    home = HomeScreen(
        runner,
        options,
        lambda: MachineSurvey("a computer", listing, PLACE, _suggested(tmp_path)),
        DownloadManager(),
        lambda seen: seen,
    )
    app = LocalspecApp(options, runner, lambda: home)
    async with app.run_test(size=(110, 36)) as pilot:
        wizard = Wizard(pilot)
        await wizard.sees("Fits this computer, not downloaded", "w wizard", "29–36 tok/s")
        await wizard.press("w")
        await wizard.sees("New pair · 1 of 3")
        await wizard.press("1")
        await wizard.sees("✓ installed")
        while "▸ qwen3-8b+qwen3-0.6b" not in wizard.shown:
            await wizard.press("down")
        await wizard.press("enter", "s", "right", "right")
        await wizard.sees("‹ context 4k ›", "installed", "enter chat")
        await wizard.press("enter")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, ChatScreen))
        await wait_until(pilot, lambda: opening.loads)
    assert opening.wishes[-1].ctx == 4096
    assert opening.wishes[-1].kv is None


def _suggested(folder: Path) -> tuple[Candidate, ...]:
    known: Catalog = wizards.catalogue(folder)
    return wizards.candidates(PLACE, "chat", WhatIf(), known)


# --- what it is made of -----------------------------------------------------------------------


@pytest.mark.parametrize("width", [24, 46, 64])
def test_a_bar_has_as_many_cells_as_it_was_given(width: int) -> None:
    for gib in (0.0, 0.01, 3, 8, 11.5, 40):
        part = DeviceMemory(int(gib * GIB), int(0.01 * GIB), int(gib * GIB / 20))
        room = DeviceFit(CARD, GIB // 2, part, DeviceMemory(int(0.01 * GIB)))
        drawn = pair_details.render_bar(room, width)
        assert drawn.cell_length == width
        assert len(pair_details.render_scale(room, width)) <= width
        signs = set(MEMORY_PARTS) & set(drawn.plain)
        assert len(signs) >= (3 if gib else 2), drawn.plain  # what is small is seen as well
        assert drawn.plain.translate(ASCII_TRANSLATION).isascii()


def test_a_bar_of_what_is_unknown() -> None:
    device = replace(CARD, free=None, total=None)
    room = DeviceFit(device, 0, DeviceMemory(GIB), DeviceMemory())
    assert pair_details.render_bar(room, 30).cell_length == 30
    assert pair_details.render_scale(room, 30) == "0 GiB"


def test_memory_that_a_gpu_shares_has_one_bar(stock: WizardServices) -> None:
    one, *_ = wizards.candidates(PLACE, "chat", WhatIf(), stock.catalogue)
    assert one.fit is not None and one.fit.device_fits
    gpu = replace(one.fit.device_fits[0], device=replace(CARD, unified=True))
    pool = replace(one.fit, device_fits=(gpu,), host=replace(one.fit.host, sharing=(gpu,)))
    page = pair_details.DetailsPage(replace(one, fit=pool), "chat", ())
    lines = [line.plain for line in pair_details.render_page(page, 100, 30)]
    (legend,) = [line for line in lines if " KV " in line]
    assert f"target {fit_text.gib_text(gpu.target.weights + pool.host.target.weights)}" in legend
    assert not any("of this computer's memory" in line for line in lines), "it is in the bar"


def test_lines_fit_their_window(stock: WizardServices) -> None:
    one, *_ = wizards.candidates(PLACE, "chat", WhatIf(), stock.catalogue)
    for width in (56, 76, 108, 116, 150):
        line = shortlist.candidate_line(one, "chat", is_downloaded=False, width=width, pointed=True)
        assert line.cell_length <= width
        assert shortlist.heading_line(width).cell_length <= width


def test_fast_pairs_keep_their_columns_apart(stock: WizardServices) -> None:
    one, *_ = wizards.candidates(PLACE, "chat", WhatIf(), stock.catalogue)
    assert one.fit is not None
    fast = replace(
        one.fit, speed=wizards.speed(replace(wizards.PRICES[one.pair.id], plain=(143, 238)))
    )
    line = shortlist.candidate_line(
        replace(one, fit=fast), "chat", is_downloaded=False, width=116, pointed=True
    )
    assert "2.0–2.4× 143–238 tok/s " in line.plain  # it said 2.0–2.4×143–238


def test_ranges_in_words() -> None:
    assert fit_text.range_text((70.8, 84.2)) == "71–84"
    assert fit_text.range_text((3.21, 4.09)) == "3.2–4.1"
    assert fit_text.speedup_text((1.01, 1.04)) == "1.0×"
    assert fit_text.speed_text(None) == "speed unknown"
    assert fit_text.context_text(16384) == "16k"
    assert fit_text.context_text(5000) == "5,000"


def test_prices_are_made_once_and_again_when_headers_come(stock: WizardServices, zoo: Zoo) -> None:
    prices, what = EstimateCache(), WhatIf(ctx=2048)
    pair = stock.catalogue.pairs["qwen3-8b+qwen3-0.6b"]
    one = Candidate(pair, 1)
    first = prices.estimate(one, PLACE, "chat", what)
    assert first.fit is not None and prices.estimate(one, PLACE, "chat", what).fit is first.fit
    part = pair_shapes.member("chatty", "file", reader.read_model(zoo["chatty"]))
    prices.use_headers(pair, PairShapes(part, part))
    second = prices.estimate(one, PLACE, "chat", what)
    assert second.fit is not None and second.fit.total < first.fit.total
    absurd = prices.estimate(one, PLACE, "chat", WhatIf(ctx=1 << 40))
    assert absurd.fit is None and absurd.no_fit_reason


def test_only_the_latest_is_done() -> None:
    latest, done, gate = LatestOnlyWorker("test"), [], threading.Event()
    began, ended = threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        gate.wait(20)
        done.append(0)

    latest.submit(first)
    assert began.wait(20)
    for n in (1, 2):
        latest.submit(lambda n=n: done.append(n))  # type: ignore[misc]

    def last() -> None:
        done.append(3)
        ended.set()

    latest.submit(last)
    gate.set()
    assert ended.wait(20)
    assert done == [0, 3]
