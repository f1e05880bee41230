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


# In each API, the second prompt is known up to the end of the first answer: its thinking
# and its call came back. The token that ends a turn is not decoded in its answer.


def test_thinking_comes_back_by_the_completions_api(served: Served) -> None:
    tools = [{"type": "function", "function": FUNCTION}]

    def ask(*messages: Any) -> Any:
        body = {"messages": messages, "tools": tools}
        return post(served, "/v1/chat/completions", body)

    first = ask(HI)
    answer = first["choices"][0]["message"]
    (call,) = answer["tool_calls"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    second = ask(HI, answer, result)

    assert answer["reasoning_content"].strip() == THOUGHT
    assert json.loads(call["function"]["arguments"]) == {"at": "Rome"}
    n_reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert n_reused == first["usage"]["total_tokens"] - 1


def test_thinking_comes_back_by_the_messages_api(served: Served) -> None:
    tools = [{"name": "look", "description": "Looks.", "input_schema": SCHEMA}]

    def ask(*messages: Any) -> Any:
        body = {"messages": messages, "tools": tools, "max_tokens": 200}
        return post(served, "/v1/messages", body)

    first = ask(HI)
    blocks = first["content"]
    (call,) = [block for block in blocks if block["type"] == "tool_use"]
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    answer = {"role": "assistant", "content": blocks}
    second = ask(HI, answer, {"role": "user", "content": [result]})

    assert blocks[0]["thinking"].strip() == THOUGHT
    assert call["input"] == {"at": "Rome"}
    usage = first["usage"]
    n_prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    n_reused = second["usage"]["cache_read_input_tokens"]
    assert n_reused == n_prompt + usage["output_tokens"] - 1


def test_thinking_comes_back_by_the_responses_api(served: Served) -> None:
    tools = [{"type": "function", **FUNCTION}]

    def ask(*items: Any) -> Any:
        body = {"input": items, "tools": tools, "store": False}
        return post(served, "/v1/responses", body)

    first = ask(HI)
    output = first["output"]
    (call,) = [item for item in output if item["type"] == "function_call"]
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "sunny",
    }
    second = ask(HI, *output, result)

    assert output[0]["type"] == "reasoning"
    assert json.loads(call["arguments"]) == {"at": "Rome"}
    n_reused = second["usage"]["input_tokens_details"]["cached_tokens"]
    assert n_reused == first["usage"]["total_tokens"] - 1
