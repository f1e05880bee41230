"""OpenAI's Responses API, with the official client."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from localspec.protocol.wire import ChatMessage, ToolCall
from localspec.serve import responses
from tests.serve.conftest import Served
from tests.support.zoo import CHAT_TEXT, THOUGHT_TEXT

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def test_a_response(chatty: Served, client: OpenAI) -> None:
    answer = client.responses.create(model="any", input="Hi?", instructions="Be kind.")
    assert (answer.output_text, answer.status, answer.model) == (
        CHAT_TEXT,
        "completed",
        "chatty",
    )
    (message,) = answer.output
    assert (
        message.type == "message"
        and message.id.startswith("msg_")
        and answer.usage is not None
    )
    assert (
        answer.usage.total_tokens
        == answer.usage.input_tokens + answer.usage.output_tokens
    )
    chat: Any = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi?"},
    ]
    same = client.chat.completions.create(model="any", messages=chat)
    assert (
        same.usage is not None and same.usage.prompt_tokens == answer.usage.input_tokens
    )


def test_a_stream_of_a_response(client: OpenAI) -> None:
    events = list(client.responses.create(model="any", input="Hi?", stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
    ]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    ends = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds[-4:] == ends
    assert [event.sequence_number for event in events] == list(range(len(events)))
    texts = [
        event.delta for event in events if event.type == "response.output_text.delta"
    ]
    assert "".join(texts) == CHAT_TEXT
    with client.responses.stream(model="any", input="Hi?") as stream:
        answer = stream.get_final_response()
    assert answer.output_text == CHAT_TEXT and answer.usage is not None


def test_limits_formats_and_logprobs(client: OpenAI) -> None:
    options: Any = {"max_output_tokens": 8, "include": ["message.output_text.logprobs"]}
    short = client.responses.create(model="any", input="Hi?", top_logprobs=2, **options)
    assert short.status == "incomplete" and CHAT_TEXT.startswith(short.output_text)
    assert (
        short.incomplete_details
        and short.incomplete_details.reason == "max_output_tokens"
    )
    part: Any = short.output[0].to_dict()["content"]
    logprobs = part[0]["logprobs"]
    assert "".join(item["token"] for item in logprobs) == short.output_text
    assert all(len(item["top_logprobs"]) == 2 for item in logprobs)
    closed = {"required": ["ok"], "additionalProperties": False}
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}} | closed
    form: Any = {
        "format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}
    }
    shaped = client.responses.create(model="any", input="Hi?", text=form)
    assert json.loads(shaped.output_text).keys() == {"ok"}


def test_a_call_and_its_result(caller: Served) -> None:
    web: Any = {"type": "web_search"}  # an agent's tool that only OpenAI runs
    with caller.client() as client:
        given: Any = {"model": "any", "tools": [WEATHER, web]}
        messages: list[Any] = [{"role": "user", "content": "Rain?"}]
        answer = client.responses.create(input=messages, **given)
        message, call = answer.output
        assert answer.output_text == "I look." and message.type == "message"
        assert call.type == "function_call" and call.name == "weather"
        assert json.loads(call.arguments) == {"city": "Rome"}
        with client.responses.stream(input=messages, **given) as stream:
            streamed = stream.get_final_response().output[1]
        assert streamed.type == "function_call" and streamed.arguments == call.arguments
        messages += [item.to_dict() for item in answer.output]
        messages.append(
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        )
        again = client.responses.create(input=messages, **given)
    assert again.usage is not None and answer.usage is not None
    read = answer.usage.input_tokens + answer.usage.output_tokens
    assert again.usage.input_tokens > read, "the call and its result are in the prompt"


THOUGHT = {
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "a plan"}],
}


def test_items_become_the_messages_of_a_chat() -> None:
    """System texts are one message; so are an answer and its calls."""
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hi?"},
        THOUGHT,
        {"role": "assistant", "content": "I look."},
        *({**call, "call_id": call_id} for call_id in "ab"),
        {"type": "function_call_output", "call_id": "a", "output": "sunny"},
    ]
    given = {"instructions": "Be kind.", "input": items}
    assert responses.parse_chat(given).messages == (
        ChatMessage("system", "Be kind.\n\nBe brief."),
        ChatMessage("user", "Hi?"),
        ChatMessage(
            "assistant",
            "I look.",
            tool_calls=(ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")),
            reasoning="a plan",
        ),
        ChatMessage("tool", "sunny", tool_call_id="a"),
    )


def test_thinking_is_an_item(thinker: Served) -> None:
    thought, _, visible = THOUGHT_TEXT.removeprefix("<think>").partition("</think>")
    with thinker.client() as client:
        whole = client.responses.create(model="any", input="Hi?")
        with client.responses.stream(model="any", input="Hi?") as stream:
            streamed = stream.get_final_response()
        for answer in (whole, streamed):
            reasoning, _ = answer.output
            assert reasoning.type == "reasoning" and reasoning.content
            assert (
                reasoning.content[0].text == thought and answer.output_text == visible
            )
        hi = {"role": "user", "content": "Hi?"}
        again: Any = [hi, *(item.to_dict() for item in whole.output), hi]
        assert client.responses.create(model="any", input=again).output_text == visible


def test_wrong_requests_are_refused(client: OpenAI) -> None:
    options: Any
    for options, param in [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0]",
        ),
        ({"input": [{"type": "function_call", "name": ""}]}, "input[0].name"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
    ]:
        with pytest.raises(openai.BadRequestError) as error:
            client.responses.create(**{"model": "any", "input": "Hi?"} | options)
        assert (error.value.param or "").startswith(param)


def test_errors_name_the_fields_of_responses(
    client: OpenAI, target: Served, chatty: Served
) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "a", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model="any", input="Hi?", text=form)
    assert error.value.param == "text.format"
    assert target.post("/v1/responses", {"input": "Hi?"}).error["param"] == "input"
    for n_words in (5_000, 500_000):  # counted by the engine, and refused at once
        too_long = chatty.post("/v1/responses", {"input": "word " * n_words})
        assert too_long.error["code"] == "context_length_exceeded"
        assert too_long.error["param"] == "input"


def test_a_reasoning_item_belongs_to_the_answer_after_it() -> None:
    def parse(*items: dict[str, Any]) -> list[tuple[str, str]]:
        chat = responses.parse_chat({"input": [user, *items]})
        return [(message.content, message.reasoning) for message in chat.messages[1:]]

    user = {"role": "user", "content": "Why?"}
    text = {"role": "assistant", "content": "So."}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
    planned = ("So.", "a plan")
    plain = ("So.", "")
    asked = ("Why?", "")
    assert parse(THOUGHT, text, user, text) == [planned, asked, plain]
    both = [("", "a plan"), ("sunny", ""), planned]
    assert parse(THOUGHT, call, output, THOUGHT, text) == both
    sealed: dict[str, Any] = {
        "type": "reasoning", "summary": [], "encrypted_content": "x", "content": None,
    }  # fmt: skip
    assert parse(THOUGHT, sealed, text) == [planned]
    assert [parse(one) for one in (THOUGHT, sealed)] == [[], []], (
        "thinking alone is no answer"
    )
    assert [content for content, _ in parse(text, THOUGHT, user)] == ["So.", "Why?"]


@pytest.mark.parametrize(
    "metadata",
    [
        {"a": "m" * 513},
        {"a" * 65: "m"},
        {f"key {i}": "m" for i in range(17)},
        {"a": "m" * 8_000_000},
    ],
)
def test_metadata_is_limited_as_openai_limits_it(chatty: Served, metadata: Any) -> None:
    """Most events of a stream repeat it."""
    body = {"input": "Hi?", "max_output_tokens": 1, "stream": True}
    refused = chatty.post("/v1/responses", body | {"metadata": metadata})
    largest = {"a" * 64: "m" * 512}
    answered = chatty.post("/v1/responses", body | {"metadata": largest})

    assert refused.status == 400
    assert refused.error["param"] == "metadata"
    assert json.dumps(largest, separators=(",", ":")).encode() in answered.body
