"""Replay of an answer: its text as the chat showed it, with the recorded probabilities."""

import pytest
from msgspec.structs import replace

from localspec.protocol.events import Round
from localspec.tui.screens.replay import ReplayScreen
from localspec.tui.widgets.speculation_panel import SpeculationPanel
from tests.support.app_driver import Chat, said
from tests.support.scripted_engine import Script, ScriptedEngine, answer, ready


def unscored() -> Script:
    """As an engine answers without being asked for probabilities."""
    for event in said():
        if isinstance(event, Round):
            plain = (
                replace(t, p_target=None, rank=None, alternatives=())
                for t in event.tokens
            )
            event = replace(event, tokens=tuple(plain))  # noqa: PLW2901
        yield event


async def test_replay_has_the_probabilities_that_the_token_view_computed() -> None:
    async with Chat(ScriptedEngine(unscored)) as chat:
        await chat.send("hi")
        await chat.press("f7", "end")
        await chat.sees("Probabilities not recorded")
        await chat.press("escape", "tab")
        await chat.sees("target probability 50 %")
        await chat.press("tab", "f7", "end")
        await chat.sees("target probability 50 %")


@pytest.mark.parametrize(("chats", "space"), [(True, " "), (False, "")])
async def test_replay_keeps_question_and_answer_of_a_chat_apart(
    chats: bool, space: str
) -> None:
    async with Chat(ScriptedEngine(said, ready=ready(chats=chats))) as chat:
        await chat.send("Count to 20.")
        await chat.press("f7", "end")
        await chat.pilot.resize_terminal(90, 30)  # Without the panel beside it.
        await chat.sees(f"Count to 20.{space}Well, hello.")


ANSWER = [f"word{n} " for n in range(13)]  # Rounds of 1, 4, 4 and 4 tokens.


def spoken() -> Script:
    return answer(ANSWER)


async def test_a_replay_plays_by_itself_to_the_end() -> None:
    async with Chat(ScriptedEngine(spoken)) as chat:
        await chat.send("hi")
        await chat.press("f7")
        await chat.sees("Replay round", "space pause")
        await chat.press("plus", "plus", "plus")
        await chat.sees("round 4 of 4 · speed ×8", "word12", "space play")


async def test_a_replay_pauses_steps_and_goes_to_its_ends() -> None:
    async with Chat(ScriptedEngine(spoken)) as chat:
        await chat.send("hi")
        await chat.press("f7", "home")
        await chat.sees("round 1 of 4", "space play")
        await chat.press("right")
        await chat.sees("round 2 of 4", "word4")
        assert "word5" not in chat.shown
        await chat.press("left", "left", "left")
        await chat.sees("round 1 of 4")
        await chat.press("end")
        await chat.sees("round 4 of 4", "word12")
        await chat.press("space")
        await chat.sees("space pause")
        await chat.press("space")
        await chat.sees("space play")


async def test_a_replay_shows_each_guess_before_its_result() -> None:
    async with Chat(ScriptedEngine(spoken)) as chat:
        await chat.send("hi")
        await chat.press("f7", "minus", "minus", "home", "space")
        screen = chat.top(ReplayScreen)
        await chat.wait(lambda: screen._token_text._guess.unchecked)
        await chat.sees("word1 word2 word3 word4 ? never", "being checked")
        await chat.press("right")
        await chat.sees("word4")
        assert "never" not in chat.shown


async def test_the_panel_of_a_replay_is_there_at_a_hundred_columns() -> None:
    async with Chat(ScriptedEngine(spoken)) as chat:
        await chat.send("hi")
        assert not chat.screen.query_one(SpeculationPanel).display
        await chat.press("f7", "end")
        assert chat.top(ReplayScreen).query_one(SpeculationPanel).display
