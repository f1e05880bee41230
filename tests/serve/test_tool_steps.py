"""The steps of an agent over HTTP: what was thought before a call comes back to the model."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import Served, serving
from tests.support.tool_families import FAMILIES, THOUGHT, write_caller

QWEN = FAMILIES["qwen"]
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
FUNCTION = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
HI = {"role": "user", "content": "Hi?"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("steps") / "steps.gguf"
    with serving(write_caller(QWEN, path)) as running:
        yield running


def post(served: Served, path: str, body: dict[str, Any]) -> Any:
    response = served.post(path, {"model": "steps", **body})
    assert response.status == 200, response.body
    return response.json


def test_thinking_comes_back_by_the_completions_api(served: Served) -> None:
    tools = [{"type": "function", "function": FUNCTION}]

    def ask(*messages: Any) -> Any:
        body = {"messages": messages, "tools": tools}
        return post(served, "/v1/chat/completions", body)

    first = ask(HI)
    answer = first["choices"][0]["message"]
    (call,) = answer["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    forgetful = {**answer, "reasoning_content": None}
    second = ask(HI, answer, result)["usage"]
    n_without = ask(HI, forgetful, result)["usage"]["prompt_tokens"]

    assert answer["reasoning_content"] == THOUGHT
    assert json.loads(call["function"]["arguments"]) == {"at": "Rome"}
    assert second["prompt_tokens"] > n_without
    # The token that ends the turn is not decoded in the first answer.
    n_known = first["usage"]["total_tokens"] - 1
    assert second["prompt_tokens_details"]["cached_tokens"] == n_known


def test_thinking_comes_back_by_the_messages_api(served: Served) -> None:
    tools = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]

    def ask(*messages: Any) -> Any:
        body = {"messages": messages, "tools": tools, "max_tokens": 200}
        return post(served, "/v1/messages", body)

    def count(*messages: Any) -> int:
        usage = ask(*messages)["usage"]
        n_tokens: int = usage["input_tokens"] + usage["cache_read_input_tokens"]
        return n_tokens

    blocks = ask(HI)["content"]
    (call,) = [block for block in blocks if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    answered = {"role": "user", "content": [result]}
    n_with = count(HI, {"role": "assistant", "content": blocks}, answered)
    n_without = count(HI, {"role": "assistant", "content": [call]}, answered)

    assert blocks[0]["thinking"] == THOUGHT
    assert call["input"] == {"at": "Rome"}
    assert n_with > n_without


def test_thinking_comes_back_by_the_responses_api(served: Served) -> None:
    tools = [{"type": "function", **FUNCTION}]

    def ask(*items: Any) -> Any:
        body = {"input": items, "tools": tools, "store": False}
        return post(served, "/v1/responses", body)

    output = ask(HI)["output"]
    (call,) = [item for item in output if item["type"] == "function_call"]
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "sunny",
    }
    n_with = ask(HI, *output, result)["usage"]["input_tokens"]
    n_without = ask(HI, call, result)["usage"]["input_tokens"]

    assert output[0]["type"] == "reasoning"
    assert json.loads(call["arguments"]) == {"at": "Rome"}
    assert n_with > n_without
