"""The wizard: three steps by keys alone, dials that answer at once, and what it ends with."""

from __future__ import annotations

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
from localspec.fit import places, subject
from localspec.fit.report import Fit, Place, Room
from localspec.fit.speed import Use
from localspec.fit.subject import Part, Subject
from localspec.machine.ledger import Bytes
from localspec.models import header
from localspec.models.catalog import Catalogue, Pair
from localspec.models.disk.stored import Stored
from localspec.tui.app import LocalspecApp
from localspec.tui.downloads import Downloads
from localspec.tui.glyphs import ASCII, RICH
from localspec.tui.options import Options
from localspec.tui.rows import Survey
from localspec.tui.runner import Runner
from localspec.tui.screens.cards import CardScreen
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.screens.opening import OpeningScreen
from localspec.tui.screens.wizard import WizardScreen
from localspec.tui.wizard import bar, listing, words
from localspec.tui.wizard.latest import Latest
from localspec.tui.wizard.shortlist import Candidate, Prices, suggested
from localspec.tui.wizard.stock import Stock, by_llama
from localspec.tui.wizard.whatif import CONTEXTS, Places, WhatIf, every_card, named
from tests.tui import wizards
from tests.tui.scripted import Opening, ScriptedEngine, answer, painted, wait_until
from tests.tui.wizards import CARD, GIB, NO_CARD, PLACE
from tests.zoo import Zoo


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
async def shown(stock: Stock, *keys: str, size: tuple[int, int] = (110, 36)) -> Any:
    """The wizard after some keys."""
    async with wizards.app(stock).run_test(size=size) as pilot:
        seen = Wizard(pilot)
        await seen.sees("1 of 3")
        if keys:
            await seen.press(keys[0])
            await seen.sees("2 of 3", "with draft")
            await seen.press(*keys[1:])
        yield seen


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    return wizards.stock(tmp_path)


# --- three steps ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_what_for_then_which_then_whether(stock: Stock) -> None:
    async with shown(stock) as wizard:
        await wizard.press("down", "enter")
        await wizard.sees("2 of 3", "qwen3-8b+qwen3-0.6b", "76–106 tok/s", "5.7 GB")
        await wizard.sees("2.4–2.8×")  # for code: the second use
        await wizard.press("enter")
        await wizard.sees("3 of 3", "fits, 3.4", "target 4.7", "draft 0.6", "KV 1.3", "38–44 tok/s")
        await wizard.sees("hybrid memory: no", "vocabularies: compared before", "212.0 GB free")
        await wizard.press("escape")
        await wizard.sees("2 of 3")
        await wizard.press("escape")
        await wizard.sees("1 of 3")


@pytest.mark.asyncio
async def test_a_use_by_its_number(stock: Stock) -> None:
    async with shown(stock, "4") as wizard:
        assert "2.2–2.6×" in wizard.shown  # documents


@pytest.mark.asyncio
async def test_nothing_that_fits_says_what_to_try(stock: Stock) -> None:
    def nothing(*_: object) -> tuple[Candidate, ...]:
        return ()

    async with wizards.app(replace(stock, suggest=nothing)).run_test(size=(80, 24)) as pilot:
        wizard = Wizard(pilot)
        await wizard.sees("1 of 3")
        await wizard.press("1")
        await wizard.sees("Nothing in the catalogue fits here.", "another card")


@pytest.mark.asyncio
async def test_what_has_no_shape_is_judged_by_its_files(stock: Stock) -> None:
    async with shown(stock, "1", "end") as wizard:
        await wizard.sees("its shape is not in the catalogue")
        await wizard.press("enter")
        await wizard.sees("3 of 3", "its shape is not in the catalogue", "7.0 GB to download")


@pytest.mark.asyncio
async def test_a_computer_without_a_card_and_an_unknown_speed(tmp_path: Path) -> None:
    plain = wizards.stock(tmp_path, NO_CARD, suggest=suggested)
    async with shown(plain, "1") as wizard:
        await wizard.press("enter")
        await wizard.sees("its shape is not in the catalogue")
        await wizard.press("t")
        await wizard.sees("3 of 3", "24.0 free", "unknown", "was never measured")


# --- the dials --------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_dial_changes_price_and_speed_at_once(stock: Stock) -> None:
    held = threading.Event()
    begun = []

    def slow(*asked: Any) -> tuple[Candidate, ...]:
        begun.append(asked[2])
        if len(begun) > 1:
            held.wait(20)
        return wizards.candidates(*asked)

    async with shown(replace(stock, suggest=slow), "1", "enter", "tab") as wizard:
        await wizard.sees("‹ context 16k ›")
        await wizard.press("right")
        assert wizard.screen.what.ctx == CONTEXTS[1] == 2048
        await wizard.sees("‹ context 2k ›", "fits with context 2k")  # though the list is not there
        await wizard.press("left", "left")
        await wizard.sees("‹ context 128k ›")
        await wizard.press("tab", "right", "right")
        await wizard.sees("‹ KV q8_0 ›")
        held.set()


@pytest.mark.asyncio
async def test_another_card_by_its_name(tmp_path: Path) -> None:
    async with shown(wizards.stock(tmp_path, suggest=suggested), "1", "g") as wizard:
        assert isinstance(wizard.pilot.app.screen, CardScreen)
        await wizard.press(*"3060")
        await wizard.sees("RTX 3060, 12 GiB", "RTX 3060 Ti, 8 GiB")
        await wizard.press("down", "enter")
        await wizard.sees("‹ RTX 3060, 8 GiB ›")
        await wizard.sees("240 GB/s (RTX 3060)")  # the one with 8 GiB reads more slowly
        await wizard.press("g", *"no such card", "enter", "escape")
        await wizard.sees("‹ RTX 3060, 8 GiB ›")
        await wizard.press("left", "left")
        assert wizard.screen.what.card is not None


def test_every_card_is_one_place_and_none_costs_a_look_at_this_computer() -> None:
    looks = []

    def here() -> Any:
        looks.append(1)
        return PLACE

    places = Places(here)
    assert places.known(None) is None
    places.of(None)
    for card in every_card():
        device = places.of(card).devices[0]
        assert device.pretend and named(card).partition(",")[0] in device.description
    assert len(looks) == 1
    assert places.known(None) is PLACE


def test_dials_go_round() -> None:
    what = WhatIf()
    for _ in CONTEXTS:
        what = what.turned("context", 1)
    assert what == WhatIf()
    assert what.turned("kv", -1).kv == "q4_0"
    assert what.turned("card", 1).turned("card", -1) == what


# --- the card of a pair -----------------------------------------------------------------------


@pytest.mark.asyncio
async def test_another_draft_and_another_target(stock: Stock) -> None:
    async with shown(stock, "1", "enter", "d") as wizard:
        await wizard.sees("with qwen3-1.7b Q8_0", "licence on its page")
        await wizard.press("d")
        await wizard.sees("with qwen3-0.6b Q8_0")
        await wizard.press("t")
        await wizard.sees("phi-4 Q4_K_M copying, no draft", "licence mit")
        await wizard.press("d")
        await wizard.sees("phi-4 Q4_K_M")  # which has no other


@pytest.mark.asyncio
async def test_headers_refine_what_the_catalogue_estimated(tmp_path: Path, zoo: Zoo) -> None:
    """They come later, from a thread; the pair on the screen may be another by then."""
    gate = threading.Event()

    def refine(pair: Pair) -> Subject | None:
        gate.wait(20)
        about = header.read(zoo["chatty"])
        part = Part("chatty", about, "file", zoo["chatty"])
        return Subject(part, part) if pair.draft else None

    async with shown(wizards.stock(tmp_path, refine=refine), "1", "enter") as wizard:
        await wizard.sees("estimated from the catalogue", "compared before the download")
        gate.set()
        await wizard.sees("from the files' headers", "vocabularies match", "target 0.0")
        await wizard.press("t")
        await wizard.sees("phi-4", "estimated from the catalogue")


@pytest.mark.asyncio
async def test_what_headers_say_is_asked_of_llama_once(tmp_path: Path, zoo: Zoo) -> None:
    asked: list[Fit] = []
    part = Part("chatty", header.read(zoo["chatty"]), "file", zoo["chatty"])

    def confirm(fit: Fit, found: Subject, place: Place, use: Use) -> Fit:
        asked.append(fit)
        return by_llama(fit, found, place, use)

    refine = {"refine": lambda _: Subject(part, part), "confirm": confirm}
    async with shown(wizards.stock(tmp_path, places.here(), **refine), "1", "enter") as wizard:
        await wizard.sees("exact, from the files' headers")
        await wizard.press("escape", "enter")
        await wizard.sees("exact, from the files' headers")
    assert len(asked) == 1 and asked[0].projection.method == "analytic"


@pytest.mark.asyncio
async def test_a_pair_whose_vocabularies_differ_says_so(tmp_path: Path, zoo: Zoo) -> None:
    def refine(_: Pair) -> Subject:
        names = ("target", "renamed")
        parts = [Part(n, header.read(zoo[n]), "hub") for n in names]
        return Subject(*parts)

    async with shown(wizards.stock(tmp_path, refine=refine), "1", "enter") as wizard:
        await wizard.sees("✗ vocabularies differ: token 300")


# --- how it ends ------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_files_of_ones_own_with_their_fit(stock: Stock, zoo: Zoo, tmp_path: Path) -> None:
    async with shown(stock, "1", "o") as wizard:
        screen = wizard.pilot.app.screen
        assert isinstance(screen, OpeningScreen)
        screen.query_one("#target", Input).value = str(zoo["chatty"])
        await wizard.press("enter")
        await wizard.sees("a GGUF model", "with context", "with copying")
        screen.query_one("#draft", Input).value = str(zoo["chatty"])
        await wizard.sees("with draft", "tok/s")
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
    monkeypatch.setattr(paths, "catalogue", lambda: shelf)
    listing = tuple(
        Stored(zoo["chatty"], 1, repo, file, None, None, True, "hub", False)
        for repo, file in (("a/A-GGUF", "A-Q4_K_M.gguf"), ("a/B-GGUF", "B-Q8_0.gguf"))
    )
    opening = Opening([ScriptedEngine(said)])
    runner, options = Runner(opening), Options(seed=1)
    home = HomeScreen(
        runner,
        options,
        lambda: Survey("a computer", GIB, listing, PLACE, _suggested(tmp_path)),
        Downloads(),
        lambda seen: seen,
    )
    app = LocalspecApp(options, runner, lambda: home)
    async with app.run_test(size=(110, 36)) as pilot:
        wizard = Wizard(pilot)
        await wizard.sees("Would fit here, not downloaded", "w wizard", "29–36 tok/s")
        await wizard.press("w")
        await wizard.sees("New pair · 1 of 3")
        await wizard.press("1")
        await wizard.sees("✓ here")
        while "▸ qwen3-8b+qwen3-0.6b" not in wizard.shown:
            await wizard.press("down")
        await wizard.press("enter", "s", "right", "right")
        await wizard.sees("‹ context 4k ›", "here already", "enter chat")
        await wizard.press("enter")
        await wait_until(pilot, lambda: isinstance(pilot.app.screen, ChatScreen))
        await wait_until(pilot, lambda: opening.loads)
    assert opening.wishes[-1].ctx == 4096
    assert opening.wishes[-1].kv is None


def _suggested(folder: Path) -> tuple[Candidate, ...]:
    known: Catalogue = wizards.catalogue(folder)
    return wizards.candidates(PLACE, "chat", WhatIf(), known)


# --- what it is made of -----------------------------------------------------------------------


@pytest.mark.parametrize("glyphs", [RICH, ASCII])
@pytest.mark.parametrize("width", [24, 46, 64])
def test_a_bar_has_as_many_cells_as_it_was_given(glyphs: Any, width: int) -> None:
    for gib in (0.0, 0.01, 3, 8, 11.5, 40):
        part = Bytes(int(gib * GIB), int(0.01 * GIB), int(gib * GIB / 20))
        room = Room(CARD, GIB // 2, part, Bytes(int(0.01 * GIB)))
        drawn = bar.bar(room, width, glyphs)
        assert drawn.cell_length == width
        assert len(bar.scale(room, width)) <= width
        signs = set(glyphs.parts) & set(drawn.plain)
        assert len(signs) >= (3 if gib else 2), drawn.plain  # what is small is seen as well
        assert glyphs.ascii_only == drawn.plain.isascii()


def test_a_bar_of_what_is_unknown() -> None:
    device = replace(CARD, free=None, total=None)
    room = Room(device, 0, Bytes(GIB), Bytes())
    assert bar.bar(room, 30, RICH).cell_length == 30
    assert bar.scale(room, 30) == "0 GiB"


def test_lines_fit_their_window(stock: Stock) -> None:
    one, *_ = wizards.candidates(PLACE, "chat", WhatIf(), stock.catalogue)
    for width in (56, 76, 108, 116, 150):
        line = listing.line(one, "chat", here=False, width=width, glyphs=RICH, pointed=True)
        assert line.cell_length <= width
        assert listing.heading(width).cell_length <= width


def test_ranges_in_words() -> None:
    assert words.span((70.8, 84.2)) == "71–84"
    assert words.span((3.21, 4.09)) == "3.2–4.1"
    assert words.times((1.01, 1.04)) == "1.0×"
    assert words.rate(None) == "speed unknown"
    assert words.context(16384) == "16k"
    assert words.context(5000) == "5,000"


def test_prices_are_made_once_and_again_when_headers_come(stock: Stock, zoo: Zoo) -> None:
    prices, what = Prices(), WhatIf(ctx=2048)
    pair = stock.catalogue.pairs["qwen3-8b+qwen3-0.6b"]
    one = Candidate(pair, 1)
    first = prices.price(one, PLACE, "chat", what)
    assert first.fit is not None and prices.price(one, PLACE, "chat", what).fit is first.fit
    part = Part("chatty", subject.of_file(zoo["chatty"]), "file")
    prices.refine(pair, Subject(part, part))
    second = prices.price(one, PLACE, "chat", what)
    assert second.fit is not None and second.fit.total < first.fit.total
    absurd = prices.price(one, PLACE, "chat", WhatIf(ctx=1 << 40))
    assert absurd.fit is None and absurd.unknown


def test_only_the_latest_is_done() -> None:
    latest, done, gate = Latest("test"), [], threading.Event()
    began, ended = threading.Event(), threading.Event()

    def first() -> None:
        began.set()
        gate.wait(20)
        done.append(0)

    latest.ask(first)
    assert began.wait(20)
    for n in (1, 2):
        latest.ask(lambda n=n: done.append(n))  # type: ignore[misc]

    def last() -> None:
        done.append(3)
        ended.set()

    latest.ask(last)
    gate.set()
    assert ended.wait(20)
    assert done == [0, 3]
