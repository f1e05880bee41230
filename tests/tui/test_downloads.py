"""Home and the hub: what the sheet says before a download, how it goes, and how it goes wrong."""

from __future__ import annotations

import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec.models.hub.client import HubClient
from localspec.tui import home_rows
from localspec.tui.app import LocalspecApp
from localspec.tui.app_options import AppOptions
from localspec.tui.dialogs.pull import PullScreen
from localspec.tui.downloads import DownloadManager
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from localspec.tui.widgets.pointer_list import PointerList
from tests.support.downloads import QUICK
from tests.support.fake_hub import API, BODY, LINK, FakeHub, Fault
from tests.support.scripted_engine import (
    Gate,
    Opening,
    Script,
    ScriptedEngine,
    answer,
    painted,
    wait_until,
)
from tests.support.tmux import ENTER, ESCAPE, PROMPT, Tmux
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
    """Names under which models could be loaded."""
    return sorted(p.name for p in folder.glob("hub/models--*/snapshots/*/*.gguf"))


def parts(folder: Path) -> list[int]:
    """What has come of each file that is not whole."""
    return [p.stat().st_size for p in folder.glob("hub/models--*/blobs/*.part")]


# --- in a terminal ----------------------------------------------------------------------------

terminal = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")


@pytest.fixture
def tmux(hub: FakeHub, tmp_path: Path) -> Iterator[Tmux]:
    with Tmux((80, 24), tmp_path / "data") as tmux:
        yield tmux


def pick(tmux: Tmux, name: str) -> str:
    """From the shell to the sheet of a pair."""
    tmux.run()
    tmux.wait_for("Ready to run")
    tmux.press("/")
    tmux.wait_for("↑↓ select")
    tmux.type(name)
    tmux.wait_for("In the catalogue")
    tmux.press("Tab")
    tmux.wait_for(f"▸ {name}")
    tmux.press(ENTER)
    return tmux.wait_for("enter download   esc back")


def begin(tmux: Tmux, name: str = PAIR) -> None:
    """From the shell to the first of its downloads, whose bytes do not all come."""
    pick(tmux, name)
    tmux.press(ENTER)
    tmux.wait_for("Downloads")
    tmux.press("Down", "Down")  # over the row that searches the hub
    tmux.wait_for("▸ chatty-Q8_0")


@terminal
def test_from_the_catalogue_to_a_chat(tmux: Tmux, hub: FakeHub, tmp_path: Path, zoo: Zoo) -> None:
    """A connection drops, a body is damaged, one pauses and goes on: what comes is whole."""
    size = zoo["chatty"].stat().st_size
    whole = Fault("")
    damaged = Fault("corrupt", after=size - 8)
    hub.faults[BODY].extend([whole, whole, Fault("drop", after=70_000), damaged])
    hub.always[BODY] = STALLED
    sheet = pick(tmux, PAIR)
    assert "apache-2.0" in sheet and "licence unknown" in sheet
    assert "compatible:" in sheet and "0.7 MB to download" in sheet
    tmux.press(ENTER)
    tmux.wait_for("Downloads")
    hub.wait_sent(2 * 70_000 + size, 60)  # the headers, and both faults
    tmux.wait_for(lambda _: not hub.faults[BODY])
    tmux.press("Down")  # over the row that searches the hub
    for file in ("chatty-Q8_0", "draft-Q8_0"):
        tmux.press("Down")
        tmux.wait_for(lambda seen, file=file: f"▸ {file}" in seen and "p pause" in seen)  # type: ignore[misc]
        tmux.press("p")
        tmux.wait_for("p resume")
    assert tmux.screen.count(" paused") == 2
    assert finals(tmp_path) == []
    hub.always.clear()
    tmux.press("p", "Up", "p")
    seen = tmux.wait_for(lambda seen: seen.count("verified") == 2 and "Ready to run" in seen)
    assert "In the catalogue" not in seen or PAIR not in seen.partition("In the catalogue")[2]
    assert finals(tmp_path) == FILES and parts(tmp_path) == []
    assert any(not str(body.range).startswith("bytes=0-") for body in hub.bodies())
    tmux.press("Home")
    tmux.wait_for(f"▸ {PAIR}")
    tmux.press(ENTER)
    tmux.wait_for("f2: token view")
    tmux.type("Hello")
    tmux.press(ENTER)
    tmux.wait_for("Anything else?")


@terminal
def test_it_goes_on_while_one_chats_and_a_cancelled_one_is_kept(
    tmux: Tmux, hub: FakeHub, tmp_path: Path, zoo: Zoo
) -> None:
    size = zoo["chatty"].stat().st_size
    hub.faults[BODY].extend([Fault(""), Fault("")])  # the headers
    hub.always[BODY] = Fault("slow", rate=size / 10)
    begin(tmux)
    tmux.press(ESCAPE)
    tmux.wait_for(lambda seen: "enter ask" not in seen and "demo" in seen)
    tmux.press("Home", "Down", "Down")  # below both downloads
    tmux.wait_for("▸ demo")
    tmux.press(ENTER)
    tmux.wait_for("f2: token view")
    assert hub.sent() < 4 * size  # the headers, which are asked for with all that follows, twice
    tmux.type("def f(n):")
    tmux.press(ENTER)
    tmux.wait_for("first token")
    hub.wait_sent(4 * size)
    tmux.leave_chat()
    tmux.wait_for(lambda seen: seen.count("verified") == 2)
    assert finals(tmp_path) == FILES

    hub.faults[BODY].append(Fault(""))
    hub.always[BODY] = STALLED
    tmux.press("/")
    tmux.wait_for("↑↓ select")
    tmux.type("odd-gguf")
    tmux.wait_for("Search the hub")
    tmux.press("Down")
    tmux.wait_for("▸ Search the hub")
    tmux.press(ENTER)
    tmux.wait_for(f"▸ {ODD}")
    tmux.press(ENTER)
    tmux.wait_for("enter download   esc back")
    tmux.press(ENTER)
    tmux.wait_for(lambda _: parts(tmp_path) == [65_536])
    tmux.press("Tab", "End")
    tmux.wait_for("▸ odd-F32")
    tmux.press("x")
    tmux.wait_for("cancelled")
    assert parts(tmp_path) == [65_536]


@terminal
def test_quitting_keeps_what_came(tmux: Tmux, hub: FakeHub, tmp_path: Path) -> None:
    hub.faults[BODY].extend([Fault(""), Fault("")])
    hub.always[BODY] = STALLED
    begin(tmux)
    tmux.wait_for(lambda _: parts(tmp_path) == [65_536, 65_536])
    tmux.press("C-q")
    tmux.wait_for(PROMPT.strip())
    assert parts(tmp_path) == [65_536, 65_536]
    hub.always.clear()
    before = len(hub.seen)
    pick(tmux, PAIR)
    tmux.press(ENTER)
    tmux.wait_for(lambda seen: seen.count("verified") == 2)
    ranges = [str(seen.range) for seen in hub.seen[before:] if seen.kind == BODY]
    assert sum(text.startswith("bytes=65536-") for text in ranges) == 2
    assert finals(tmp_path) == FILES


# --- without one ------------------------------------------------------------------------------


def said() -> Script:
    return answer(["Well", ", ", "hello", "."])


KEYS = {"-": "minus", "/": "slash", ".": "full_stop"}


class Home:
    """Home on a screen, whose downloads come from a hub; `async with` it."""

    def __init__(self, hub: HubClient, *engines: ScriptedEngine) -> None:
        self.runner = EngineRunner(Opening(engines or [ScriptedEngine(said)]))
        options = AppOptions(seed=1)
        self.downloads = DownloadManager(hub)
        self.screen = HomeScreen(
            self.runner,
            options,
            lambda: MachineSurvey("a computer", home_rows.survey_machine().local_models),
            self.downloads,
            lambda seen: seen,
        )
        self.app = LocalspecApp(options, self.runner, lambda: self.screen)
        self._run = self.app.run_test(size=(110, 36), notifications=True)

    async def __aenter__(self) -> Home:
        self.pilot: Pilot[Any] = await self._run.__aenter__()
        await self.sees("a computer")
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._run.__aexit__(*error)

    @property
    def shown(self) -> str:
        """The screen that is on top, toasts included."""
        return painted(self.app.screen)

    @property
    def offered(self) -> bool:
        """Whether the sheet has a key that downloads."""
        return "enter download esc back" in self.shown

    async def sees(self, *words: str) -> None:
        await wait_until(self.pilot, lambda: all(word in self.shown for word in words))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def search(self, text: str) -> None:
        """Write into the filter; the list has the keyboard then, and its first row the pointer."""
        await self.press("slash", *(KEYS.get(letter, letter) for letter in text), "tab")

    async def look_at(self, text: str) -> None:
        """The sheet of the first that is found, when the hub has said all."""
        await self.search(text)
        await self.press("enter")
        await wait_until(self.pilot, lambda: isinstance(self.app.screen, PullScreen))
        await wait_until(self.pilot, lambda: "Contacting the hub" not in self.shown)

    async def point_at(self, name: str) -> None:
        """Down to a row."""
        pairs = self.screen.query_one(PointerList)
        for _ in pairs.rows:
            if pairs.highlighted_row is not None and name in pairs.highlighted_row.name:
                return
            await self.press("down")
        raise AssertionError(f"no row {name}: {self.shown}")

    async def download(self, text: str) -> None:
        """Begin; the pointer is on its row."""
        await self.look_at(text)
        assert self.offered
        await self.press("enter")
        await self.sees("Downloads")
        self.screen.query_one(PointerList).focus()
        await self.point_at(".gguf")


def client(hub: FakeHub, **how: Any) -> HubClient:
    return HubClient(hub.url, token=False, retry_policy=QUICK, **how)


@pytest.mark.asyncio
async def test_a_pair_that_does_not_go_together_is_not_downloaded(hub: FakeHub) -> None:
    async with Home(client(hub)) as home:
        await home.look_at(WRONG)
        assert "incompatible: token" in home.shown
        assert "Use a draft of the same model family" in home.shown
        assert not home.offered
        await home.press("enter")
        assert isinstance(home.app.screen, PullScreen)
        await home.press("escape")
        assert not home.downloads.states()


@pytest.mark.asyncio
async def test_a_wait_that_the_hub_asks_for_is_shown(hub: FakeHub) -> None:
    hub.always[API] = Fault("status", status=429, headers={"RateLimit": '"api";r=0;t=250'})
    async with Home(client(hub)) as home:
        await home.search(WRONG)
        await home.press("enter")
        await home.sees("The hub is busy and asks to wait 4 min 10 s.")
        await home.press("escape")
        await wait_until(home.pilot, lambda: not isinstance(home.app.screen, PullScreen))


@pytest.mark.asyncio
async def test_what_is_there_already_is_verified(hub: FakeHub, tmp_path: Path) -> None:
    async with Home(client(hub)) as home:
        await home.look_at(PAIR)
        await home.press("enter")
        await wait_until(home.pilot, lambda: len(finals(tmp_path)) == 2)
    file = next(path for path in tmp_path.glob("hub/*/snapshots/*/*.gguf") if path.name == FILES[1])
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.resolve().write_bytes(damaged)
    async with Home(client(hub)) as home:
        await home.press("slash", *"draft", "minus", *"gguf", "down", "enter")
        await home.sees(SMALL)
        await home.press("enter")
        await home.sees("enter verify")
        await home.press("enter")
        await wait_until(home.pilot, lambda: file.exists() and file.read_bytes() != damaged)
        await home.sees("verified")


@pytest.mark.asyncio
async def test_offline_it_says_so(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no socket is opened."""

    def refuse(*_: object) -> None:
        raise AssertionError("a socket")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    async with Home(client(hub, offline=True)) as home:
        await home.look_at(PAIR)
        assert "Offline mode is on." in home.shown
        assert not home.offered
        await home.press("escape", "slash", "enter")
        await home.sees("Offline mode is on.")
        assert not hub.seen


@pytest.mark.asyncio
async def test_the_hub_is_searched_and_what_it_finds_is_opened(hub: FakeHub) -> None:
    async with Home(client(hub)) as home:
        await home.press("slash", *"draft", "minus", *"gguf", "down", "enter")
        await home.sees("On the hub", SMALL, "12 downloads")
        await home.press("enter")
        await home.sees("Download tiny/Draft-GGUF", "draft-Q8_0.gguf", "enter download")
        await home.press("escape", "escape")
        assert "On the hub" not in home.shown
        await home.press("slash", *"nothing", "down", "enter")
        await home.sees("No models with that name on the hub.")


@pytest.mark.asyncio
async def test_a_damaged_catalogue_of_ones_own(hub: FakeHub, tmp_path: Path) -> None:
    """Is said once, and ours is shown."""
    (tmp_path / "config" / "models.yaml").write_text("schema: 1\npairs: [{target: nobody}]\n")
    async with Home(client(hub)) as home:
        await home.sees("models.yaml", "nobody", "demo")
        assert sum("there is no model nobody" in n.message for n in home.app._notifications) == 1
        await home.search("qwen3")
        await home.sees("In the catalogue")


HOSTILE = "[red]evil[/red] [link=file:///etc]x[/] \x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


@pytest.mark.asyncio
async def test_what_strangers_write_is_text(hub: FakeHub, zoo: Zoo) -> None:
    """Licences, names, messages: neither a terminal nor a markup parser gets them as they are."""
    hub.cards[BIG] = {"license": HOSTILE}
    model = zoo["chatty"].read_bytes()
    for repo in (f"tiny/chatty{HOSTILE}", "tiny/[bold]chatty[/bold]"):
        hub.add(repo, "m-Q8_0.gguf", model)
    hub.add("tiny/chatty-names", "[red]m[/red]-Q8_0.gguf", model)
    hub.add("tiny/chatty-names", "\x1b[31mm-Q4_0.gguf", model)
    async with Home(client(hub)) as home:
        await home.look_at(PAIR)
        assert "[red]evil[/red] [link=file:///etc]x[/]" in home.shown
        await home.press("escape", "escape", "slash", *"chatty")
        await home.point_at("Search the hub")
        await home.press("enter")
        await home.sees("On the hub", "tiny/chatty-names")
        assert "owned" not in home.shown and "[bold]" not in home.shown
        await home.point_at("tiny/chatty-names")
        await home.press("enter")
        await wait_until(home.pilot, lambda: "Contacting the hub" not in home.shown)
        harmless(home)
        await home.press("escape")
        hub.always[API] = Fault("status", status=403, headers={"X-Error-Message": "[b]x[/b]\x9b2J"})
        await home.press("enter")
        await wait_until(home.pilot, lambda: "✗" in home.shown)
        harmless(home)


def harmless(home: Home) -> None:
    strips = home.app.screen._compositor.render_strips()
    assert all(segment.text.isprintable() for strip in strips for segment in strip)
    assert not any(segment.style and segment.style.link for strip in strips for segment in strip)


@pytest.mark.asyncio
async def test_a_chat_stays_open_while_it_downloads(hub: FakeHub) -> None:
    """And what came is verified on the way back."""
    gate = Gate()
    hub.faults[BODY].extend([Fault(""), Fault("")])
    hub.always[BODY] = Fault("slow", rate=400_000)
    async with Home(client(hub), ScriptedEngine(lambda: [*said(), gate])) as home:
        await home.download(PAIR)
        await home.press("escape", "home", "down", "down", "enter")  # below both downloads
        await wait_until(home.pilot, lambda: isinstance(home.app.screen, ChatScreen))
        await wait_until(home.pilot, lambda: _phases(home) == ["done", "done"])
        assert isinstance(home.app.screen, ChatScreen)
        await home.press("escape")
        await home.sees(PAIR, "✓ verified")


def _phases(home: Home) -> list[str]:
    return [state.phase.value for state in home.downloads.states()]


Usage = namedtuple("Usage", "total used free")


class Disk:
    """With as much room as a test wants."""

    def __init__(self) -> None:
        self.free = 10**12

    def usage(self, _: object) -> Usage:
        return Usage(10**12, 0, self.free)


@pytest.mark.asyncio
@pytest.mark.parametrize("what", ["gone", "gated", "full"])
async def test_a_download_that_fails_says_why_and_is_tried_again(
    hub: FakeHub, what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = Disk()
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    words = {"gone": "has no", "gated": "is gated", "full": "needs"}
    hints = {"gone": "tree/main", "gated": "accept them", "full": "Free some space"}
    async with Home(client(hub)) as home:
        await home.look_at(PAIR)
        if what == "full":
            disk.free = 100_000
        else:
            code = "EntryNotFound" if what == "gone" else "GatedRepo"
            status = 404 if what == "gone" else 403
            hub.always[LINK] = Fault("status", status=status, headers={"X-Error-Code": code})
        await home.press("enter")
        await wait_until(home.pilot, lambda: _phases(home) == ["failed", "failed"])
        await home.sees("✗", words[what])
        await home.point_at(FILES[0])
        await home.sees(hints[what], "p try again")
        assert finals(tmp_path) == []
        disk.free = 10**12
        hub.always.clear()
        await home.press("p")
        await wait_until(home.pilot, lambda: _phases(home) == ["done", "failed"])
        await home.point_at(FILES[1])
        await home.press("enter")
        await wait_until(home.pilot, lambda: _phases(home) == ["done", "done"])
        assert finals(tmp_path) == FILES


@pytest.mark.asyncio
async def test_what_was_not_finished_is_there_at_the_next_start(
    hub: FakeHub, tmp_path: Path
) -> None:
    async with Home(client(hub)) as home:
        await home.look_at(PAIR)
        hub.always[BODY] = STALLED
        await home.press("enter")
        await wait_until(home.pilot, lambda: parts(tmp_path) == [65_536, 65_536])
    hub.always.clear()
    async with Home(client(hub)) as home:
        await home.sees("Downloads", "paused")
        assert home.shown.index("Downloads") < home.shown.index("Ready to run")
        for name in FILES:
            await home.point_at(name)
            await home.press("p")
        await wait_until(home.pilot, lambda: _phases(home) == ["done", "done"])
        assert finals(tmp_path) == FILES
    async with Home(client(hub)) as home:
        await home.sees("Ready to run", PAIR)
        assert not home.downloads.states()
