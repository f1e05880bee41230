"""Replay of an answer: its text as the chat showed it, with the recorded probabilities."""

import pytest
from msgspec.structs import replace

from localspec.protocol.events import Round
from tests.support.app_driver import Chat, said
from tests.support.scripted_engine import Script, ScriptedEngine, ready


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
        await chat.sees(f"Count to 20.{space}Well, hello.")
