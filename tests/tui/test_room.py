"""A chat that outgrows its context: asked, told, never silent."""

from __future__ import annotations

import pytest

from localspec.tui.dialogs.choices import ContextFullScreen
from tests.support.scripted_engine import ScriptedEngine, answer, wait_until
from tests.tui.screens.test_chat import Chat, said

pytestmark = pytest.mark.asyncio

N_CTX = 8192


def short(messages: int) -> int:
    """Two turns fit, three do not."""
    return N_CTX if messages > 4 else 100 * messages


def growing() -> ScriptedEngine:
    return ScriptedEngine(said, said, said, said, sizes=short)


async def full(chat: Chat) -> None:
    await chat.send("one")
    await chat.send("two")
    chat.screen.composer.replace_text("three")
    await chat.press("enter")
    await wait_until(chat.pilot, lambda: isinstance(chat.app.screen, ContextFullScreen))
    await chat.pilot.pause()


async def test_the_oldest_turns_are_left_out() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        assert "2 older turns" in chat.shown and "8,192 of 8,192" in chat.shown
        await chat.press("enter")
        await chat.until("ready")
        assert [m.content for m in engine.asked[-1].messages] == ["two", "Well, hello.", "three"]
        assert "1 old turn left out" in chat.shown and "no longer sent to the model" in chat.shown
        assert chat.questions == ["one", "two", "three"]


async def test_a_summary_stands_for_them() -> None:
    engine = ScriptedEngine(said, said, lambda: answer(["They ", "greeted."]), said, sizes=short)
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("down", "enter")
        await chat.until("ready")
        first = engine.asked[-1].messages[0]
        assert first.role == "system" and "They greeted." in first.content
        assert [t.answer for t in chat.screen.session.conversation.turns] == ["Well, hello."] * 3


async def test_nothing_is_left_out_against_ones_will() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("escape")
        await chat.until("ready")
        assert len(engine.asked) == 2
        assert (chat.typed, chat.questions) == ("three", ["one", "two"])
        assert "exceeds the context" in chat.shown


async def test_once_for_all() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        await chat.press("a")
        await chat.until("ready")
        await chat.send("four")
        assert len(engine.asked) == 4 and chat.on_top


async def test_quitting_does_not_wait_for_the_choice() -> None:
    engine = growing()
    async with Chat(engine) as chat:
        await full(chat)
        question = chat.runner._overflow_request
    assert question is not None and question.decision == "stop"
