"""Parts of messages that are no text: a line in a history, refused in a question."""

import json
from typing import Any

import pytest

from localspec.protocol.wire import ChatMessage, ToolCall
from localspec.serve import messages, prompts, responses
from localspec.serve.api_error import ApiError

PICTURE = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
PDF = {
    "type": "document",
    "title": "Plan",
    "source": {"type": "base64", "media_type": "application/pdf", "data": "AA=="},
}
NOTE = {"type": "document", "title": "Plan", "source": {"type": "text", "data": "abc"}}
BLOCKS = {"type": "content", "content": [{"type": "text", "text": "abc"}, PICTURE]}
FOUND = {
    "type": "search_result",
    "title": "Home",
    "source": "https://example.org",
    "content": [{"type": "text", "text": "found"}],
}
BLOCK_TEXTS: list[tuple[dict[str, Any], str]] = [
    ({"type": "tool_reference", "tool_name": "get_weather"}, "[tool available: get_weather]"),
    (PICTURE, "[image: not read by this model]"),
    (PDF, "[document: not read by this model]"),
    (NOTE, "Plan\nabc"),
    ({"type": "document", "source": BLOCKS}, "abc"),
    (FOUND, "Home\nhttps://example.org\nfound"),
    ({"type": "of_tomorrow", "x": [1]}, "[of_tomorrow: not read by this model]"),
    ({"type": "document", "source": {"type": {}}}, "[document: not read by this model]"),
    ({}, "[part: not read by this model]"),
    ({"type": "text", "text": "control"}, "control"),
]  # fmt: skip
CALL = {"type": "tool_use", "id": "t1", "name": "find", "input": {}}


def parse_messages(*given: dict[str, Any], counted: bool = False) -> list[ChatMessage]:
    parse = messages.parse_counted_chat if counted else messages.parse_chat
    return list(parse({"messages": list(given)}).messages)


def parse_openai(*given: dict[str, Any]) -> list[ChatMessage]:
    return list(prompts.parse_chat({"messages": list(given)}).messages)


def parse_input(*given: dict[str, Any]) -> list[ChatMessage]:
    return list(responses.parse_chat({"input": list(given)}).messages)


@pytest.mark.parametrize(("block", "text"), BLOCK_TEXTS)
def test_a_block_of_a_result_becomes_text(block: dict[str, Any], text: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    chat = parse_messages(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [result]},
    )
    assert chat[-1].role == "tool"
    assert chat[-1].content == text


@pytest.mark.parametrize(("block", "text"), BLOCK_TEXTS)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_a_block_of_an_earlier_message_becomes_text(
    role: str, block: dict[str, Any], text: str
) -> None:
    chat = parse_messages(
        {"role": "user", "content": "Hi"},
        {"role": role, "content": [block]},
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "More"},
    )
    assert text in chat[1].content


def test_a_picture_in_the_question_is_refused_by_its_place() -> None:
    question = {"role": "user", "content": [{"type": "text", "text": "See:"}, PICTURE]}
    with pytest.raises(ApiError, match="only text") as refused:
        parse_messages({"role": "user", "content": "Hi"}, question)
    assert refused.value.param == "messages[1].content[1].type"
    (counted,) = parse_messages(question, counted=True)
    assert counted.content == "See:\n\n[image: not read by this model]"


def test_what_a_server_ran_is_a_line_of_the_answer() -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    error = {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": error}
    chat = parse_messages(
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": [search, result, {"type": "text", "text": "So."}],
        },
        {"role": "user", "content": "More"},
    )
    assert chat[1].content.split("\n") == [
        "",
        "[server_tool_use: not read by this model]",
        "",
        "[web_search_tool_result: not read by this model]",
        "So.",
    ]


@pytest.mark.parametrize("given", [None, [1], "x", 3])
def test_the_input_of_an_earlier_call_may_be_no_object(given: Any) -> None:
    call = CALL | {"input": given}
    chat = parse_messages(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": "More"},
    )
    assert chat[1].tool_calls[0].name == "find"


@pytest.mark.parametrize("role", ["user", "tool", "system", "assistant"])
def test_content_null_says_nothing(role: str) -> None:
    given = {"role": role, "content": None}
    chat = parse_openai(given, {"role": "user", "content": "Hi"})
    assert chat[0].content == ""


def test_a_refusal_is_what_the_assistant_said() -> None:
    part = {"type": "refusal", "refusal": "I cannot."}
    for answer in ({"content": [part]}, {"content": None, "refusal": "I cannot."}):
        chat = parse_openai(
            {"role": "user", "content": "Hi"},
            {"role": "assistant", **answer},
            {"role": "user", "content": "Why?"},
        )
        assert chat[1].content == "I cannot."


def test_arguments_of_a_call_may_be_an_object() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": {"city": "Rome"}}}
    chat = parse_openai(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "image_url"}]},
    )
    assert chat[1].tool_calls[0].arguments == '{"city": "Rome"}'
    assert chat[2].content == "[image: not read by this model]"


@pytest.mark.parametrize("type_", ["image_url", "input_audio", "file", "of_tomorrow"])
def test_a_part_of_the_question_that_is_no_text_is_refused(type_: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse_openai({"role": "user", "content": [{"type": type_}]})
    assert refused.value.param == "messages[0].content[0].type"


BEGUN = {"role": "assistant", "content": "It shows"}


def test_a_picture_before_a_begun_answer_is_of_the_question() -> None:
    question: dict[str, Any] = {"role": "user", "content": [{"type": "image_url"}]}
    for parse in (parse_openai, parse_messages, parse_input):
        with pytest.raises(ApiError, match="only text"):
            parse(question, BEGUN)
        history = parse(question, BEGUN, {"role": "user", "content": "More"}, BEGUN)
        assert "not read by this model]" in history[0].content


def test_an_earlier_item_that_is_not_read_is_a_line() -> None:
    chat = parse_input(
        {"role": "user", "content": "Hi"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "computer_call_output", "call_id": "c", "output": "x"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "user", "content": "Why?"},
    )
    assert [message.role for message in chat] == [
        "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert "[web_search_call: not read by this model]" in chat[1].content
    assert chat[3].content == "No."


@pytest.mark.parametrize("type_", ["item_reference", "compaction"])
def test_an_item_whose_text_only_another_server_has_is_refused(type_: str) -> None:
    with pytest.raises(ApiError, match=f"'{type_}' are not .* stored") as refused:
        parse_input({"type": type_, "id": "x"}, {"role": "user", "content": "Hi"})
    assert refused.value.param == "input[0].type"


def test_a_custom_call_of_a_history_is_a_call_with_a_text() -> None:
    hi = {"role": "user", "content": "Hi"}
    call = {"name": "patch", "input": '*** Begin\n"x"'}
    custom = {"id": "c", "type": "custom", "custom": call}
    chats = (
        parse_openai(
            hi,
            {"role": "assistant", "tool_calls": [custom]},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
        ),
        parse_input(
            hi,
            {"type": "custom_tool_call", "call_id": "c", **call},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        ),
    )
    for chat in chats:
        (made,) = chat[1].tool_calls
        assert (made.id, made.name) == ("c", "patch")
        assert json.loads(made.arguments) == {"input": call["input"]}
        assert chat[2] == ChatMessage("tool", "done", tool_call_id="c")


def test_a_result_may_be_an_object() -> None:
    """Some clients send what the tool returned; it stays in their history for ever."""
    *_, result = parse_openai(
        {"role": "user", "content": "Hi"},
        {"role": "tool", "tool_call_id": "t1", "content": {"größe": [1, None]}},
    )

    assert result.content == '{"größe": [1, null]}'


def test_an_object_as_a_question_is_refused_by_its_field() -> None:
    with pytest.raises(ApiError) as error:
        parse_openai({"role": "user", "content": {"text": "Hi"}})

    assert error.value.param == "messages[0].content"


def test_a_call_and_its_result_may_be_of_the_time_before_ids() -> None:
    call = {"name": "find", "arguments": "{}"}
    chat = parse_openai(
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "find", "content": "found"},
    )
    assert chat[1].tool_calls == (ToolCall("find", "find", "{}"),)
    assert chat[2] == ChatMessage("tool", "found", tool_call_id="find")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        (
            {
                "system": "S",
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm"},
                            {"type": "text", "text": "b"},
                            CALL,
                        ],
                    },
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t1"},
                            {"type": "text", "text": "c"},
                        ],
                    },
                ],
            },
            [
                "system",
                "messages[0].content[0]",
                "messages[1].content",
                "messages[2].content[0]",
                "messages[2].content[1]",
            ],
        ),
        (
            {
                "instructions": "S",
                "input": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b"},
                    {"type": "function_call", "name": "f", "call_id": "c"},
                    {"type": "function_call_output", "call_id": "c", "output": "d"},
                ],
            },
            ["instructions", "input[0]", "input", "input[3]"],
        ),
    ],
)
def test_each_message_has_the_field_of_its_text(
    body: dict[str, Any], fields: list[str]
) -> None:
    parse = messages.parse_chat if "messages" in body else responses.parse_chat
    assert list(parse(body).message_fields) == fields
