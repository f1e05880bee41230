"""Chats on the screen that outlive it: kept, listed, found, gone on with, deleted."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from localspec import paths
from localspec.chat.conversation import Turn
from localspec.chat.history import ChatHistory, ChatPair
from localspec.chat.session import ChatSession
from localspec.errors import InUseError
from localspec.models import catalog
from localspec.models.local_files.local_model import LocalModel
from localspec.tui import home_rows
from localspec.tui.app import LocalspecApp, load_options
from localspec.tui.app_options import AppOptions
from localspec.tui.engine_runner import EngineRunner
from localspec.tui.home_rows import MachineSurvey
from localspec.tui.saved_chats import SavedChats, format_day
from localspec.tui.screens.chat import ChatScreen
from localspec.tui.screens.home import HomeScreen
from tests.chat import saved_chats
from tests.support.scenes import MACHINE, PAIR, as_it_is, settled
from tests.support.scripted_engine import (
    Gate,
    Opening,
    Script,
    ScriptedEngine,
    answer,
    painted,
    wait_until,
)
from tests.tui.screens.test_chat import Chat


def said() -> Script:
    return answer(["Well", ", ", "hello", "."])


def halted() -> Script:
    whole = list(said())
    return [*whole[:-1], Gate(), *whole[-1:]]


class App:
    """The whole app with a history; Home is on top, and the demo opened by enter."""

    def __init__(self, pilot: Pilot[Any], options: AppOptions) -> None:
        self.pilot, self.options = pilot, options

    @property
    def shown(self) -> str:
        return painted(self.pilot.app.screen)

    @property
    def chat(self) -> ChatScreen:
        screen = self.pilot.app.screen
        assert isinstance(screen, ChatScreen)
        return screen

    @property
    def home(self) -> HomeScreen:
        screen = self.pilot.app.screen
        assert isinstance(screen, HomeScreen)
        return screen

    @property
    def history(self) -> ChatHistory:
        assert self.options.chats is not None
        found = self.options.chats.history
        assert found is not None
        return found

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await settled(self.pilot)

    async def until(self, *phases: str) -> None:
        def there() -> bool:
            screen = self.pilot.app.screen
            return isinstance(screen, ChatScreen) and screen.phase in phases

        await wait_until(self.pilot, there)

    async def send(self, text: str) -> None:
        self.chat.composer.replace_text(text)
        await self.pilot.press("enter")
        await self.until("ready", "failed")
        await settled(self.pilot)


@asynccontextmanager
async def app(
    *scripts: Any, private: bool = False, size: tuple[int, int] = (100, 30)
) -> AsyncIterator[App]:
    options = AppOptions(seed=1, chats=SavedChats(private=private))
    engines = [ScriptedEngine(*(scripts or (said,))) for _ in range(9)]
    runner = EngineRunner(Opening(engines))
    home = HomeScreen(runner, options, lambda: MachineSurvey(MACHINE), survey_devices=as_it_is)
    running = LocalspecApp(options, runner, lambda: home).run_test(size=size, notifications=True)
    async with running as pilot:
        one = App(pilot, options)
        await wait_until(pilot, lambda: "Ready to run" in one.shown and MACHINE in one.shown)
        await settled(pilot)
        yield one


@pytest.mark.asyncio
async def test_a_chat_is_there_again_after_the_app() -> None:
    async with app() as first:
        await first.press("enter")
        await first.until("ready")
        await first.send("Why does my loop allocate?")
        await first.send("/read /nowhere/at/all")
        await first.send("and now?")
    async with app() as second:
        assert "Recent chats" in second.shown and "2 turns" in second.shown
        await second.press("down", "enter")
        await second.until("ready")
        turns = second.chat.session.conversation.turns
        assert [turn.question for turn in turns] == ["Why does my loop allocate?", "and now?"]
        assert [turn.answer for turn in turns] == ["Well, hello."] * 2
        assert "ctx 28 / 8.2k" in second.shown  # it said 0
        assert turns[0].rounds and "Well, hello." in second.shown
        await second.send("third")
        assert second.history.list_chats()[0].turn_count == 3


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["many turns", "lost events"])
async def test_answers_are_there_without_their_events(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with app() as first:
        await first.press("enter")
        await first.until("ready")
        await first.send("Why?")
    if how == "many turns":
        monkeypatch.setattr("localspec.tui.saved_chats._MAX_TURNS_WITH_TOKENS", 0)
    else:
        with closing(sqlite3.connect(paths.chats_file())) as database, database:
            assert database.execute("DELETE FROM events").rowcount
    async with app() as second:
        await second.press("down", "enter")
        await second.until("ready")
        assert "Well, hello." in second.shown
        await second.press("f2")
        assert "Well, hello." in second.shown


@pytest.mark.asyncio
async def test_what_was_sent_is_on_the_disk_before_the_answer() -> None:
    async with app(halted) as one:
        await one.press("enter")
        await one.until("ready")
        one.chat.composer.replace_text("first")
        await one.pilot.press("enter")
        await wait_until(one.pilot, lambda: one.chat.phase == "answering")
        seen = ChatHistory.open()
        kept = seen.load_chat(seen.find_last_id())
        assert [turn.question for turn in kept.conversation.turns] == ["first"]
        assert kept.conversation.turns[0].finish_reason is None
        seen.close()


@pytest.mark.asyncio
async def test_what_is_said_in_a_chat_is_found() -> None:
    async with app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("the landlord's letter")
        await one.press("escape", "slash", *"landlord")
        await wait_until(one.pilot, lambda: "In your chats" in one.shown)
        assert "letter" in one.shown
        await one.press("escape", "slash", *"nothing of the kind")
        assert "In your chats" not in one.shown


@pytest.mark.asyncio
async def test_deleted_for_good() -> None:
    async with app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("a secret")
        await one.press("escape")
        await one.press("down", "d")
        assert "Delete “a secret”?" in one.shown
        await one.press("enter")
        assert len(one.history.list_chats()) == 1
        await one.press("d", "y")
        assert not one.history.list_chats() and "Recent chats" not in one.shown


@pytest.mark.asyncio
async def test_nothing_private_is_kept() -> None:
    async with app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("/private")
        assert "not saved" in one.shown
        await one.send("a secret")
        assert not one.history.list_chats()
    async with app(private=True) as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("a secret")
        assert "not saved" in one.shown
    assert not list(Path(ChatHistory.open()._database.path.parent).glob("*secret*"))


@pytest.mark.asyncio
async def test_a_chat_that_is_open_elsewhere_is_read_only() -> None:
    async with app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("mine")
        await one.press("escape")
        async with app() as other:
            await other.press("down", "enter")
            await other.until("ready")
            assert "open in another window" in other.shown
            await other.send("yours")
            assert [t.question for t in other.chat.session.conversation.turns] == ["mine"]
            assert other.chat.composer.text == "yours"
        assert one.history.list_chats()[0].turn_count == 1


@pytest.mark.asyncio
async def test_branches_are_kept() -> None:
    async with app() as first:
        await first.press("enter")
        await first.until("ready")
        await first.send("one")
        await first.press("f6", "ctrl+a")
        await first.send("first")
        await first.press("f8", "left", "escape")
    async with app() as second:
        await second.press("down", "enter")
        await second.until("ready")
        conversation = second.chat.session.conversation
        assert [t.question for t in conversation.turns] == ["one"]
        assert [t.question for t in conversation.branches(1)] == ["one", "first"]
        assert "You · 1 of 2" in second.shown


@pytest.mark.asyncio
async def test_a_bundled_pair_is_kept_by_its_name() -> None:
    """Not by where it lies: that changes with the next installation."""
    async with app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("hello")
        pair = one.history.list_chats()[0].pair
        assert (pair.model, pair.draft, pair.name) == ("demo", "auto", "demo-target")
        await one.send("/new")
        await one.send("another")
        assert one.history.list_chats()[0].pair == pair


@pytest.mark.asyncio
async def test_a_chat_of_files_is_gone_on_with() -> None:
    """As older versions kept those of the bundled pair, too."""
    demo = paths.package_data_dir() / "demo"
    target, draft = str(demo / "demo-target.gguf"), str(demo / "demo-draft.gguf")
    with closing(ChatHistory.open()) as history:
        old = saved_chats.chat(("before", "said"))
        pair = ChatPair(target, draft, "demo-target")
        history.save_chat(None, replace(saved_chats.about(old), pair=pair), old.all_turns)
    async with app() as one:
        await one.press("down", "enter")
        await one.until("ready")
        choice = one.chat.session.pair
        assert (str(choice.target), str(choice.draft)) == (target, draft)
        await one.send("more")
        kept = one.history.list_chats()[0]
        assert (kept.turn_count, kept.pair.model, kept.pair.draft) == (
            2,
            "demo-target",
            "demo-draft",
        )


def test_a_pair_of_the_catalogue_is_kept_by_its_id(tmp_path: Path) -> None:
    shelf = catalog.load()
    pair = next(
        one for one in shelf.pairs.values() if one.draft_kind == "model" and one.target.repo
    )
    assert pair.draft is not None
    listing = [
        LocalModel(
            tmp_path / f"{n}.gguf", 1, model.repo, model.file, None, None, False, "hub", True
        )
        for n, model in enumerate((pair.target, pair.draft))
    ]
    choice = home_rows.find_ready_pairs(shelf, MachineSurvey(local_models=tuple(listing)))[pair.id]
    assert choice.portable_refs == (pair.id, "auto")
    assert ChatSession(choice).recorder.pair.model == pair.id


def test_days() -> None:
    now = datetime(2026, 3, 3, 12, 0).astimezone()
    days = [format_day((now - timedelta(days=n)).timestamp(), now) for n in (0, 1, 2, 7)]
    assert days == ["today 12:00", "yesterday", "Sunday", "2026-02-24"]
    assert format_day(float("1e300"), now) == ""


@pytest.mark.asyncio
async def test_a_chat_is_renamed_pinned_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with app() as one:
        await one.press("enter")
        await one.until("ready")
        await one.send("/rename too early")
        assert "This chat is not saved yet." in one.shown
        for question in ("first", "second", "third"):
            await one.send(question)
            await one.send("/new")
        await one.press("escape", "escape")
        titles = [chat.title for chat in one.history.list_chats()]
        assert titles == ["third", "second", "first"]
        await one.press("down", "down", "down", "s")  # the oldest
        assert one.shown.index("first") < one.shown.index("third")
        await one.press("home", "down", "f2", "ctrl+u", *"uno", "enter")
        assert "uno" in one.shown and one.history.list_chats()[2].title == "uno"
        await one.press("e", "enter")
        assert "first" in (tmp_path / "uno.md").read_text()
        await one.press("e", "enter")  # never over another file
        assert "uno.md" in one.shown and len(list(tmp_path.glob("*.md"))) == 1
        await one.press("s")
        assert one.shown.index("third") < one.shown.index("uno")
        (paths.data_dir() / "pinned.json").unlink()
        (paths.data_dir() / "pinned.json").mkdir()  # cannot be written
        await one.press("s")
        messages = [notice.message for notice in one.pilot.app._notifications]
        assert any("pinned.json cannot be written" in message for message in messages)


# --- saving while it goes on -------------------------------------------------------------------


@pytest.fixture
def history() -> Iterator[ChatHistory]:
    with closing(ChatHistory.open()) as known:
        yield known


def kept(chat: Chat, history: ChatHistory) -> None:
    chat.screen.session = ChatSession(PAIR, 1, history)


def on_disk() -> Sequence[Turn]:
    """The turns of the last chat, as another program reads them."""
    with closing(ChatHistory.open()) as other:
        return other.load_chat(other.find_last_id()).conversation.turns


@pytest.mark.asyncio
async def test_what_was_said_is_on_the_disk(history: ChatHistory) -> None:
    chat = Chat()
    kept(chat, history)
    async with chat:
        await chat.send("one")
        await chat.send("two")
        assert on_disk() == chat.screen.session.conversation.turns
        await chat.press("f5")
        await chat.until("ready")
        await chat.send("/undo")
        assert [turn.question for turn in on_disk()] == ["one"]
        await chat.send("/new")
        await chat.send("three")
    assert [one.title for one in history.list_chats()] == ["three", "one"]
    assert len(history.load_chat(1).conversation.all_turns) == 3


@pytest.mark.asyncio
async def test_what_was_changed_is_kept_without_another_message(history: ChatHistory) -> None:
    chat = Chat()
    kept(chat, history)
    async with chat:
        await chat.send("one")
        await chat.send("/system be brief")
        await chat.send("/set top_k 7")
        with closing(ChatHistory.open()) as other:
            read = other.load_chat(other.find_last_id())
        assert (read.conversation.system, read.settings.sampling.top_k) == ("be brief", 7)


@pytest.mark.asyncio
async def test_a_message_is_there_before_the_engine_is_asked(history: ChatHistory) -> None:
    asked: list[str] = []

    def script() -> Script:
        asked.extend(turn.question for turn in on_disk())
        return said()

    chat = Chat(ScriptedEngine(script))
    kept(chat, history)
    async with chat:
        await chat.send("hello")
    assert asked == ["hello"]


@pytest.mark.asyncio
async def test_an_answer_is_saved_by_the_thread_that_hears_it(
    history: ChatHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, threads = Gate(), set[str]()

    def long() -> Script:
        whole = answer([f"word{n} " for n in range(300)])
        return [*whole[:-1], gate, whole[-1]]

    real = ChatHistory.append_events

    def go_on(self: ChatHistory, *arguments: object) -> None:
        threads.add(threading.current_thread().name)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ChatHistory, "append_events", go_on)
    chat = Chat(ScriptedEngine(long))
    kept(chat, history)
    async with chat:
        chat.screen.composer.replace_text("count")
        await chat.press("enter")
        await wait_until(chat.pilot, lambda: "word299" in chat.screen.transcript.plain_text)
        assert len(on_disk()[0].answer.split()) > 300 - 64
        assert on_disk()[0].finish_reason is None
        assert threads == {"localspec"}, "the engine host's thread"
        gate.set()
        await chat.until("ready")
    assert on_disk()[0].finish_reason == "eog"


@pytest.mark.asyncio
async def test_leaving_in_the_middle_keeps_what_came(history: ChatHistory) -> None:
    chat = Chat(ScriptedEngine(lambda: [*answer(["a ", "b ", "c "])[:-1], Gate()]))
    kept(chat, history)
    async with chat:
        chat.screen.composer.replace_text("hello")
        await chat.press("enter")
        await wait_until(chat.pilot, lambda: "b c" in chat.screen.transcript.plain_text)
    (turn,) = on_disk()
    assert (turn.answer, turn.finish_reason) == ("a b c ", None)
    with pytest.raises(InUseError):  # in memory it may go on: no other window may write it
        history.acquire_lock(history.find_last_id())
    chat.screen.session.recorder.close()
    history.acquire_lock(history.find_last_id()).close()


@pytest.mark.asyncio
async def test_a_chat_that_another_window_has(history: ChatHistory) -> None:
    first = Chat()
    kept(first, history)
    async with first:
        await first.send("one")
    first.screen.session.recorder.close()
    chat = history.find_last_id()
    with closing(history.acquire_lock(chat)):
        second = Chat()
        second.screen.session = ChatSession(PAIR, 1, history, history.load_chat(chat))
        async with second:
            assert second.questions == ["one"]
            await second.send("two")
            assert "another window" in second.shown
            assert (second.typed, second.questions) == ("two", ["one"])
            await second.press("f5")
    assert len(on_disk()) == 1


@pytest.mark.asyncio
async def test_a_place_that_cannot_be_is_said_once() -> None:
    paths.chats_file().parent.parent.mkdir()
    paths.chats_file().parent.write_text("a file")
    chats = load_options().chats
    assert chats is not None and chats.history is None
    assert ["Chats are not saved" in notice.message for notice in chats.take_notices()] == [True]
    assert not chats.take_notices()
    chat = Chat(chats=chats)
    async with chat:
        await chat.send("one")
        assert "not saved" in chat.shown


@pytest.mark.asyncio
async def test_private(monkeypatch: pytest.MonkeyPatch) -> None:
    file = paths.data_dir() / "config.toml"
    file.parent.mkdir()
    file.write_text("[chats]\nkeep = false\n")
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(file))
    chats = load_options().chats
    assert chats is not None and chats.history is None and not paths.chats_file().exists()
