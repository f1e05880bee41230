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

BIG = "tiny/Chatty-GGUF"
SMALL = "tiny/Draft-GGUF"
ODD = "else/Odd-GGUF"
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
PAIR = "chatty-pair"
WRONG = "chatty-wrong"
FILES = ["chatty-Q8_0.gguf", "draft-Q8_0.gguf"]
TITLES = ["Chatty", "Chatty draft"]
"""What rows call these files."""
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
    """The files that are complete."""
    return sorted(path.name for path in folder.glob("hub/models--*/snapshots/*/*.gguf"))


def parts(folder: Path) -> list[int]:
    """The sizes of the files that are not complete."""
    return [path.stat().st_size for path in folder.glob("hub/models--*/blobs/*.part")]


def keys_of(text: str) -> list[str]:
    """The keys that type a text."""
    return ["minus" if letter == "-" else letter for letter in text]


class HubHome(AppDriver):
    """Home on a screen, whose downloads come from a hub; `async with` it."""

    def __init__(self, hub: FakeHub, *engines: ScriptedEngine) -> None:
        client = HubClient(hub.url, token=False, retry_policy=QUICK)
        self.downloads = DownloadManager(client)

        def survey() -> MachineSurvey:
            return MachineSurvey("a computer", home_rows.survey_machine().local_models)

        opening = Opening(engines or [ScriptedEngine(said)])
        app = scenes.home(None, self.downloads, survey, opening=opening)
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
        """Opens the sheet of the first match, and waits for the hub's answers."""
        await self.press("slash", *keys_of(text), "tab", "enter")
        await self.reaches(PullScreen)
        await self.wait(lambda: "Contacting the hub" not in self.shown)

    async def search_hub(self, text: str) -> None:
        await self.press("slash", *keys_of(text))
        await self.point_at("Search the hub")
        await self.press("enter")

    async def point_at(self, name: str) -> None:
        """Marks a row; one of TITLES is that of its download."""
        pairs = self.top(HomeScreen).query_one(PointerList)
        for _ in range(len(pairs.rows) + 1):
            row = pairs.highlighted_row
            is_download = row is not None and row.download is not None
            if row is not None and name in TITLES:
                if is_download and row.name == name:
                    return
            elif row is not None and name in row.name:
                return
            await self.press("down")
        raise AssertionError(f"no row {name}: {self.shown}")

    async def phases_are(self, *phases: str) -> None:
        def are_reached() -> bool:
            return [state.phase.value for state in self.downloads.states()] == [*phases]

        await self.wait(are_reached)


async def test_a_busy_hub_says_how_long_to_wait(hub: FakeHub) -> None:
    limit = {"RateLimit": '"api";r=0;t=250'}
    async with HubHome(hub) as home:
        hub.always[API] = Fault("status", status=429, headers=limit)
        await home.press("slash", *keys_of(WRONG), "tab", "enter")
        await home.sees("The hub is busy and asks to wait 4 min 10 s.")


async def test_a_pair_that_does_not_match_is_not_downloaded(hub: FakeHub) -> None:
    async with HubHome(hub) as home:
        await home.look_at(WRONG)
        assert "incompatible: token" in home.shown
        assert not home.offers
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
        assert "▸" not in home.shown
        assert not hub.requests
        await home.press("down")
        await home.sees("▸ Search the hub", "enter search the hub")
        assert not hub.requests
        await home.press("enter")
        await home.sees("No models with that name on the hub.")


async def test_what_the_hub_has_can_be_looked_at_and_closed(hub: FakeHub) -> None:
    async with HubHome(hub) as home:
        await home.search_hub("draft-gguf")
        await home.sees("On the hub", SMALL, "12 downloads")
        await home.press("enter")
        await home.sees("Download tiny/Draft-GGUF", FILES[1], "enter download")
        await home.press("escape", "escape")
        await home.wait(lambda: "On the hub" not in home.shown)


async def test_a_damaged_catalogue_of_ones_own_is_said_while_it_is_damaged_and_ours_is_shown(
    hub: FakeHub, tmp_path: Path
) -> None:
    damaged = "schema: 1\npairs: [{target: nobody}]\n"
    (tmp_path / "config" / "models.yaml").write_text(damaged)
    async with HubHome(hub) as home:
        await home.sees("models.yaml", "nobody", "Demo")
        assert home.shown.count("there is no model nobody") == 1
        await home.press("slash", *"qwen3")
        await home.sees("In the catalogue", "there is no model nobody")
        (tmp_path / "config" / "models.yaml").unlink()
        await home.press("x")
        await home.wait(lambda: "nobody" not in home.shown)


HOSTILE = "[red]evil[/red] [link=file:///etc]x[/] \x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


async def test_what_strangers_write_is_text(hub: FakeHub, zoo: Zoo) -> None:
    """Licences, names and messages reach no terminal and no markup parser as they are."""
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
        assert "owned" not in home.shown
        assert "[bold]" not in home.shown
        await home.point_at("tiny/chatty-names")
        await home.press("enter")
        await home.wait(lambda: "Contacting the hub" not in home.shown)
        assert_harmless(home)
        await home.press("escape")
        message = {"X-Error-Message": "[b]x[/b]\x9b2J"}
        hub.always[API] = Fault("status", status=403, headers=message)
        await home.press("enter")
        await home.sees("✗")
        assert_harmless(home)


def assert_harmless(home: HubHome) -> None:
    for strip in home.app.screen._compositor.render_strips():
        for segment in strip:
            assert segment.text.isprintable()
            assert not segment.style or not segment.style.link


async def test_what_is_there_already_is_verified(hub: FakeHub, tmp_path: Path) -> None:
    async with HubHome(hub) as home:
        await home.look_at(PAIR)
        await home.press("enter")
        await home.wait(lambda: len(finals(tmp_path)) == 2)
    (file,) = tmp_path.glob(f"hub/*/snapshots/*/{FILES[1]}")
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
    """The files are verified by the time one is back."""
    hub.faults[BODY].extend([Fault(""), Fault("")])  # The headers come at once.
    hub.always[BODY] = Fault("slow", rate=400_000)
    async with HubHome(hub, ScriptedEngine(lambda: [*said(), Gate()])) as home:
        await home.look_at(PAIR)
        await home.press("enter")
        await home.sees("Downloads")
        # The chat is below both downloads.
        await home.press("escape", "home", "down", "down", "enter")
        await home.reaches(ChatScreen)
        await home.phases_are("done", "done")
        assert home.is_on(ChatScreen)
        await home.press("escape")
        await home.sees(TITLES[0], "✓ verified")


async def begin_to_fail(home: HubHome, reason: str, hint: str) -> None:
    """Both downloads; the first is selected then."""
    await home.press("enter")
    await home.phases_are("failed", "failed")
    await home.sees("✗", reason)
    await home.point_at(TITLES[0])
    await home.sees(hint, "p try again")


async def try_again(home: HubHome) -> None:
    await home.press("p")
    await home.phases_are("done", "failed")
    await home.point_at(TITLES[1])
    await home.press("enter")
    await home.phases_are("done", "done")


@pytest.mark.parametrize(
    ("status", "code", "reason", "hint"),
    [
        (404, "EntryNotFound", "has no", "tree/main"),
        (403, "GatedRepo", "is gated", "accept them"),
    ],
)
async def test_a_download_that_the_hub_refuses_says_why_and_is_tried_again(
    status: int, code: str, reason: str, hint: str, hub: FakeHub, tmp_path: Path
) -> None:
    async with HubHome(hub) as home:
        await home.look_at(PAIR)
        refusal = Fault("status", status=status, headers={"X-Error-Code": code})
        hub.always[LINK] = refusal
        await begin_to_fail(home, reason, hint)
        assert finals(tmp_path) == []
        hub.always.clear()
        await try_again(home)
        assert finals(tmp_path) == FILES


async def test_a_download_without_space_says_so_and_is_tried_again(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with HubHome(hub) as home:
        await home.look_at(PAIR)
        monkeypatch.setattr(hub_cache, "free_bytes", lambda _: 100_000)
        await begin_to_fail(home, "needs", "Free some space")
        assert finals(tmp_path) == []
        monkeypatch.setattr(hub_cache, "free_bytes", lambda _: 10**12)
        await try_again(home)
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
        await home.point_at(TITLES[0])
        await home.press("x")
        await home.sees("cancelled")
        assert len(parts(tmp_path)) == 2, "what came is kept"
        for name in TITLES:
            await home.point_at(name)
            await home.press("p")
        await home.phases_are("done", "done")
        assert finals(tmp_path) == FILES
    async with HubHome(hub) as home:
        await home.sees("Ready to run", TITLES[0])
        assert not home.downloads.states()
