"""No tool of a request is lost without a word, whatever its type."""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from anthropic.types import ToolUnionParam
from openai.types.responses import ToolParam

from localspec.serve import messages, responses
from localspec.serve.api_error import ApiError
from localspec.serve.request_options import parse_chat_options
from localspec.serve.typed_tools import find_namespaced
from tests.serve.conftest import GREEDY, Served

HI: Any = [{"role": "user", "content": "Hi?"}]
ECHO = {
    "type": "namespace",
    "name": "mcp__echo",
    "description": "An MCP server",
    "tools": [
        {
            "type": "function",
            "name": "weather",
            "description": "Looks up a word.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Rome"]}},
                "required": ["city"],
            },
        }
    ],
}


def types_of(union: Any) -> Iterator[str]:
    """The values that `type` may have in a union of an SDK."""
    for member in get_args(union):
        hint = get_type_hints(member, include_extras=False).get("type")
        if hint is None:
            continue
        values = get_args(hint)
        while values and get_origin(values[0]) is not None:
            values = get_args(values[0])
        yield from (value for value in values if isinstance(value, str))


OPENAI_TYPES = sorted(set(types_of(ToolParam)))
ANTHROPIC_TYPES = sorted(set(types_of(ToolUnionParam)))


def offered(chat: Any) -> list[str]:
    options = parse_chat_options(
        chat,
        GREEDY,
        default_seed=None,
        tool_format="generic",
        exact_calls=True,
        thinking_controls=(),
    )
    return list(options.tools.parameters) if options.tools else []


def test_the_sdks_have_types() -> None:
    assert {"function", "namespace", "local_shell"} <= set(OPENAI_TYPES)
    assert {"custom", "bash_20250124"} <= set(ANTHROPIC_TYPES)


@pytest.mark.parametrize("type_", OPENAI_TYPES)
def test_each_type_of_openai_is_offered_or_named(
    type_: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tool = {"type": type_, "name": "mine", "tools": [{"type": "function", "name": "f"}]}
    try:
        chat = responses.parse_chat({"input": "Hi?", "tools": [tool]})
    except ApiError as error:
        assert "mine" in error.message
        assert error.status == 400
        return
    names = offered(chat)
    if names:
        assert names == ["mine__f" if type_ == "namespace" else "mine"]
        return
    with pytest.raises(ApiError, match=type_):
        responses.parse_chat(
            {"input": "Hi?", "tools": [tool], "tool_choice": "required"}
        )


@pytest.mark.parametrize("type_", ANTHROPIC_TYPES)
def test_each_type_of_anthropic_is_offered_or_named(type_: str) -> None:
    tool = {"type": type_, "name": "mine"}
    if type_ == "custom":
        tool["input_schema"] = {}  # type: ignore[assignment]
    body: dict[str, Any] = {"messages": HI, "tools": [tool]}
    try:
        chat = messages.parse_chat(body)
    except ApiError as error:
        assert "mine" in error.message
        return
    names = offered(chat)
    if names:
        assert names == ["mine"]
        return
    with pytest.raises(ApiError, match="mine"):
        messages.parse_chat(body | {"tool_choice": {"type": "any"}})


@pytest.mark.parametrize("type_", ["bash_20250124", "text_editor_20250728"])
def test_what_a_client_of_anthropic_runs_is_offered_with_a_schema(type_: str) -> None:
    tool = {"type": type_, "name": "mine"}
    chat = messages.parse_chat({"messages": HI, "tools": [tool]})
    (made,) = chat.body["tools"]
    assert "command" in made["function"]["parameters"]["properties"]


def test_a_choice_among_no_tools_is_refused() -> None:
    for choice in ("required", {"type": "function", "name": "f"}):
        body: dict[str, Any] = {"input": "Hi?", "tools": [], "tool_choice": choice}
        with pytest.raises(ApiError, match="tool_choice"):
            offered(responses.parse_chat(body))


def test_two_tools_of_one_name_are_refused() -> None:
    plain = {"type": "function", "name": "mcp__echo__weather"}
    with pytest.raises(ApiError, match="mcp__echo__weather"):
        responses.parse_chat({"input": "Hi?", "tools": [ECHO, plain]})


def test_a_namespace_is_found_again() -> None:
    found = find_namespaced([{"type": "function", "name": "f"}, ECHO])
    assert list(found) == ["mcp__echo__weather"]
    assert found["mcp__echo__weather"].name == "weather"
    assert found["mcp__echo__weather"].namespace == "mcp__echo"


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_of_a_namespace_comes_back_with_it(caller: Served, stream: bool) -> None:
    choice = {"type": "function", "name": "weather", "namespace": "mcp__echo"}
    body = {"input": "Hi?", "tools": [ECHO], "tool_choice": choice, "stream": stream}
    response = caller.post("/v1/responses", body)
    assert response.status == 200, response.body
    if stream:
        last = response.body.decode().strip().rpartition("data: ")[2]
        output = json.loads(last)["response"]["output"]
    else:
        output = response.json["output"]
    (call,) = [item for item in output if item["type"] == "function_call"]
    assert (call["namespace"], call["name"]) == ("mcp__echo", "weather")
    assert json.loads(call["arguments"]) == {"city": "Rome"}
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "sunny",
    }
    history = [{"role": "user", "content": "Hi?"}, call, result]
    chat = responses.parse_chat({"input": history, "tools": [ECHO]})
    assert chat.messages[1].tool_calls[0].name == "mcp__echo__weather"


def test_tools_in_a_namespace_are_in_the_prompt(caller: Served) -> None:
    def count(*tools: Any) -> int:
        body = {"input": "Hi?", "max_output_tokens": 2, "tools": list(tools)}
        tokens: int = caller.post("/v1/responses", body).json["usage"]["input_tokens"]
        return tokens

    now = {"type": "function", "name": "now"}
    assert count(now, ECHO) > count(now) + 20
