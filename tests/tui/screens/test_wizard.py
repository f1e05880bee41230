"""The wizard: three steps by keys alone, dials that act at once, and its result."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from localspec import paths
from localspec.fit import machine_profile, pair_shapes
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.pair_shapes import PairShapes
from localspec.launch import ResolvedPair
from localspec.models import catalog
from localspec.models.catalog import Catalog, CatalogPair
from localspec.models.gguf import reader
from localspec.models.local_files.local_model import LocalModel
from localspec.tui.dialogs.choices import PickerScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.wizard import WizardScreen
from localspec.tui.wizard.shortlist import Candidate, WizardServices, suggest_candidates
from localspec.tui.wizard.what_if import WhatIf
from tests.support import scenes, wizards
from tests.support.app_driver import AppDriver, said
from tests.support.scripted_engine import Opening, ScriptedEngine
from tests.support.wizards import CARD, GIB, NO_CARD, PLACE
from tests.support.zoo import Zoo


@asynccontextmanager
async def shown(stock: WizardServices, *keys: str) -> AsyncIterator[AppDriver]:
    async with wizards.app(stock).run_test(size=(110, 36)) as pilot:
        seen = AppDriver(pilot)
        await seen.sees("1 of 3")
        if keys:
            await seen.press(keys[0])
            await seen.sees("2 of 3", "without draft")
            await seen.press(*keys[1:])
        yield seen


@pytest.fixture
def stock(tmp_path: Path) -> WizardServices:
    return wizards.stock(tmp_path)


async def test_what_for_changes_the_speed_and_escape_goes_back_a_step(
    stock: WizardServices,
) -> None:
    """The pictures show the three steps."""
    async with shown(stock) as wizard:
        await wizard.press("down", "enter")
        await wizard.sees("2 of 3", "without draft")
        await wizard.press("enter")
        await wizard.sees("2.4–2.8× code")  # The second use comes first.
        await wizard.press("escape")
        await wizard.sees("2 of 3")
        await wizard.press("escape")
        await wizard.sees("1 of 3")
        await wizard.press("4")
        await wizard.sees("2 of 3", "without draft")
        await wizard.press("enter")
        await wizard.sees("2.2–2.6× documents")


async def test_a_dial_changes_price_and_speed_at_once(tmp_path: Path) -> None:
    held = threading.Event()
    begun = []

    def slow(*asked: Any) -> tuple[Candidate, ...]:
        begun.append(asked[2])
        if len(begun) > 1:
            held.wait(60)
        return wizards.candidates(*asked)

    async with shown(
        wizards.stock(tmp_path, suggest=slow), "1", "enter", "tab"
    ) as wizard:
        await wizard.sees("‹ context auto (16k) ›")
        await wizard.press("left")
        assert wizard.top(WizardScreen).what_if.ctx == 8192
        # though the list is not there
        await wizard.sees("‹ context 8k ›", "fits with context 8k")
        await wizard.press("right")
        await wizard.sees("‹ context auto (16k) ›")
        await wizard.press("right")
        await wizard.sees("‹ context 32k ›")
        await wizard.press("left", "tab")
        await wizard.sees("‹ KV auto (f16) ›")
        await wizard.press("right")
        await wizard.sees("‹ KV q8_0 ›")
        held.set()


def _nine_of_a_group(
    place: MachineProfile, use: str, dials: WhatIf, _: Catalog
) -> tuple[Candidate, ...]:
    """And one candidate after them."""
    found = suggest_candidates(place, use, dials, catalog.load())[:10]
    groups = ["Faster"] * 9 + ["Older"]
    return tuple(
        replace(each, group=group, is_best=False)
        for each, group in zip(found, groups, strict=True)
    )


async def test_a_row_opens_what_a_long_group_has_more(tmp_path: Path) -> None:
    stock = wizards.stock(tmp_path, PLACE, _nine_of_a_group)
    async with shown(stock, "1") as wizard:
        screen = wizard.top(WizardScreen)
        await wizard.sees("4 more")
        await wizard.press(*["down"] * 5)
        assert screen._selected is None  # No pair is described below the list.
        await wizard.sees("enter show them")
        await wizard.press("enter")

        assert screen.step == 2
        candidates = [row for row in screen._list.rows if isinstance(row, Candidate)]
        assert len(candidates) == len(screen._list.rows) == 10
        assert screen._list.highlighted_index == 5  # The first one that was hidden.
        assert "more" not in wizard.shown
        await wizard.sees("enter details")
        assert all(row.plan is not None for row in candidates)

        await wizard.press("enter")
        await wizard.sees("3 of 3")
        await wizard.press("escape")
        assert len(screen._list.rows) == 10  # It stays open.


async def test_other_targets_are_those_of_all_candidates(tmp_path: Path) -> None:
    """Also of those that have no row."""
    stock = wizards.stock(tmp_path, PLACE, _nine_of_a_group)
    async with shown(stock, "1") as wizard:
        screen = wizard.top(WizardScreen)
        await wizard.press("enter")
        await wizard.sees("3 of 3")
        seen = set()
        for _ in range(10):
            assert screen._selected is not None
            seen.add(screen._selected.pair.target.id)
            screen.action_other_target()
        assert len(seen) == 10


SMALL = replace(PLACE, devices=(replace(CARD, total=4 * GIB, free=4 * GIB),))
ODD: dict[str, tuple[MachineProfile, Any, tuple[str, ...], tuple[str, ...]]] = {
    "no shape": (
        PLACE, wizards.candidates, ("end",),
        ("model shape not in the catalogue", "7.0 GB to download"),
    ),
    "no card": (
        NO_CARD, suggest_candidates, (), ("28.0 free", "unknown", "not measured yet"),
    ),
    "too big": (
        SMALL, wizards.candidates, (), ("too big: needs", "enter download"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
async def test_what_is_unknown_or_too_big(name: str, tmp_path: Path) -> None:
    place, suggest, keys, words = ODD[name]
    async with shown(wizards.stock(tmp_path, place, suggest), "1", *keys) as wizard:
        await wizard.press("enter")
        await wizard.sees("3 of 3", *words)
        if name == "too big":
            assert "tok/s" not in wizard.shown and "and chat" not in wizard.shown
            await wizard.press("escape")
            await wizard.sees("too big")
            assert "≈" not in wizard.shown
    services = wizards.stock(tmp_path, suggest=lambda *_: ())
    async with wizards.app(services).run_test(size=(80, 24)) as pilot:
        nothing = AppDriver(pilot)
        await nothing.sees("1 of 3")
        await nothing.press("1")
        await nothing.sees("Nothing in the catalogue fits.", "another GPU")


async def test_another_card_by_its_name(tmp_path: Path) -> None:
    async with shown(
        wizards.stock(tmp_path, suggest=suggest_candidates), "1", "g"
    ) as wizard:
        assert wizard.is_on(PickerScreen)
        await wizard.press(*"3060")
        await wizard.sees("RTX 3060, 12 GB", "RTX 3060 Ti, 8 GB")
        await wizard.press("down", "enter")
        await wizard.sees("‹ RTX 3060, 8 GB ›", " of 8 GB")
        await wizard.press("g", *"no such card", "enter", "escape")
        await wizard.sees("‹ RTX 3060, 8 GB ›")
        await wizard.press("g")
        await wizard.sees("now: RTX 3060, 8 GB")
        await wizard.press(*"3060")
        await wizard.sees("RTX 3060 Ti, 8 GB")
        await wizard.pilot.click("#picker-list", offset=(5, 1))
        await wizard.sees("‹ RTX 3060, 12 GB ›")


async def test_another_draft_and_another_target(stock: WizardServices) -> None:
    async with shown(stock, "1", "enter", "d") as wizard:
        await wizard.sees("(guesses: Qwen3 1.7B)", "licence: see its page")
        await wizard.press("d")
        await wizard.sees("Qwen3 8B apache-2.0")
        await wizard.press("d")
        await wizard.sees("(guesses: Qwen3 0.6B)")
        await wizard.press("t")
        await wizard.sees("Phi-4 mit")
        await wizard.press("d")
        await wizard.sees("Phi-4 mit")  # which has no other


async def test_a_pair_that_is_here_names_the_command_that_compares_its_drafts(
    stock: WizardServices,
) -> None:
    """With the drafts that are installed; without one, any model may draft by text."""
    choice = ResolvedPair(Path("target.gguf"), Path("draft.gguf"))
    stock.ready_pairs = {"qwen3-8b+qwen3-0.6b": choice, "phi-4+lookup": choice}
    async with shown(stock, "1", "enter") as wizard:
        await wizard.sees("localspec pair test qwen3-8b qwen3-0.6b lookup")
        await wizard.press("d")
        await wizard.sees("(guesses: Qwen3 1.7B)", "to download")
        assert "pair test" not in wizard.shown
        await wizard.press("t")
        await wizard.sees("by text: localspec pair test phi-4 MODEL lookup")
    stock.ready_pairs = {**stock.ready_pairs, "qwen3-8b+qwen3-1.7b": choice}
    async with shown(stock, "1", "enter") as wizard:
        await wizard.sees("localspec pair test qwen3-8b qwen3-0.6b qwen3-1.7b lookup")


async def test_headers_refine_what_the_catalogue_estimated(
    tmp_path: Path, zoo: Zoo
) -> None:
    """They come later, from a thread; the pair on the screen may be another by then."""
    gate = threading.Event()

    def read_headers(pair: CatalogPair) -> PairShapes | None:
        gate.wait(60)
        about = reader.read(zoo["chatty"])
        part = pair_shapes.member("chatty", "file", about, zoo["chatty"])
        return PairShapes(part, part) if pair.draft else None

    async with shown(
        wizards.stock(tmp_path, read_headers=read_headers), "1", "enter"
    ) as wizard:
        await wizard.sees(
            "estimated from the catalogue", "compared before the download"
        )
        gate.set()
        await wizard.sees(
            "from the files' headers", "vocabularies match", "target <0.01"
        )
        await wizard.press("t")
        await wizard.sees("phi-4", "estimated from the catalogue")


async def test_the_memory_of_a_pair_is_counted_once(
    tmp_path: Path, zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = reader.read(zoo["chatty"])
    part = pair_shapes.member("chatty", "file", header, zoo["chatty"])
    services = wizards.stock(
        tmp_path,
        machine_profile.detect(),
        read_headers=lambda _: PairShapes(part, part),
    )
    estimated: list[Candidate] = []

    def count_memory(candidate: Candidate, *given: Any) -> Candidate:
        estimated.append(candidate)
        return WizardServices.count_memory(services, candidate, *given)

    monkeypatch.setattr(services, "count_memory", count_memory)
    async with shown(services, "1", "enter") as wizard:
        await wizard.sees("exact, from the files' headers")
        await wizard.press("escape", "enter")
        await wizard.sees("exact, from the files' headers")
    [only] = estimated
    assert only.plan is not None
    assert only.plan.memory.method == "analytic"


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
    found = wizards.candidates(PLACE, "chat", WhatIf(), wizards.catalogue(tmp_path))
    survey = MachineSurvey("a computer", listing, PLACE, found)
    home = scenes.home(None, DownloadManager(), lambda: survey, opening=opening)
    async with home.run_test(size=(110, 36)) as pilot:
        wizard = AppDriver(pilot)
        await wizard.sees("For this computer, not downloaded", "w wizard", "≈ 33 tok/s")
        await wizard.press("w")
        await wizard.sees("New pair · 1 of 3")
        await wizard.press("1")
        await wizard.sees("✓ installed")
        while "▸ Qwen3 8B" not in wizard.shown:
            await wizard.press("down")
        await wizard.press("enter", "s", "left", "left")
        await wizard.sees("‹ context 4k ›", "installed", "enter chat")
        await wizard.press("enter")
        await wizard.reaches(ChatScreen)
        await wizard.wait(lambda: opening.loads)
    assert opening.wishes[-1].ctx == 4096
    assert opening.wishes[-1].kv is None
