"""The sheet of turns: nothing is lost by editing, answering again or taking back."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from localspec.protocol.wire import ChatMessage
from localspec.tui.dialogs.turns import TurnsScreen
from tests.support.app_driver import Chat, other, said
from tests.support.scenes import settled
from tests.support.scripted_engine import ScriptedEngine


def answers(chat: Chat) -> list[str]:
    return [turn.answer for turn in chat.screen.session.conversation.turns]


@pytest.fixture
async def chat() -> AsyncIterator[Chat]:
    """A chat with three questions; what is asked next has another answer."""
    async with Chat(ScriptedEngine(said, said, said, other, other)) as asked:
        for question in ("one", "two", "three"):
            await asked.send(question)
        yield asked


async def test_without_turns_the_keys_of_the_sheet_do_nothing() -> None:
    async with Chat() as empty:
        await empty.press("f8", "enter", "r", "right", "c")
        assert empty.is_on(TurnsScreen)


async def test_an_earlier_question_is_answered_again_on_a_new_branch(
    chat: Chat,
) -> None:
    await chat.press("f8", "up", "r")
    await chat.until("ready")
    assert chat.questions == ["one", "two"]
    assert answers(chat)[-1] == "Otherwise."
    turns = chat.screen.session.conversation.all_turns
    assert {turn.attempt for turn in turns if turn.parent == 1} == {0, 1}


async def test_the_figures_are_those_of_the_branch_that_is_shown(chat: Chat) -> None:
    await chat.press("f3")  # The panel leaves the last line room for figures.
    await chat.press("f8", "up", "r")
    await chat.until("ready")
    assert "ctx 28 / 8.2k" not in chat.shown
    await chat.press("f8", "left", "escape")
    await chat.sees("ctx 28 / 8.2k")


async def test_the_first_question_is_edited_in_an_empty_chat(chat: Chat) -> None:
    await chat.press("f8", "up", "up", "enter")
    assert chat.on_top
    assert chat.typed == "one"
    assert not chat.questions
    await chat.sees("ctx 0 / 8.2k")
    await chat.press("f4")
    await chat.sees("context: 0 of 8,192 tokens")


async def test_an_edited_question_begins_a_branch(chat: Chat) -> None:
    await chat.press("f8", "up", "up", "enter")
    await chat.press("ctrl+a")
    await chat.send("first")
    assert chat.questions == ["first"]
    assert answers(chat) == ["Otherwise."]
    assert len(chat.screen.transcript.turns) == 1
    assert "You · 2 of 2" in chat.shown


async def test_the_other_branch_is_shown_and_goes_on(chat: Chat) -> None:
    await chat.press("f8", "up", "e")
    await chat.send("second")
    assert chat.questions == ["one", "second"]
    await chat.press("f8", "left", "escape")
    assert chat.questions == ["one", "two", "three"]
    assert answers(chat) == ["Well, hello."] * 3
    assert len(chat.screen.transcript.turns) == 3
    assert "You · 1 of 2" in chat.shown
    await chat.press("f8", "up", "right", "escape")
    assert chat.questions == ["one", "second"]


async def test_what_was_taken_back_comes_again(chat: Chat) -> None:
    await chat.press("f6")
    assert chat.questions == ["one", "two"]
    await chat.press("f8")
    await settled(chat.pilot)
    await chat.sees("undone: three")
    await chat.press("down", "right", "escape")
    assert chat.questions == ["one", "two", "three"]


async def test_editing_from_the_token_view_has_the_keys_of_typing(chat: Chat) -> None:
    await chat.press("tab")
    assert "↑↓ round" in chat.shown
    assert "enter send" not in chat.shown
    await chat.press("f6")
    await settled(chat.pilot)
    assert chat.typed == "three"
    assert "enter send" in chat.shown
    assert "↑↓ round" not in chat.shown


@pytest.fixture
async def with_file(tmp_path: Path) -> AsyncIterator[Chat]:
    """A chat with an attached file."""
    (tmp_path / "notes.txt").write_text("seven")
    async with Chat() as empty:
        await empty.send(f"/read {tmp_path / 'notes.txt'}")
        await empty.sees("+ notes.txt, 5 characters")
        yield empty


async def test_a_file_goes_with_the_next_question(with_file: Chat) -> None:
    await with_file.send("what?")
    assert "+ notes.txt" in with_file.shown
    assert "/read -" not in with_file.shown
    messages = with_file.screen.session.conversation.messages()
    content = "notes.txt:\n```\nseven\n```\n\nwhat?"
    assert messages[-1] == ChatMessage("user", content)


async def test_a_file_comes_back_with_its_question_and_can_be_removed(
    with_file: Chat,
) -> None:
    await with_file.send("what?")
    await with_file.press("f6")
    assert with_file.typed == "what?"
    assert "/read -" in with_file.shown
    await with_file.send("/read -")
    assert "/read -" not in with_file.shown
