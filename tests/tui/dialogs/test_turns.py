"""The sheet of turns: nothing is lost by editing, answering again or taking back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from localspec.protocol.wire import ChatMessage
from localspec.tui.dialogs.turns import TurnsScreen
from tests.support.app_driver import Chat, other, said
from tests.support.scenes import settled
from tests.support.scripted_engine import ScriptedEngine


def answers(chat: Chat) -> list[str]:
    return [turn.answer for turn in chat.screen.session.conversation.turns]


@asynccontextmanager
async def asked() -> AsyncIterator[Chat]:
    async with Chat(ScriptedEngine(said, said, said, other, other)) as chat:
        for question in ("one", "two", "three"):
            await chat.send(question)
        yield chat


async def test_an_earlier_question_is_edited_or_answered_again() -> None:
    async with Chat() as chat:
        await chat.press("f8", "enter", "r", "right", "c")  # there is none yet
        assert isinstance(chat.app.screen, TurnsScreen)
    async with asked() as chat:
        await chat.press("f8", "up", "r")
        await chat.until("ready")
        assert chat.questions == ["one", "two"] and answers(chat)[-1] == "Otherwise."
        turns = chat.screen.session.conversation.all_turns
        assert {turn.attempt for turn in turns if turn.parent == 1} == {0, 1}
        assert "ctx 28 / 8.2k" not in chat.shown  # the figures are those of the branch
        await chat.press("f8", "left", "escape")
        await chat.sees("ctx 28 / 8.2k")
        await chat.press("f8", "up", "up", "enter")
        assert chat.on_top and chat.typed == "one" and not chat.questions
        await chat.sees("ctx 0 / 8.2k")
        await chat.press("f4")
        await chat.sees("context: 0 of 8,192 tokens")
        await chat.press("escape", "ctrl+a")
        await chat.send("first")
        assert chat.questions == ["first"] and answers(chat) == ["Otherwise."]
        assert len(chat.screen.transcript.turns) == 1 and "You · 2 of 2" in chat.shown


async def test_the_other_branch_is_shown_and_goes_on() -> None:
    async with asked() as chat:
        await chat.press("f8", "up", "e")
        await chat.send("second")
        assert chat.questions == ["one", "second"]
        await chat.press("f8", "left", "escape")
        assert chat.questions == ["one", "two", "three"]
        assert answers(chat) == ["Well, hello."] * 3
        assert len(chat.screen.transcript.turns) == 3 and "You · 1 of 2" in chat.shown
        await chat.press("f8", "up", "right", "escape")
        assert chat.questions == ["one", "second"]


async def test_what_was_taken_back_comes_again() -> None:
    async with asked() as chat:
        await chat.press("f6")
        assert chat.questions == ["one", "two"]
        await chat.press("f8")
        await settled(chat.pilot)
        await chat.sees("undone: three")
        await chat.press("down", "right", "escape")
        assert chat.questions == ["one", "two", "three"]


async def test_editing_from_the_token_view_has_the_keys_of_typing() -> None:
    async with asked() as chat:
        await chat.press("f2")
        assert "↑↓ round" in chat.shown and "enter send" not in chat.shown
        await chat.press("f6")
        await settled(chat.pilot)
        assert chat.typed == "three"
        assert "enter send" in chat.shown and "↑↓ round" not in chat.shown


async def test_a_file_goes_with_the_next_question(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("seven")
    async with Chat() as chat:
        await chat.send(f"/read {tmp_path / 'notes.txt'}")
        await chat.sees("+ notes.txt, 5 characters")
        await chat.send("what?")
        conversation = chat.screen.session.conversation
        assert "+ notes.txt" in chat.shown and "/read -" not in chat.shown
        assert conversation.messages()[-1] == ChatMessage(
            "user", "notes.txt:\n```\nseven\n```\n\nwhat?"
        )
        await chat.press("f6")
        assert chat.typed == "what?" and "/read -" in chat.shown
        await chat.send("/read -")
        assert "/read -" not in chat.shown
