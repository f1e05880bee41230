"""Every field of a request counts towards its limits, before anything is rendered."""

import json
from typing import Any

import pytest

from localspec.protocol.wire import ChatMessage, ToolCall
from localspec.serve import request_budget
from localspec.serve.api_error import ApiError
from localspec.serve.json_bodies import parse_body
from localspec.serve.request_budget import MAX_BYTES_PER_TOKEN, check_prompt_size
from tests.engine.test_prompt_marks import text_fields, with_text
from tests.serve.conftest import Served

N_CTX = 2048
LARGE = "lorem ipsum " * (MAX_BYTES_PER_TOKEN * N_CTX // 10)


@pytest.mark.parametrize("place", text_fields(ChatMessage), ids=".".join)
def test_no_text_of_a_message_is_forgotten(place: tuple[str, ...]) -> None:
    call = ToolCall("id", "name", "{}")
    message = with_text(ChatMessage("user", "c", tool_calls=(call,)), place, LARGE)

    with pytest.raises(ApiError, match="maximum context length") as raised:
        check_prompt_size({"messages": (message,), "tools": "[]"}, N_CTX)

    assert raised.value.param == "messages"


def test_small_fields_are_large_together() -> None:
    part = LARGE[: MAX_BYTES_PER_TOKEN * N_CTX * 2 // 3]
    check_prompt_size({"messages": (ChatMessage("user", part),)}, N_CTX)

    with pytest.raises(ApiError):
        check_prompt_size(
            {"messages": (ChatMessage("user", part),), "tools": part}, N_CTX
        )


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("field", ["tools", "messages", "x-new", "logit_bias"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (nested(request_budget.MAX_DEPTH + 1), "nested too deeply: 200 at most"),
        ([[]] * request_budget.MAX_VALUES, "more than 1,000,000 values"),
        ([{"$ref": "#/a"}] * 5_001, "more than 5,000 \\$ref"),
    ],
)
def test_a_field_with_too_much_in_it_is_named(
    field: str, value: Any, problem: str
) -> None:
    body = json.dumps({"model": "m", field: value}).encode()

    with pytest.raises(ApiError, match=problem) as raised:
        parse_body(body)

    assert raised.value.param == field


def test_a_request_of_a_program_is_within_the_limits() -> None:
    schema: Any = {"type": "string", "$ref": "#/$defs/a"}
    for _ in range(20):
        schema = {"type": "object", "properties": {"a": schema}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "x"}]}] * 20_000

    parse_body(json.dumps({"tools": [schema] * 128, "messages": messages}).encode())


@pytest.mark.parametrize("field", ["tools", "reasoning_content", "arguments", "id"])
def test_a_large_field_is_refused_before_the_engine_reads_it(
    caller: Served, field: str
) -> None:
    pid = caller.engine_pid()
    texts = {"reasoning_content": "r", "arguments": "{}", "id": "1", "tools": "d"}
    texts[field] = LARGE * 2
    function = {"name": "f", "arguments": texts["arguments"]}
    answer = {
        "role": "assistant",
        "content": "a",
        "reasoning_content": texts["reasoning_content"],
        "tool_calls": [{"id": texts["id"], "type": "function", "function": function}],
    }
    result = {"role": "tool", "content": "r", "tool_call_id": "1"}
    tool = {
        "type": "function",
        "function": {"name": "f", "description": texts["tools"]},
    }
    user = {"role": "user", "content": "x"}
    body = {"messages": [user, answer, result], "tools": [tool], "max_tokens": 1}

    refused = caller.post("/v1/chat/completions", body)

    assert refused.status == 400
    assert refused.error["code"] == "context_length_exceeded"
    assert refused.error["param"] == ("tools" if field == "tools" else "messages")
    assert caller.engine_pid() == pid


def test_a_prediction_of_any_length_is_cut(caller: Served) -> None:
    emoji = "".join(chr(0x1F300 + i % 600) for i in range(300_000))
    prediction = {"type": "content", "content": emoji}
    body = {
        "messages": [{"role": "user", "content": "x"}],
        "prediction": prediction,
        "max_tokens": 1,
    }

    assert caller.post("/v1/chat/completions", body).status == 200
