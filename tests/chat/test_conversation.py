"""Turns of a chat, and what the engine is asked for the next one."""

import pytest

from localspec.chat.conversation import Conversation
from localspec.protocol.events import Finished, Prefill, Round, Times, Token
from localspec.protocol.wire import Message


def said(text: str) -> Round:
    return Round(1, "model", "", 2, 1, (Token(1, text, "accepted"),), Times(1, 1, 1))


def chat(*turns: tuple[str, str], system: str = "") -> Conversation:
    conversation = Conversation(5, system)
    for question, answer in turns:
        conversation.ask(question)
        conversation.hear([said(answer), Finished("eog")])
    return conversation


def test_an_answer_grows_and_ends() -> None:
    conversation = chat()
    conversation.ask("hi")
    conversation.hear([Prefill(1, 1, 0), said("Hel")])
    turn = conversation.hear([said("lo"), Finished("stop", "!")])
    assert (turn.answer, turn.reason, len(turn.rounds), len(turn.events)) == (
        "Hello!",
        "stop",
        2,
        4,
    )


def test_a_chat_model_is_asked_with_every_turn_so_far() -> None:
    conversation = chat(("a", "b"), system="be brief")
    conversation.ask("c")
    assert conversation.messages() == (
        Message("system", "be brief"),
        Message("user", "a"),
        Message("assistant", "b"),
        Message("user", "c"),
    )


def test_a_completion_model_is_asked_with_one_text() -> None:
    conversation = chat(("def f():", "\n    pass"), ("x = ", "1\n"))
    conversation.ask("y")
    assert conversation.text() == "def f():\n    pass\nx = 1\ny"


def test_an_empty_question_goes_on_with_the_text_as_it_is() -> None:
    conversation = chat(("def f(", "x"))
    conversation.ask("")
    assert conversation.text() == "def f(x"


def test_a_retry_differs_and_a_replay_does_not() -> None:
    one, same = chat(("a", "b")), chat(("a", "b"))
    first = one.answer_seed
    assert first == same.answer_seed
    one.again()
    assert one.answer_seed != first and one.turns[-1].question == "a" and not one.turns[-1].answer


def test_every_turn_has_a_seed_of_its_own() -> None:
    conversation = chat(("a", "b"))
    first = conversation.answer_seed
    conversation.ask("a")
    assert 0 <= conversation.answer_seed < 2**63 and conversation.answer_seed != first


def test_the_last_turn_can_be_taken_back() -> None:
    conversation = chat(("a", "b"), ("c", "d"))
    assert conversation.take_back().question == "c"
    assert [turn.question for turn in conversation.turns] == ["a"]


def test_there_is_nothing_to_take_back_from_an_empty_chat() -> None:
    with pytest.raises(IndexError):
        chat().take_back()
    with pytest.raises(IndexError):
        chat().again()
