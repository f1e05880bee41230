"""Home: its lists scroll, its search, and what it lists first."""

import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

import pytest
from msgspec.structs import replace

from localspec import launch, paths
from localspec.fit.machine_profile import MachineProfile
from localspec.fit.speed import DeviceSpeed, from_devices
from localspec.launch import ResolvedPair, recent_pairs
from localspec.models import catalog
from localspec.models.catalog import PairSettings
from localspec.models.hub.cached_file import DownloadJob
from localspec.models.hub.client import HubClient, HubSearchResult
from localspec.models.hub.download import DownloadState
from localspec.models.local_files.local_model import LocalModel
from localspec.models.reference import RepoFile
from localspec.tui import home_rows
from localspec.tui.app_options import AppOptions
from localspec.tui.downloads import DownloadManager
from localspec.tui.home_rows import HomeRow, HomeSection, MachineSurvey
from localspec.tui.saved_chats import ChatSessions, SavedChats
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.help import HelpScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.widgets.pointer_list import PointerList
from localspec.tui.widgets.screen_frame import KeyLine
from localspec.tui.wizard.shortlist import suggest_candidates
from localspec.tui.wizard.what_if import WhatIf
from localspec.units import about_rate
from tests.support import scenes
from tests.support.app_driver import HomeDriver, demo_chat, home_app, said
from tests.support.default_drafts import write_target_with_head
from tests.support.fake_hub import FakeHub
from tests.support.scripted_engine import Opening, ScriptedEngine, painted, wait_until
from tests.support.wizards import GIB, NO_CARD, PLACE
from tests.tui.screen_states import SHELF, seeing, with_room


def local_model(path: Path, size: int) -> LocalModel:
    """A file in a folder of the user."""
    return LocalModel(
        path=path,
        size=size,
        repo=None,
        file=path.name,
        revision=None,
        sha256=None,
        verified=False,
        origin="folder",
        removable=True,
    )


MODELS = tuple(local_model(Path(f"/models/file-{n}.gguf"), 10**9) for n in range(14))


@pytest.mark.parametrize("size", [(80, 24), (40, 10)])
async def test_the_pointer_is_always_on_the_screen(size: tuple[int, int]) -> None:
    survey = MachineSurvey(scenes.MACHINE, MODELS)
    app = scenes.home(None, scenes.Still(), lambda: survey)
    async with app.run_test(size=size) as pilot:
        await scenes.surveyed(pilot)
        rows: PointerList[HomeRow] = app.screen.query_one(PointerList)

        def is_pointer_shown() -> bool:
            row = rows.highlighted_row
            return row is not None and f"▸ {row.name[:3]}" in painted(app.screen)

        assert "Downloads" in painted(app.screen)
        assert len(rows.rows) > 18
        for key in ["up", *["down"] * (len(rows.rows) + 1), "up", "home", "end"]:
            await pilot.press(key)
            await wait_until(pilot, is_pointer_shown)


async def test_a_click_on_a_key_of_the_last_line_presses_it() -> None:
    async with home_app() as one:
        keys = one.home.query_one(KeyLine)
        await one.pilot.click(KeyLine, offset=(keys.render_line(0).text.index("f1"), 0))
        await one.reaches(HelpScreen)


async def test_a_click_on_a_row_opens_it() -> None:
    async with home_app() as one:
        rows = one.home.query_one(PointerList)
        await one.pilot.click(PointerList, offset=(8, rows.get_option_index("0") + 1))
        await one.until("ready")
        assert one.is_on(ChatScreen)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
async def test_arrows_move_through_the_matches_while_one_types() -> None:
    async with demo_chat() as one:
        await one.send("demo of rain")
        await one.press("escape", "slash", *"demo")
        await one.sees("In your chats")
        assert "▸ Demo " in one.shown
        await one.press("down")
        await one.sees("▸ demo of rain", "enter continue")
        await one.press("up")
        await one.sees("enter open")


@pytest.mark.usefixtures("no_network")
async def test_enter_opens_the_match_that_is_marked() -> None:
    async with demo_chat() as one:
        await one.send("demo of rain")
        await one.press("escape", "slash", *"rain")
        await one.sees("▸ demo of rain")
        await one.open()
        assert one.screen.session.title == "demo of rain"
        await one.press("escape", "slash", *"nothing of the kind")
        await one.wait(lambda: "In your chats" not in one.shown)


@asynccontextmanager
async def home_with(target: Path) -> AsyncIterator[HomeDriver]:
    """Home of a computer with one model of its own."""
    options = AppOptions(seed=1, chats=SavedChats())
    model = local_model(target, target.stat().st_size)
    survey = MachineSurvey(scenes.MACHINE, (model,))
    opening = Opening([ScriptedEngine(said) for _ in range(9)])
    app = scenes.home(options, survey=lambda: survey, opening=opening)
    async with app.run_test(size=(100, 30), notifications=True) as pilot:
        driver = HomeDriver(pilot)
        await driver.sees("Other models on this computer", target.stem)
        await scenes.settled(pilot)
        yield driver


async def test_a_model_that_got_its_head_opens_the_same_chat_again(
    tmp_path: Path,
) -> None:
    async with home_with(write_target_with_head(tmp_path)) as one:
        await one.press("end")
        await one.open()
        session = one.screen.session
        assert session.pair.draft is not None
        await one.send("first")
        await one.press("escape", "escape")
        await one.sees("1 turn in this chat")
        await one.open()
        assert one.screen.session is session


RECENT = ResolvedPair(Path("target.gguf"), Path("draft.gguf"))


def test_a_recent_pair_is_known_by_its_files() -> None:
    """The list of recent pairs keeps no settings."""
    suggested = PairSettings(temperature=0.6)
    sessions = ChatSessions(AppOptions())
    session = sessions.for_pair(replace(RECENT, suggested_settings=suggested))
    assert sessions.for_pair(RECENT) is session


def test_a_pair_whose_draft_nobody_named_is_another_one() -> None:
    unnamed = replace(RECENT, default_draft="the model's own MTP layer")
    sessions = ChatSessions(AppOptions())
    session = sessions.for_pair(unnamed)
    assert sessions.for_pair(RECENT) is not session


async def test_a_preset_is_used_where_the_last_model_has_a_head(tmp_path: Path) -> None:
    """The last run was without a draft; so is the chat, which gets the preset."""
    preset = '[presets.poet]\nsystem = "Answer in verse."\n'
    (tmp_path / "config.toml").write_text(preset)
    target = write_target_with_head(tmp_path)
    recent_pairs.save_last(str(target), "none")
    async with home_app() as one:
        await one.sees("New chat with a preset poet")
        await one.press("end")
        await one.open()
        session = one.screen.session
        assert session.pair.target == target
        assert session.pair.draft is None
        assert session.conversation.system == "Answer in verse."


async def test_a_row_without_a_draft_gets_no_head(tmp_path: Path) -> None:
    """The pair X+lookup drafts by prompt lookup, also where X has a head."""
    target = write_target_with_head(tmp_path)
    row = ResolvedPair(target, None, requested_refs=("qwen3-8b+lookup", "auto"))
    async with home_app() as one:
        one.home._open_chat(row)
        await one.reaches(ChatScreen)
        assert one.screen.session.pair == row


async def test_the_wizards_context_is_used_where_its_model_gets_a_head(
    tmp_path: Path,
) -> None:
    """Also where the pair is resolved again, by another name."""
    target = write_target_with_head(tmp_path)
    async with home_app() as one:
        one.home._open_with_what_if(ResolvedPair(target, None), WhatIf(ctx=4096))
        await one.reaches(ChatScreen)
        await one.until("ready")
        pair = one.screen.session.pair
        assert pair.draft is not None
        for same in (pair, launch.resolve_pair(str(target), str(pair.draft))):
            assert one.app.options.build_load_request(same).ctx == 4096


async def test_two_files_of_one_name_are_told_apart_and_the_mark_stays(
    tmp_path: Path,
) -> None:
    data = (paths.package_data_dir() / "demo/demo-target.gguf").read_bytes()
    models = []
    for folder in ("x", "y"):
        path = tmp_path / folder / "same-Q8_0.gguf"
        path.parent.mkdir()
        path.write_bytes(data)
        models.append(local_model(path, len(data)))
    survey = MachineSurvey(scenes.MACHINE, tuple(models))
    app = scenes.home(survey=lambda: survey)
    async with app.run_test(size=(120, 40)) as pilot:
        await scenes.surveyed(pilot)
        home = pilot.app.screen
        assert isinstance(home, HomeScreen)
        shown = painted(home)
        assert str(tmp_path / "x")[-20:] in shown and str(tmp_path / "y")[-20:] in shown
        index = next(
            index
            for index, row in enumerate(home._list.rows)
            if row.pair is not None and row.pair.target == models[1].path
        )
        home._list.point_at(index)
        await pilot.pause()
        for size in ((100, 30), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            home.fill_list()
            row = home._list.highlighted_row
            assert row is not None and row.pair is not None
            assert row.pair.target == models[1].path


def test_rows_of_other_things_have_other_keys() -> None:
    """One name may be a pair's, a preset's, a repository's, a chat's and a download's."""
    pairs = [
        ResolvedPair(Path(folder) / "a.gguf", draft)
        for folder in ("x", "y")
        for draft in (None, Path("x/d.gguf"), Path("y/d.gguf"))
    ]
    jobs = [
        DownloadJob(repo, "a" * 40, RepoFile("a.gguf", 1), None)
        for repo in ("org/one", "org/two")
    ]
    rows = [
        *(HomeRow("a", pair=pair) for pair in pairs),
        *(HomeRow("a", download=DownloadState(job)) for job in jobs),
        HomeRow("a", preset="a"),
        HomeRow("a", reference="a"),
        HomeRow("a", chat_id=1),
        HomeRow("a", chat_id=2),
        HomeRow("a", hub_search_text="a"),
    ]
    assert len({row.key for row in rows}) == len(rows)


async def test_home_suggests_first_what_is_fast_enough_to_read() -> None:
    """No download of 19 GB at 3 tok/s comes first: 7.8 tok/s answer in 90 s."""
    speed = DeviceSpeed(30.0, 1.0, 0.3, "cpu")
    slow = replace(NO_CARD, hardware=from_devices((), speed))
    found = suggest_candidates(slow, "chat", WhatIf(), catalog.load())
    here = MachineSurvey(scenes.MACHINE, machine_profile=slow, candidates=found)
    async with scenes.home(survey=lambda: here).run_test(size=(120, 40)) as pilot:
        await scenes.surveyed(pilot)
        rates = re.findall(r"≈ ([\d.]+) tok/s", painted(pilot.app.screen))
    assert len(rates) >= 3
    assert all(float(rate) >= 8 for rate in rates), rates


def list_suggested(free: int) -> list[str]:
    """The rows of Home on a computer with 32 GiB, of which so much is free."""
    machine = replace(NO_CARD, cpu=replace(NO_CARD.cpu, free=free))
    found = suggest_candidates(machine, "chat", WhatIf(), catalog.load())
    survey = MachineSurvey(scenes.MACHINE, machine_profile=machine, candidates=found)
    return [row.name for row in make_rows(survey, "not downloaded")]


def make_rows(survey: MachineSurvey, heading: str, search: str = "") -> list[HomeRow]:
    sections = home_rows.build_sections(
        catalog.load(),
        survey,
        search_text=search,
        chats=HomeSection("Recent chats", ()),
        hub_results=(),
        download_states=(),
    )
    rows: list[HomeRow] = []
    for section in sections:
        if heading in section.heading:
            rows += section.rows
    return rows


def test_suggestions_do_not_move_with_the_memory_of_other_programs() -> None:
    """With a browser open, a model that needs its memory is still the first."""
    assert list_suggested(24 * GIB) == list_suggested(6 * GIB)


def test_memory_that_other_programs_hold_is_said() -> None:
    machine = replace(NO_CARD, cpu=replace(NO_CARD.cpu, free=GIB))
    found = suggest_candidates(machine, "chat", WhatIf(), catalog.load())
    survey = MachineSurvey(machine_profile=machine, candidates=found)
    first, *_ = make_rows(survey, "not downloaded")
    assert first.description == "close other programs first"


def test_results_of_the_hub_have_a_speed_where_their_model_is_known() -> None:
    """Each model of the catalogue, as its own uploader and others name it."""
    place = replace(NO_CARD, hardware=PLACE.hardware)
    found = suggest_candidates(place, "chat", WhatIf(), catalog.load())
    survey = MachineSurvey(scenes.MACHINE, machine_profile=place, candidates=found)
    known = [each for each in found if each.pair.target.repo and each.rate]
    assert len(known) > 50
    repos = {each.pair.target.repo or "": each.rate for each in reversed(known)}
    # Files of one type are a model of their own: others do not have them.
    of_any_type = [repo for repo in repos if "q4_0" not in repo]
    others = list(chain.from_iterable(map(_other_uploads, of_any_type)))

    speeds = _speeds_on_the_hub(survey, [*repos, *others])

    for repo, rate in repos.items():
        assert speeds[repo] == f"{about_rate(rate)} tok/s"
    assert [repo for repo in others if not speeds[repo].startswith("≈")] == []


def _other_uploads(repo: str) -> list[str]:
    name = repo.rpartition("/")[2]
    base = re.sub("-GGUF$", "", name, flags=re.IGNORECASE)
    return [
        f"someone/{name}",
        f"bartowski/Some-Lab_{base.rpartition('_')[2]}-GGUF",
        f"mradermacher/{base}-i1-GGUF",
        f"someone/{base}-Q4_K_M-GGUF",
        f"someone/{base.lower()}-IQ3_XXS-GGUF",
    ]


def test_what_is_named_otherwise_has_no_speed_on_the_hub() -> None:
    found = suggest_candidates(PLACE, "chat", WhatIf(), catalog.load())
    survey = MachineSurvey(scenes.MACHINE, machine_profile=PLACE, candidates=found)
    others = ["a/Qwen3-8B-abliterated-GGUF", "a/My-Qwen3-8B", "a/Qwen3-GGUF", "a/b"]
    assert not any(_speeds_on_the_hub(survey, others).values())


def _speeds_on_the_hub(survey: MachineSurvey, repos: list[str]) -> dict[str, str]:
    results = [HubSearchResult(repo, 1, 1, None, gated=False) for repo in repos]
    sections = home_rows.build_sections(
        catalog.load(),
        survey,
        search_text="zzzz",
        chats=HomeSection("Recent chats", ()),
        hub_results=results,
        download_states=(),
    )
    (section,) = (each for each in sections if "hub" in each.heading)
    return {row.name: row.speed for row in section.rows}


@pytest.mark.parametrize("place", [PLACE, NO_CARD], ids=["a card", "no card"])
def test_a_search_in_the_catalogue_shows_each_model_once_with_its_speed(
    place: MachineProfile,
) -> None:
    known = replace(place, hardware=PLACE.hardware)
    found = suggest_candidates(known, "chat", WhatIf(), catalog.load())
    survey = MachineSurvey(machine_profile=known, candidates=found)
    rows = make_rows(survey, "catalogue", "qwen3")
    targets = [row.name.partition("+")[0].partition(":")[0] for row in rows]
    assert len(set(targets)) == len(targets) > 3
    for row in rows:
        assert row.speed or row.description == "does not fit this computer"
        assert "lookup" not in row.name and "untested" not in row.description


def test_a_search_finds_a_model_by_its_own_words_only() -> None:
    """Not by those of the reason, which names another model."""
    found = suggest_candidates(PLACE, "chat", WhatIf(), catalog.load())
    survey = MachineSurvey(machine_profile=PLACE, candidates=found)
    names = [row.name for row in make_rows(survey, "catalogue", "qwen3.5")]
    assert names
    assert all("Qwen3.5" in name for name in names)


@pytest.mark.pictures
def test_picture_of_a_search(
    snap_compare: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the catalogue and the hub have of a name."""
    (tmp_path / "shelf.yaml").write_text(SHELF)
    monkeypatch.setattr(paths, "catalog_file", lambda: tmp_path / "shelf.yaml")
    with FakeHub() as hub:
        for repo in ("bartowski/Qwen3-8B-GGUF", "org/Qwen3"):
            hub.add(repo, "m-Q4_K_M.gguf", b"GGUF")
        hub.gated["org/Qwen3"] = "token"
        downloads = DownloadManager(HubClient(hub.url, token=False))
        app = scenes.home(downloads=downloads, survey=with_room)
        steps = seeing("12 downloads", "slash", *"qwen3", "up", "enter")
        assert snap_compare(app, run_before=steps)


def test_a_copy_made_here_is_no_other_model() -> None:
    """The one that is loaded in its place is listed; another copy has no model here."""
    source = local_model(Path("/models/Tiny.Q4_K_M.gguf"), 9)
    copy = replace(
        local_model(Path("/converted/Tiny-Q8_0.gguf"), 9), origin="converted"
    )
    lone = replace(copy, path=Path("/converted/Lone-Q8_0.gguf"))
    survey = MachineSurvey(local_models=(source, copy, lone))
    names = [row.name for row in make_rows(survey, "Other models")]
    assert names == ["Tiny.Q4_K_M", "Lone-Q8_0"]
