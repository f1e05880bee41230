"""Kept tokens of answers belong to the client, the chat and the sampling that made them."""

from typing import Any

import pytest
from msgspec.structs import replace

from localspec.chat.settings import ChatSettings
from localspec.protocol.events import Token
from localspec.protocol.wire import ChatMessage, SamplingParams, ToolCall
from localspec.serve.request_options import Constraint
from localspec.serve.served_model import AnswerTokens, answer_places
from tests.serve.conftest import Served

HI = ChatMessage("user", "Hi?")
SAID = ChatMessage("assistant", "the")
AGAIN = ChatMessage("user", "Again.")
PLAIN = ("key", ChatSettings().sampling, Constraint())
TOKENS = [
    Token(5, "t", "accepted"),
    Token(6, "he", "accepted"),
]


def test_an_answer_has_its_own_tokens_in_the_next_prompt() -> None:
    kept = AnswerTokens()
    kept.remember(answer_places([HI], PLAIN)[-1], "the", TOKENS)

    chat = [HI, SAID, AGAIN]
    found = kept.add_to(chat, answer_places(chat, PLAIN))

    assert [message.tokens for message in found] == [(), (5, 6), ()]


def test_an_answer_with_calls_has_all_of_its_tokens_in_the_next_prompt() -> None:
    """Clients write the arguments anew, and leave out the thinking or not."""
    call = ToolCall("1", "f", '{"a": 1, "b": 2}')
    kept = AnswerTokens()
    kept.remember(answer_places([HI], PLAIN)[-1], "", TOKENS, [call])

    for arguments, expected in (
        ('{"a": 1, "b": 2}', (5, 6)),
        ('{"b":2,"a":1}', (5, 6)),
        ('{"a": 1}', ()),
        ("no JSON", ()),
    ):
        again = replace(call, id="2", arguments=arguments)
        said = ChatMessage("assistant", "", tool_calls=(again,), reasoning="hm")
        chat = [HI, said, ChatMessage("tool", "x", tool_call_id="2")]
        found = kept.add_to(chat, answer_places(chat, PLAIN))
        assert [message.tokens for message in found] == [(), expected, ()]


@pytest.mark.parametrize(
    ("before", "maker"),
    [
        ([HI], ("another", *PLAIN[1:])),
        ([HI], ("key", SamplingParams(logit_bias=((5, -100.0),)), Constraint())),
        ([HI], ("key", PLAIN[1], Constraint(grammar='root ::= "the"'))),
        ([HI], ("key", PLAIN[1], Constraint(json_schema="{}"))),
        ([ChatMessage("user", "x")], PLAIN),
        ([ChatMessage("system", "s"), HI], PLAIN),
    ],
    ids=["client", "bias", "grammar", "schema", "question", "system prompt"],
)
def test_nobody_else_gets_them(before: list[ChatMessage], maker: Any) -> None:
    kept = AnswerTokens()
    kept.remember(answer_places(before, maker)[-1], "the", TOKENS)

    chat = [HI, SAID, AGAIN]
    found = kept.add_to(chat, answer_places(chat, PLAIN))

    assert [message.tokens for message in found] == [(), (), ()]
    assert kept.find(answer_places([HI], PLAIN)[-1], "the") == ()


def test_thinking_and_ids_that_clients_leave_out_are_no_part_of_the_place() -> None:
    call = ToolCall("1", "f", "{}")
    full = ChatMessage("assistant", "a", tool_calls=(call,), reasoning="hm")
    short = replace(full, tool_calls=(replace(call, id="2"),), reasoning="")

    assert answer_places([HI, full], PLAIN) == answer_places([HI, short], PLAIN)


def test_the_newest_answer_of_a_place_counts() -> None:
    kept = AnswerTokens()
    place = answer_places([HI], PLAIN)[-1]
    kept.remember(place, "the", TOKENS)
    newest = [replace(TOKENS[0], text="the", id=9)]
    kept.remember(place, "the", newest)

    assert kept.find(place, "the") == (9,)
    assert kept._n_tokens == 1


def test_another_clients_answer_does_not_change_a_prompt(chatty: Served) -> None:
    """It is spelled with other tokens than the tokenizer's."""
    text = "the"
    chat = [{"role": "user", "content": "Hi?"}]
    history = [*chat, {"role": "assistant", "content": text}, *chat]

    def ask(messages: Any, key: str, **more: Any) -> Any:
        body = {"messages": messages, "max_tokens": 8, "temperature": 0} | more
        headers = {"Authorization": f"Bearer {key}"}
        return chatty.post("/v1/chat/completions", body, headers).json

    n_before = ask(history, "b")["usage"]["prompt_tokens"]
    canonical = chatty.post("/tokenize", {"content": text}).json["tokens"]
    biases = {str(token): -100 for token in canonical}
    made = ask(chat, "a", grammar=f'root ::= "{text}"', logit_bias=biases)
    assert made["choices"][0]["message"]["content"] == text
    for key in ("a", "b"):
        assert ask(history, key)["usage"]["prompt_tokens"] == n_before
