"""Downloads on Home and the sheet before them: how they go, and how they go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localspec.models.hub.client import HubClient
from localspec.models.local_files import hub_cache
from localspec.tui import home_rows
from localspec.tui.dialogs.pull import PullScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.widgets.pointer_list import PointerList
from tests.support import scenes
from tests.support.app_driver import AppDriver, said
from tests.support.downloads import QUICK
from tests.support.fake_hub import API, BODY, LINK, FakeHub, Fault
from tests.support.scripted_engine import Gate, Opening, ScriptedEngine
from tests.support.zoo import Zoo

BIG, SMALL, ODD = "tiny/Chatty-GGUF", "tiny/Draft-GGUF", "else/Odd-GGUF"
CATALOGUE = f"""\
schema: 1
models:
  - {{id: chatty, title: Chatty, repo: {BIG}, file: chatty-Q8_0.gguf, use: [chat]}}
  - {{id: chatty-draft, title: Chatty draft, repo: {SMALL}, file: draft-Q8_0.gguf}}
  - {{id: odd, title: Odd, repo: {ODD}, file: odd-F32.gguf}}
pairs:
  - {{id: chatty-pair, target: chatty, draft: chatty-draft}}
  - {{id: chatty-wrong, target: chatty, draft: odd}}
"""
PAIR, WRONG = "chatty-pair", "chatty-wrong"
FILES = ["chatty-Q8_0.gguf", "draft-Q8_0.gguf"]
STALLED = Fault("stall", after=65_536)


@pytest.fixture
def hub(zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub, an empty cache, and a person's own catalogue with pairs of that hub."""
    own = tmp_path / "config" / "models.yaml"
    own.parent.mkdir()
    own.write_text(CATALOGUE)
    with FakeHub() as hub:
        hub.add(BIG, FILES[0], zoo["chatty"].read_bytes())
        hub.add(SMALL, FILES[1], zoo["chatty"].read_bytes())
        hub.add(ODD, "odd-F32.gguf", zoo["renamed"].read_bytes())
        hub.cards[BIG] = {"license": "apache-2.0"}
        monkeypatch.setenv("LOCALSPEC_CONFIG", str(own.with_name("config.toml")))
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        yield hub


def finals(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.glob("hub/models--*/snapshots/*/*.gguf"))


def parts(folder: Path) -> list[int]:
    """What has come of each file that is not whole."""
    return [p.stat().st_size for p in folder.glob("hub/models--*/blobs/*.part")]


class HubHome(AppDriver):
    """Home on a screen, whose downloads come from a hub; `async with` it."""

    def __init__(self, hub: FakeHub, *engines: ScriptedEngine) -> None:
        client = HubClient(hub.url, token=False, retry_policy=QUICK)
        self.downloads = DownloadManager(client)
        app = scenes.home(
            None,
            self.downloads,
            lambda: MachineSurvey(
                "a computer", home_rows.survey_machine().local_models
            ),
            opening=Opening(engines or [ScriptedEngine(said)]),
        )
        self._run = app.run_test(size=(110, 36), notifications=True)

    async def __aenter__(self) -> HubHome:
        super().__init__(await self._run.__aenter__())
        await self.sees("a computer")
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._run.__aexit__(*error)

    @property
    def offers(self) -> bool:
        return "enter download esc back" in self.shown

    async def look_at(self, text: str) -> None:
        """The sheet of the first that is found, when the hub has said all."""
        await self.press(
            "slash", *("minus" if letter == "-" else letter for letter in text)
        )
        await self.press("tab", "enter")
        await self.reaches(PullScreen)
        await self.wait(lambda: "Contacting the hub" not in self.shown)

    async def search_hub(self, text: str) -> None:
        await self.press(
            "slash", *("minus" if letter == "-" else letter for letter in text)
        )
        await self.point_at("Search the hub")
        await self.press("enter")

    async def point_at(self, name: str) -> None:
        pairs = self.top(HomeScreen).query_one(PointerList)
        for _ in range(len(pairs.rows) + 1):
            if pairs.highlighted_row is not None and name in pairs.highlighted_row.name:
                return
            await self.press("down")
        raise AssertionError(f"no row {name}: {self.shown}")

    async def phases_are(self, *phases: str) -> None:
        await self.wait(
            lambda: [s.phase.value for s in self.downloads.states()] == [*phases]
        )


async def test_a_pair_that_does_not_match_is_not_downloaded(hub: FakeHub) -> None:
    async with HubHome(hub) as home:
        hub.always[API] = Fault(
            "status", status=429, headers={"RateLimit": '"api";r=0;t=250'}
        )
        await home.press("slash", *"chatty", "minus", *"wrong", "tab", "enter")
        await home.sees("The hub is busy and asks to wait 4 min 10 s.")
        await home.press("escape", "escape")
        hub.always.clear()
        await home.look_at(WRONG)
        assert "incompatible: token" in home.shown and not home.offers
        await home.sees("Use a draft of the same model family")
        await home.press("enter")
        assert home.is_on(PullScreen)
        await home.press("escape")
        assert not home.downloads.states()


async def test_only_a_marked_search_sends_words_to_the_hub(hub: FakeHub) -> None:
    async with HubHome(hub) as home:
        await home.press("slash", *"xyzzy", "enter")
        await home.sees(
            "No match on this computer", "Search the hub", "sends this text"
        )
        assert "▸" not in home.shown and not hub.requests
        await home.press("down")
        await home.sees("▸ Search the hub", "enter search the hub")
        assert not hub.requests
        await home.press("enter")
        await home.sees("No models with that name on the hub.")
        await home.press("escape")
        await home.search_hub("draft-gguf")
        await home.sees("On the hub", SMALL, "12 downloads")
        await home.press("enter")
        await home.sees("Download tiny/Draft-GGUF", FILES[1], "enter download")
        await home.press("escape", "escape")
        await home.wait(lambda: "On the hub" not in home.shown)


async def test_a_damaged_catalogue_of_ones_own_is_said_once_and_ours_is_shown(
    hub: FakeHub, tmp_path: Path
) -> None:
    (tmp_path / "config" / "models.yaml").write_text(
        "schema: 1\npairs: [{target: nobody}]\n"
    )
    async with HubHome(hub) as home:
        await home.sees("models.yaml", "nobody", "demo")
        assert (
            sum(
                "there is no model nobody" in n.message for n in home.app._notifications
            )
            == 1
        )
        await home.press("slash", *"qwen3")
        await home.sees("In the catalogue")


HOSTILE = "[red]evil[/red] [link=file:///etc]x[/] \x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


async def test_what_strangers_write_is_text(hub: FakeHub, zoo: Zoo) -> None:
    """Licences, names, messages: neither a terminal nor a markup parser gets them as
    they are.
    """
    hub.cards[BIG] = {"license": HOSTILE}
    model = zoo["chatty"].read_bytes()
    for repo in (f"tiny/chatty{HOSTILE}", "tiny/[bold]chatty[/bold]"):
        hub.add(repo, "m-Q8_0.gguf", model)
    hub.add("tiny/chatty-names", "[red]m[/red]-Q8_0.gguf", model)
    hub.add("tiny/chatty-names", "\x1b[31mm-Q4_0.gguf", model)
    async with HubHome(hub) as home:
        await home.look_at(PAIR)
        await home.sees("[red]evil[/red] [link=file:///etc]x[/]")
        await home.press("escape", "escape")
        await home.search_hub("chatty")
        await home.sees("On the hub", "tiny/chatty-names")
        assert "owned" not in home.shown and "[bold]" not in home.shown
        await home.point_at("tiny/chatty-names")
        await home.press("enter")
        await home.wait(lambda: "Contacting the hub" not in home.shown)
        assert_harmless(home)
        await home.press("escape")
        hub.always[API] = Fault(
            "status", status=403, headers={"X-Error-Message": "[b]x[/b]\x9b2J"}
        )
        await home.press("enter")
        await home.sees("✗")
        assert_harmless(home)


def assert_harmless(home: HubHome) -> None:
    segments = [
        s for strip in home.app.screen._compositor.render_strips() for s in strip
    ]
    assert all(segment.text.isprintable() for segment in segments)
    assert not any(segment.style and segment.style.link for segment in segments)


async def test_what_is_there_already_is_verified(hub: FakeHub, tmp_path: Path) -> None:
    async with HubHome(hub) as home:
        await home.look_at(PAIR)
        await home.press("enter")
        await home.wait(lambda: len(finals(tmp_path)) == 2)
    file = next(
        path
        for path in tmp_path.glob("hub/*/snapshots/*/*.gguf")
        if path.name == FILES[1]
    )
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.resolve().write_bytes(damaged)
    async with HubHome(hub) as home:
        await home.search_hub("draft-gguf")
        await home.sees(SMALL)
        await home.press("enter")
        await home.sees("enter verify")
        await home.press("enter")
        await home.wait(lambda: file.exists() and file.read_bytes() != damaged)
        await home.sees("verified")


async def test_a_chat_stays_open_while_it_downloads(hub: FakeHub) -> None:
    """And what came is verified on the way back."""
    hub.faults[BODY].extend([Fault(""), Fault("")])  # the headers
    hub.always[BODY] = Fault("slow", rate=400_000)
    async with HubHome(hub, ScriptedEngine(lambda: [*said(), Gate()])) as home:
        await home.look_at(PAIR)
        await home.press("enter")
        await home.sees("Downloads")
        # below both downloads
        await home.press("escape", "home", "down", "down", "enter")
        await home.reaches(ChatScreen)
        await home.phases_are("done", "done")
        assert home.is_on(ChatScreen)
        await home.press("escape")
        await home.sees(PAIR, "✓ verified")


FAILURES = {
    "gone": ("has no", "tree/main", 404, "EntryNotFound"),
    "gated": ("is gated", "accept them", 403, "GatedRepo"),
    "full": ("needs", "Free some space", 0, ""),
}


@pytest.mark.parametrize("what", FAILURES)
async def test_a_download_that_fails_says_why_and_is_tried_again(
    hub: FakeHub, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words, hint, status, code = FAILURES[what]
    free = [10**12]
    monkeypatch.setattr(hub_cache, "free_bytes", lambda _: free[0])
    async with HubHome(hub) as home:
        await home.look_at(PAIR)
        if status:
            hub.always[LINK] = Fault(
                "status", status=status, headers={"X-Error-Code": code}
            )
        else:
            free[0] = 100_000
        await home.press("enter")
        await home.phases_are("failed", "failed")
        await home.sees("✗", words)
        await home.point_at(FILES[0])
        await home.sees(hint, "p try again")
        assert finals(tmp_path) == []
        free[0] = 10**12
        hub.always.clear()
        await home.press("p")
        await home.phases_are("done", "failed")
        await home.point_at(FILES[1])
        await home.press("enter")
        await home.phases_are("done", "done")
        assert finals(tmp_path) == FILES


async def test_what_was_not_finished_is_there_at_the_next_start(
    hub: FakeHub, tmp_path: Path
) -> None:
    async with HubHome(hub) as home:
        await home.look_at(PAIR)
        hub.always[BODY] = STALLED
        await home.press("enter")
        await home.wait(lambda: parts(tmp_path) == [65_536, 65_536])
    hub.always.clear()
    async with HubHome(hub) as home:
        await home.sees("Downloads", "paused")
        assert home.shown.index("Downloads") < home.shown.index("Ready to run")
        await home.point_at(FILES[0])
        await home.press("x")
        await home.sees("cancelled")
        assert len(parts(tmp_path)) == 2, "what came is kept"
        for name in FILES:
            await home.point_at(name)
            await home.press("p")
        await home.phases_are("done", "done")
        assert finals(tmp_path) == FILES
    async with HubHome(hub) as home:
        await home.sees("Ready to run", PAIR)
        assert not home.downloads.states()
