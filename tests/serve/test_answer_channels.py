"""Answers in messages on channels, over each API: their form is enforced, and nothing
is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.conftest import Served, serving
from tests.support.channels import THOUGHT, speaker

SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": [1]}},
    "required": ["a"],
    "additionalProperties": False,
}
OBJECT = '{"a": 1}'
HI = [{"role": "user", "content": "Hi"}]
HEADER = ("<|channel|>final", "<|constrain|>", "json", "<|message|>Sorry")
PROSE = ("▁no", "▁JSON", "▁from", "▁me", "▁today", ".")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("models") / "made.gguf"
    speaker((*THOUGHT, *HEADER, *PROSE)).write(path)
    with serving(path) as server:
        yield server


@pytest.mark.parametrize(
    "form",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"json_schema": SCHEMA},
        {"grammar": 'root ::= "{\\"a\\": 1}"'},
    ],
)
def test_a_chats_answer_has_the_form_that_was_asked_for(
    served: Served, form: Any
) -> None:
    body = {"messages": HI, "temperature": 0, "max_tokens": 120, **form}
    message = served.post("/v1/chat/completions", body).json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("PLAN", OBJECT)


def test_so_has_a_response(served: Served) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    body = {"input": "Hi", "temperature": 0, "max_output_tokens": 120, "text": form}
    output = served.post("/v1/responses", body).json["output"]
    assert output[-1]["content"][0]["text"] == OBJECT


def test_so_has_a_message(served: Served) -> None:
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"messages": HI, "temperature": 0, "max_tokens": 120, "output_config": form}
    content = served.post("/v1/messages", body).json["content"]
    assert content[-1]["text"] == OBJECT


def test_a_history_with_a_header_without_end_is_answered(served: Served) -> None:
    begun = {"role": "assistant", "content": f"<|channel|>analysis {'word ' * 60}"}
    body = {"messages": [*HI, begun, *HI], "max_tokens": 2, "temperature": 0}
    assert served.post("/v1/chat/completions", body).status == 200
    counted = served.post("/v1/messages/count_tokens", body)
    assert json.loads(counted.body)["input_tokens"] > 60


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("first", "second")
]


@pytest.mark.parametrize("spec", ["off", "lookup", "auto"])
def test_a_call_of_one_of_several_tools_can_be_required(
    served: Served, spec: str
) -> None:
    body = {"messages": HI, "tools": TOOLS, "tool_choice": "required", "max_tokens": 99}

    response = served.post("/v1/chat/completions", body | {"localspec": {"spec": spec}})

    assert response.status == 200, response.body
    choice = response.json["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] in ("first", "second")
    assert call["function"]["arguments"] == OBJECT
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"
