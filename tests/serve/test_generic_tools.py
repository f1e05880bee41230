"""Tools with a model whose template has none, at every door."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.serve.conftest import GREEDY, Served, serving
from tests.support import tinygguf
from tests.support.zoo import CHAT_CONTROLS, CHAT_TEMPLATE

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "$defs": {"City": {"enum": ["Rome"]}},
}
WEATHER: Any = {"name": "weather", "description": "It looks.", "parameters": SCHEMA}
HI: Any = [{"role": "user", "content": "Hi?"}]
NOTHING: Any = {"type": "object", "properties": {}}
NOW: Any = {"type": "function", "function": {"name": "now", "parameters": NOTHING}}
THINKING_CALLER = """\
{%- if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call> {"arguments": ' }}{{ call.function.arguments | tojson }}
{{- ', "name": "' + call.function.name + '"}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\n<think>' }}{# </think> #}"""
"""The arguments come before the name, which no grammar of calls is made for."""
SAID = "I look.weather(Rome)"
"""What the model writes before a call and behind it: behind a `>` it says the latter."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that begins a call and then would write something else."""
    path: Path = tmp_path_factory.mktemp("generic") / "made.gguf"
    words = ("I", "▁look.", "<tool", "_call", ">", "weather", "(Rome)")
    model = tinygguf.parrot(words, n_ctx=4096, controls=CHAT_CONTROLS)
    replace(model, template=CHAT_TEMPLATE).write(path)
    with serving(path, path, settings=replace(GREEDY, spec="auto")) as server:
        yield server


def chat(served: Served, **more: Any) -> Any:
    tools = [{"type": "function", "function": WEATHER}, NOW]
    body = {"messages": HI, "tools": tools, "max_tokens": 90} | more
    response = served.post("/v1/chat/completions", body)
    assert response.status == 200, response.body
    return response.json["choices"][0]["message"]


def called(message: Any) -> tuple[str, Any]:
    function = message["tool_calls"][0]["function"]
    return function["name"], json.loads(function["arguments"])


@pytest.mark.parametrize("spec", ["off", "lookup", "model", "auto"])
def test_a_chat_has_a_call(served: Served, spec: str) -> None:
    message = chat(
        served,
        parallel_tool_calls=False,
        localspec={"spec": spec},
        tools=[{"type": "function", "function": WEATHER}],
    )
    assert message["content"] == SAID
    assert called(message) == ("weather", {"city": "Rome"})


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("required", None),
        (NOW, "now"),
        ({"type": "function", "function": {"name": "weather"}}, "weather"),
    ],
)
def test_a_call_is_forced(served: Served, choice: Any, name: str | None) -> None:
    message = chat(served, tool_choice=choice)
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1
    found, arguments = called(message)
    assert found == (name or found)
    assert arguments == ({"city": "Rome"} if found == "weather" else {})


@pytest.mark.parametrize("layout", ["known", "not known"])
def test_a_required_call_comes_without_thinking(layout: str, tmp_path: Path) -> None:
    """The prompt begins the thinking, which the model would never end."""
    words = ("A", "▁thought", "▁without", "▁end")
    controls = ("<think>", "</think>", *CHAT_CONTROLS)
    model = tinygguf.parrot(words, n_ctx=4096, controls=controls)
    source = CHAT_TEMPLATE + "{{- '<think>' }}{# </think> #}"
    if layout == "not known":
        source = THINKING_CALLER
    path = replace(model, template=source).write(tmp_path / "made.gguf")
    with serving(path) as server:
        message = chat(server, tool_choice="required")
    assert called(message)[0] in ("weather", "now")
    assert not message["content"]
    assert not message.get("reasoning_content")


def test_none_of_the_tools_is_offered(served: Served) -> None:
    message = chat(served, tool_choice="none")
    assert message["content"] == "I look.<tool_call>weather(Rome)"
    assert "tool_calls" not in message


def test_a_response_has_a_call(served: Served) -> None:
    tool = {"type": "function", **WEATHER}
    body = {"input": "Hi?", "tools": [tool], "max_output_tokens": 90}
    response = served.post("/v1/responses", body)
    assert response.status == 200, response.body
    text, call, *_ = response.json["output"]
    assert text["content"][0]["text"] == SAID
    assert (call["name"], json.loads(call["arguments"])) == (
        "weather",
        {"city": "Rome"},
    )


def test_a_message_has_a_call(served: Served) -> None:
    tool = {"name": "weather", "input_schema": SCHEMA}
    body = {"messages": HI, "tools": [tool], "max_tokens": 90}
    response = served.post("/v1/messages", body)
    assert response.status == 200, response.body
    text, call, *_ = response.json["content"]
    assert text["text"] == SAID
    assert (call["name"], call["input"]) == ("weather", {"city": "Rome"})


@pytest.mark.parametrize("template", ["chatml", "gemma", "llama2"])
def test_a_built_in_template_takes_tools(template: str, tmp_path: Path) -> None:
    words = ("I", "▁look.", "<tool_call>", "weather", "(Rome)")
    path = tinygguf.parrot(words, n_ctx=4096).write(tmp_path / "made.gguf")
    with serving(path, template=template) as server:
        message = chat(server, tools=[{"type": "function", "function": WEATHER}])
    assert called(message) == ("weather", {"city": "Rome"})


def test_a_conversation_with_a_call_goes_on(served: Served) -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "sunny"},
    ]
    assert chat(served, messages=messages)["content"] == SAID
