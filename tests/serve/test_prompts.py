"""Messages and tools of requests, with the official client and a model that calls one."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from localspec.protocol.wire import ChatMessage, ToolCall
from localspec.serve.prompts import parse_chat
from tests.serve.conftest import Served

CITY: dict[str, Any] = {
    "type": "object",
    "required": ["city"],
    "additionalProperties": False,
}
CITY["properties"] = {"city": {"enum": ["Paris", "Rome"]}}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": CITY,
    },
}
TIME: Any = {"type": "function", "function": {"name": "time"}}
HI: Any = [{"role": "user", "content": "Hi?"}]


@pytest.fixture
def tools(caller: Served) -> Iterator[OpenAI]:
    with caller.client() as client:
        yield client


def only_call(message: Any) -> tuple[str, Any]:
    """Its name and its arguments."""
    (call,) = message.tool_calls
    assert call.type == "function" and call.id.startswith("call_")
    return call.function.name, json.loads(call.function.arguments)


def test_a_call(tools: OpenAI) -> None:
    answer = tools.chat.completions.create(
        model="any", messages=HI, tools=[WEATHER, TIME]
    )
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert only_call(choice.message) == ("weather", {"city": "Rome"})
    with tools.chat.completions.stream(
        model="any", messages=HI, tools=[WEATHER]
    ) as stream:
        choice = stream.get_final_completion().choices[0]
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert only_call(choice.message) == ("weather", {"city": "Rome"})


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call(
    caller: Served, tools: OpenAI, choice: Any, stream: bool
) -> None:
    options: Any = {
        "model": "any",
        "messages": HI,
        "tools": [WEATHER],
        "tool_choice": choice,
    }
    if stream:
        with tools.chat.completions.stream(**options) as events:
            message = events.get_final_completion().choices[0].message
    else:
        message = tools.chat.completions.create(**options).choices[0].message
    name, arguments = only_call(message)
    assert (
        name == "weather"
        and arguments["city"] in ("Paris", "Rome")
        and not message.content
    )


def test_at_most_one_call_and_only_of_allowed_tools(caller: Served) -> None:
    tools = {"messages": HI, "tools": [WEATHER, TIME]}
    allowed = {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "time"}}],
    }
    choice = {"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
    message = caller.post("/v1/chat/completions", tools | choice).json["choices"][0][
        "message"
    ]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["time"]
    allowed["mode"] = "auto"
    message = caller.post("/v1/chat/completions", tools | choice).json["choices"][0][
        "message"
    ]
    assert message["content"].startswith("I look.")
    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert set(names) == {"time"}, "the model would call a tool that is not allowed"
    twice = "<tool_call>" + '{"name": "time", "arguments": {}}' + "</tool_call>"
    forced = {"grammar": f"root ::= {json.dumps(twice * 2)}", "max_tokens": 300}
    for is_parallel, n in ((True, 2), (False, 1)):
        body = tools | forced | {"parallel_tool_calls": is_parallel}
        message = caller.post("/v1/chat/completions", body).json["choices"][0][
            "message"
        ]
        assert len(message["tool_calls"]) == n


UNUSUAL_PARAMETERS: dict[str, Any] = {
    "none": None,
    "any value": True,
    "no type": {"properties": {"a": {"type": "string"}}},
    "alternatives without a type": {"anyOf": [{"required": ["a"]}, {}]},
    # What follows are keywords that the grammars do not have, or have in part.
    "not": {"not": {}},
    "unique items": {"properties": {"a": {"type": "array", "uniqueItems": True}}},
    "if and then": {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "dependencies": {"dependentRequired": {"a": ["b"]}},
    "look-ahead": {"properties": {"a": {"type": "string", "pattern": "^(?!b)a$"}}},
    "a reference to nothing": {"properties": {"a": {"$ref": "#/$defs/none"}}},
    "a reference to a page": {"properties": {"a": {"$ref": "https://a.example/s"}}},
}


@pytest.mark.parametrize("kind", UNUSUAL_PARAMETERS)
def test_a_forced_call_has_an_object_whatever_schema_its_tool_has(
    caller: Served, kind: str
) -> None:
    function = {"name": "odd", "parameters": UNUSUAL_PARAMETERS[kind]}
    tools = [{"type": "function", "function": function}]
    body = {"messages": HI, "tools": tools, "tool_choice": "required"}

    response = caller.post("/v1/chat/completions", body | {"max_tokens": 200})

    assert response.status == 200, response.body
    message = response.json["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert call["function"]["name"] == "odd"
    assert call["function"]["arguments"].startswith("{")
    assert not message["content"]


@pytest.mark.parametrize("name", ["get-weather", "get.weather", "7", "größe"])
def test_a_tool_whose_name_is_no_identifier_can_be_required(
    caller: Served, name: str
) -> None:
    function = {"name": name, "parameters": WEATHER["function"]["parameters"]}
    tools = [{"type": "function", "function": function}]
    body = {"messages": HI, "tools": tools, "tool_choice": "required"}

    response = caller.post("/v1/chat/completions", body)

    assert response.status == 200, response.body
    message = response.json["choices"][0]["message"]
    assert only_name(message) == name
    assert not message["content"]


def only_name(message: Any) -> str:
    (call,) = message["tool_calls"]
    name: str = call["function"]["name"]
    return name


def test_wrong_tools_are_refused(tools: OpenAI) -> None:
    options: Any
    form = {"type": "json_object"}
    for options, param in [
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        ({"tools": [3]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"function": {"name": "other"}}},
            "tool_choice",
        ),
        (
            {"tools": [WEATHER], "tool_choice": "required", "response_format": form},
            "tool_choice",
        ),
    ]:
        with pytest.raises(openai.BadRequestError) as error:
            tools.chat.completions.create(model="any", messages=HI, **options)
        assert error.value.param == param


def test_roles_and_parts() -> None:
    parts = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "?"}]
    chat = [
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": parts},
    ]
    empty = {"role": "assistant", "content": None}
    assert parse_chat({"messages": [*chat, empty, *HI]}).messages == (
        *(ChatMessage("system", "Be kind."), ChatMessage("user", "Hi?")),
        *(ChatMessage("assistant", ""), ChatMessage("user", "Hi?")),
    )


CALL: Any = {
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": "{}"},
}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_calls_results_and_reasoning_of_a_chat_are_kept(name: str) -> None:
    answer: Any = {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        name: "a plan",
    }
    tool = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    assert parse_chat({"messages": [*HI, answer, tool]}).messages[1:] == (
        ChatMessage(
            "assistant", "", tool_calls=(ToolCall("c", "f", "{}"),), reasoning="a plan"
        ),
        ChatMessage("tool", "sunny", tool_call_id="c"),
    )
    answer[name] = {"effort": "high"}  # not a text
    assert parse_chat({"messages": [*HI, answer, tool]}).messages[1].reasoning == ""
