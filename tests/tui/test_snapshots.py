"""Pictures of the screens at 80x24, each looked at before it was accepted: see CONTRIBUTING.md."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.app import App
from textual.pilot import Pilot
from textual.widgets import Input

from localspec import paths
from localspec.chat.context_window import ContextOverflow
from localspec.chat.history import ChatHistory
from localspec.models import catalog
from localspec.models.hub.client import HubClient
from localspec.models.local_files import hub_cache
from localspec.tui import app
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.choices import ContextFullScreen
from localspec.tui.dialogs.open_files import OpenFilesScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.saved_chats import SavedChats
from localspec.tui.themes import MONOCHROME
from localspec.tui.wizard.shortlist import Candidate
from tests.chat.saved_chats import put
from tests.support import scenes, wizards
from tests.support.fake_hub import FakeHub
from tests.support.scenes import Steps, asking, settled, surveyed, walking
from tests.support.scripted_engine import painted, wait_until
from tests.support.welcomed import been_here
from tests.support.wizards import fit
from tests.support.zoo import Zoo

pytestmark = pytest.mark.pictures

Compare = Callable[..., bool]

TO_A_CORRECTION = ("up",) * 8 + ("left",)


async def nothing(_: Pilot[Any]) -> None:
    """As it comes."""


def pressed(*keys: str) -> Steps:
    async def steps(pilot: Pilot[Any]) -> None:
        await surveyed(pilot)
        await pilot.press(*keys)
        await settled(pilot)

    return steps


def test_home_empty(snap_compare: Compare) -> None:
    assert snap_compare(scenes.home(), run_before=surveyed)


def test_home_with_pairs(
    snap_compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long names, wide characters, a target without a draft; one stands on the last of them."""
    monkeypatch.chdir(tmp_path)
    opened_before()
    keys = pressed("down", "down", "down")
    assert snap_compare(scenes.home(), run_before=keys)


def opened_before() -> None:
    names = {
        "models/qwen3-8b-instruct-2507-q4_k_m.gguf": "models/qwen3-0.6b-q8_0.gguf",
        "models/大規模言語モデル-七十億-第二版-指示調整済み.gguf": "models/小さな下書き.gguf",
        "models/llama-3.2-1b.gguf": None,
    }
    Path("models").mkdir()
    for name in [*names, *filter(None, names.values())]:
        Path(name).write_bytes(b"GGUF")
    state = Path("data")
    state.mkdir(exist_ok=True)
    pairs = [{"target": target, "draft": draft} for target, draft in names.items()]
    (state / "recent.json").write_text(json.dumps(pairs), encoding="utf-8")


# --- Home with a catalogue, and what is on its way --------------------------------------------

SHELF = """\
schema: 1
models:
  - {id: qwen3-8b, title: Qwen3 8B, repo: a/A-GGUF, file: A.gguf, about: 4.9 GiB, parameters: 8B}
  - {id: qwen3-0.6b, title: Qwen3 0.6B, repo: a/B-GGUF, file: B.gguf, about: 0.6 GiB}
  - id: mistral-small-3.2-24b-instruct
    title: Mistral Small
    repo: a/C-GGUF
    file: C.gguf
    about: 13.3 GiB
    parameters: 24B
    use: [chat, writing]
pairs:
  - {target: qwen3-8b, draft: qwen3-0.6b, use: [chat, code], status: verified}
  - {target: mistral-small-3.2-24b-instruct}
"""
"""Not ours, which changes."""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = tmp_path / "shelf.yaml"
    shelf.write_text(SHELF)
    monkeypatch.setattr(paths, "catalog_file", lambda: shelf)


def with_room() -> MachineSurvey:
    known = catalog.load()
    pairs = [
        known.pairs["mistral-small-3.2-24b-instruct+lookup"],
        known.pairs["qwen3-8b+qwen3-0.6b"],
    ]
    fast = fit(wizards.PRICES["qwen3-8b+qwen3-0.6b"])
    suggested = (
        Candidate(pairs[0], pairs[0].size or 0),
        Candidate(pairs[1], pairs[1].size or 0, fast),
    )
    return MachineSurvey(scenes.MACHINE, candidates=suggested)


@pytest.mark.usefixtures("shelf")
def test_home_with_downloads(snap_compare: Compare) -> None:
    """Loading, paused, verifying, waiting, verified, failed; one stands on the last."""
    app = scenes.home(downloads=scenes.Still(), survey=with_room)
    assert snap_compare(app, run_before=pressed("end"))


@pytest.mark.usefixtures("shelf")
def test_home_filtered(snap_compare: Compare) -> None:
    """What the catalogue and the hub have of a name."""
    with FakeHub() as hub:
        for repo in ("bartowski/Qwen3-8B-GGUF", "org/Qwen3"):
            hub.add(repo, "m-Q4_K_M.gguf", b"GGUF")
        hub.gated["org/Qwen3"] = "token"
        app = scenes.home(
            downloads=DownloadManager(HubClient(hub.url, token=False)), survey=with_room
        )
        assert snap_compare(app, run_before=searching("qwen3"))


def searching(text: str) -> Steps:
    async def steps(pilot: Pilot[Any]) -> None:
        await surveyed(pilot)
        await pilot.press("slash", *text, "up", "enter")
        await wait_until(pilot, lambda: "12 downloads" in painted(pilot.app.screen))
        await settled(pilot)

    return steps


@pytest.mark.parametrize("what", ["fits", "refused"])
@pytest.mark.usefixtures("shelf")
def test_download_sheet(
    snap_compare: Compare,
    what: str,
    zoo: Zoo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the hub says of a pair, before it is downloaded."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub_cache, "free_bytes", lambda _: 250 * 10**9)
    with FakeHub() as hub:
        hub.add("a/A-GGUF", "A.gguf", zoo["target"].read_bytes())
        hub.add("a/B-GGUF", "B.gguf", zoo["cousin" if what == "fits" else "renamed"].read_bytes())
        hub.cards["a/A-GGUF"] = {"license": "apache-2.0"}
        hub.gated["a/B-GGUF"] = "token"
        app = scenes.home(downloads=DownloadManager(HubClient(hub.url, token="token")))
        assert snap_compare(app, run_before=looking_at("qwen3-8b"))


def looking_at(text: str) -> Steps:
    async def steps(pilot: Pilot[Any]) -> None:
        await surveyed(pilot)
        await pilot.press("slash", *text, "tab", "enter")
        await wait_until(pilot, lambda: "esc back" in painted(pilot.app.screen))
        await wait_until(pilot, lambda: "Asking" not in painted(pilot.app.screen))
        await settled(pilot)

    return steps


# --- the wizard -------------------------------------------------------------------------------


def stepping(*keys: str) -> Steps:
    """Through the wizard; what threads find out is waited for."""

    async def steps(pilot: Pilot[Any]) -> None:
        for key in keys:
            await pilot.press(key)
            await settled(pilot)

    return steps


STEPS = {"first": (), "second": ("1", "down"), "third": ("1", "enter")}


@pytest.mark.parametrize("step", STEPS)
def test_wizard(snap_compare: Compare, step: str, tmp_path: Path) -> None:
    app = wizards.app(wizards.stock(tmp_path))
    assert snap_compare(app, run_before=stepping(*STEPS[step]))


@pytest.mark.parametrize("look", ["ascii", "card"])
def test_wizard_once(snap_compare: Compare, look: str, tmp_path: Path) -> None:
    """Parts of the bar are told apart without colour, and without anything but ASCII."""
    options = {
        "ascii": AppOptions(seed=1, ascii_only=True, colour=False),
        "card": AppOptions(seed=1),
    }
    keys = ("1", "g", *"4060") if look == "card" else ("1", "enter", "t")
    app = wizards.app(wizards.stock(tmp_path), options[look])
    assert snap_compare(app, terminal_size=(100, 30), run_before=stepping(*keys))


CHATS: dict[str, tuple[Callable[[], App[None]], Steps]] = {
    "empty": (lambda: scenes.chat(scenes.spoken), scenes.opened),
    "streaming": (lambda: scenes.chat(scenes.held), scenes.streaming),
    "tokens": (
        lambda: scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False),
        walking(*TO_A_CORRECTION),
    ),
    "dead": (lambda: scenes.chat(scenes.dying), asking()),
    "unicode": (lambda: scenes.chat(lambda: scenes.spoken(scenes.ANYTHING)), asking("漢字とは？")),
}


@pytest.mark.parametrize("what", CHATS)
def test_chat(snap_compare: Compare, what: str) -> None:
    app, steps = CHATS[what]
    assert snap_compare(app(), run_before=steps)


# --- the rest, once each ----------------------------------------------------------------------


def completing(**options: Any) -> App[None]:
    return scenes.chat(lambda: scenes.spoken(scenes.COMPLETED), chats=False, **options)


async def dialog(pilot: Pilot[Any]) -> None:
    """A target and a draft that do not go together."""
    await pilot.press("o")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, OpenFilesScreen))
    for name, field in (("models/llama-3.2-1b.gguf", "#target"), ("models/小さな.gguf", "#draft")):
        pilot.app.screen.query_one(field, Input).value = name
        await pilot.press("enter")
    await wait_until(pilot, lambda: "✗" in painted(pilot.app.screen))
    await pilot.pause()


ONCE: dict[str, tuple[Callable[[], App[None]], Steps]] = {
    "refused": (scenes.refused, scenes.failed),
    "settings": (lambda: scenes.chat(scenes.spoken), asking(scenes.QUESTION, "f4", "down")),
    "help": (lambda: scenes.chat(scenes.spoken), asking(scenes.QUESTION, "f1")),
    "replay": (completing, asking(scenes.CODE, "f7", *["right"] * 5)),
    "thinking": (
        lambda: scenes.chat(scenes.thought, thinking=("<think>", "</think>")),
        asking(scenes.QUESTION, "ctrl+t"),
    ),
    "ascii": (lambda: completing(colour=False, ascii_only=True), walking(*TO_A_CORRECTION)),
    "monochrome": (lambda: completing(theme=MONOCHROME), walking(*TO_A_CORRECTION)),
    "contrast": (lambda: completing(theme="high-contrast"), walking(*TO_A_CORRECTION)),
    "light": (lambda: completing(theme="localspec-light"), walking(*TO_A_CORRECTION)),
}


@pytest.mark.parametrize("what", ONCE)
def test_once(snap_compare: Compare, what: str) -> None:
    app, steps = ONCE[what]
    assert snap_compare(app(), terminal_size=(110, 30), run_before=steps)


def test_opening(
    snap_compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zoo: Zoo
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    for name in ("llama-3.2-1b.gguf", "小さな.gguf"):
        Path("models", name).symlink_to(zoo["f32"])
    assert snap_compare(scenes.home(), run_before=dialog)


# --- chats that are kept ------------------------------------------------------------------


def chats_of_long_ago() -> SavedChats:
    """Three, on a day that stays the same."""
    told = (
        ("Why does my loop allocate?", "It builds a new list."),
        ("Letter to the landlord about the heating that has not worked since Tuesday", "Dear Sir"),
        ("大規模言語モデルは一行に収まらないほど長い題名を持つことがあるのでしょうか", "はい"),
    )
    with closing(ChatHistory.open()) as history:
        for question, said in told:
            put(history, (question, said))
    with closing(sqlite3.connect(paths.chats_file())) as database:
        database.execute("UPDATE chats SET updated = 1700000000")
        database.commit()
    return SavedChats()


def test_home_with_chats(snap_compare: Compare) -> None:
    app = scenes.home(AppOptions(seed=1, chats=chats_of_long_ago()))
    assert snap_compare(app, run_before=pressed("down", "down"))


def test_turns(snap_compare: Compare) -> None:
    """A branch, and what was taken back."""

    async def steps(pilot: Pilot[Any]) -> None:
        await asking()(pilot)
        await asking("And a comprehension?")(pilot)
        await asking("And a generator, then, with all that it brings?", before=("f6",))(pilot)
        await asking("One more")(pilot)
        await pilot.press("f6", "f8")
        await settled(pilot)

    app = scenes.chat(scenes.spoken)
    assert snap_compare(app, run_before=steps)


def test_room(snap_compare: Compare) -> None:
    """The context is full: what is to be done?"""

    async def steps(pilot: Pilot[Any]) -> None:
        await scenes.opened(pilot)
        pilot.app.push_screen(ContextFullScreen(ContextOverflow(8102, 8192, 11, mid_answer=True)))
        await settled(pilot)

    assert snap_compare(scenes.chat(scenes.spoken), run_before=steps)


# --- preferences ------------------------------------------------------------------------------

PREFERRED = """\
[screen]
theme = "high-contrast"
[chats]
keep = false
[keys]
"chat.send" = "ctrl+s"
"""
PREFERENCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "values": (PREFERRED, ("f10", "down", "down")),
    "wrong": ("", ("f10", *["up"] * 2, *"fast")),
    "damaged": ("[screen]\ntheme = \n", ("f10", "down", "right")),
    "banner": ("[screen]\ntheme = \n", ()),
}


@pytest.mark.parametrize("what", PREFERENCES)
def test_preferences(snap_compare: Compare, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a path that stays the same."""
    text, keys = PREFERENCES[what]
    been_here(paths.data_dir())
    paths.config_file().write_text(text)
    monkeypatch.chdir(paths.config_file().parent)
    monkeypatch.setenv("LOCALSPEC_CONFIG", "config.toml")
    options = app.load_options()
    options.seed, options.chats = 1, None
    assert snap_compare(scenes.home(options), run_before=pressed(*keys))
