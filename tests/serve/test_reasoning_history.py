"""The thinking of earlier answers in the history that a client sends back."""

from __future__ import annotations

from typing import Any

import pytest

from localspec.protocol.wire import ChatMessage
from localspec.serve import prompts, responses
from localspec.serve.json_fields import to_fields

USER = {"role": "user", "content": "Weather?"}
CALL: Any = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_the_reasoning_of_a_message_is_kept(name: str) -> None:
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [CALL],
        name: "a plan",
    }
    tool = {"role": "tool", "tool_call_id": "c", "content": "sunny"}
    messages = prompts.parse_messages(to_fields({"messages": [USER, answer, tool]}, ""))
    assert [message.reasoning for message in messages] == ["", "a plan", ""]
    assert messages[1].tool_calls[0].name == "f"
    answer[name] = {"effort": "high"}  # not a text
    assert prompts.parse_message(answer, "").reasoning == ""


def parse(*items: dict[str, Any]) -> list[ChatMessage]:
    return list(responses.parse_input(to_fields({"input": [USER, *items]}, "")))[1:]


def test_a_reasoning_item_belongs_to_the_answer_after_it() -> None:
    thought = {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "a plan"}],
    }
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "sunny"}
    text = {"role": "assistant", "content": "Sunny."}
    assert [m.reasoning for m in parse(thought, text, USER, text)] == ["a plan", "", ""]
    (first, _, second) = parse(thought, call, output, thought, text)
    assert (first.reasoning, first.tool_calls[0].name) == ("a plan", "f")
    assert (second.reasoning, second.content) == ("a plan", "Sunny.")
    (both, _) = parse(thought, text, call, output)
    assert (both.reasoning, both.content, len(both.tool_calls)) == ("a plan", "Sunny.", 1)
    sealed: dict[str, Any] = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": "x",
        "content": None,
    }
    assert parse(thought, sealed, text)[0].reasoning == "a plan"
    assert [parse(one) for one in (thought, sealed)] == [[], []], "thinking alone is no answer"
    assert [message.content for message in parse(text, thought, USER)] == ["Sunny.", "Weather?"]
