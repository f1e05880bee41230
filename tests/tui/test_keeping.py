"""A chat is saved while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import pytest

from localspec import paths
from localspec.chat.conversation import Turn
from localspec.chat.history import ChatHistory
from localspec.chat.session import ChatSession
from localspec.errors import InUseError
from localspec.tui import app
from tests.support.scenes import PAIR
from tests.support.scripted_engine import Gate, Script, ScriptedEngine, answer, wait_until
from tests.tui.screens.test_chat import Chat, said

pytestmark = pytest.mark.asyncio


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


async def test_a_place_that_cannot_be_is_said_once() -> None:
    paths.chats_file().parent.parent.mkdir()
    paths.chats_file().parent.write_text("a file")
    chats = app.load_options().chats
    assert chats is not None and chats.history is None
    assert ["Chats are not saved" in notice.message for notice in chats.take_notices()] == [True]
    assert not chats.take_notices()
    chat = Chat(chats=chats)
    async with chat:
        await chat.send("one")
        assert "not saved" in chat.shown


async def test_private(monkeypatch: pytest.MonkeyPatch) -> None:
    file = paths.data_dir() / "config.toml"
    file.parent.mkdir()
    file.write_text("[chats]\nkeep = false\n")
    monkeypatch.setenv("LOCALSPEC_CONFIG", str(file))
    chats = app.load_options().chats
    assert chats is not None and chats.history is None and not paths.chats_file().exists()
