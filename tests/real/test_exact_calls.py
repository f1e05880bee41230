"""Conversations of five calls with the starter, which is too weak to call by itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from localspec.engine.session import Session
from localspec.models.chat_template.tool_calls import ToolCallDelta, ToolCallParser
from localspec.protocol.wire import (
    ChatMessage,
    GenerateCommand,
    SamplingParams,
    ToolCall,
)
from tests.support.sessions import Said, folded

SCHEMAS: dict[str, Any] = {
    "get_weather_forecast": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 30},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "days", "unit"],
    },
    "read_file": {
        "type": "object",
        "properties": {
            "path": {"type": "string", "maxLength": 40},
            "is_binary": {"type": "boolean"},
        },
        "required": ["path", "is_binary"],
    },
}
TOOLS = json.dumps([
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in SCHEMAS.items()
])  # fmt: skip
QUESTION = ChatMessage("user", "Read notes.txt, then tell me the weather it asks for.")
N_CALLS = 5
SAMPLINGS = (SamplingParams(temperature=0), SamplingParams(temperature=0.8, seed=3))


def read_call(text: str) -> tuple[str, Any]:
    parser = ToolCallParser("generic", SCHEMAS)
    deltas = [*parser.feed(text), *parser.finish(is_cut=False)]
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    first = [delta for delta in calls if delta.index == 0]
    arguments = json.loads("".join(delta.arguments for delta in first))
    return first[0].name, arguments


def converse(session: Session, spec: str, sampling: SamplingParams) -> list[Said]:
    """Five answers, each a call that the answer before has the result of."""
    chat: list[ChatMessage] = [QUESTION]
    answers: list[Said] = []
    for n in range(N_CALLS):
        command = GenerateCommand(
            messages=tuple(chat),
            sampling=sampling,
            max_tokens=120,
            spec=spec,
            tools=TOOLS,
            must_call=True,
            stop=("</tool_call>",),
        )
        said = folded(session.generate(command))
        answers.append(said)
        name, arguments = read_call(f"{said.text}</tool_call>")
        call = ToolCall(f"call{n}", name, json.dumps(arguments))
        chat.append(ChatMessage("assistant", "", tool_calls=(call,)))
        chat.append(ChatMessage("tool", f"Result {n}.", tool_call_id=call.id))
    return answers


@pytest.mark.parametrize("pair", ["plain", "truncated"])
def test_five_calls_in_a_row_are_those_of_offered_tools(
    pair: str, session_of: Callable[[str], Session]
) -> None:
    session = session_of(pair)
    spec = "lookup" if pair == "plain" else "model"
    for sampling in SAMPLINGS:
        plain = converse(session, "off", sampling)
        drafted = converse(session, spec, sampling)
        for answer in (*plain, *drafted):
            name, arguments = read_call(f"{answer.text}</tool_call>")
            assert set(arguments) == set(SCHEMAS[name]["required"])
        if pair == "plain":  # Its passes of all widths round alike here.
            assert [answer.text for answer in drafted] == [
                answer.text for answer in plain
            ]
        n_plain = sum(len(answer.rounds) for answer in plain)
        n_drafted = sum(len(answer.rounds) for answer in drafted)
        print(
            f"{pair} {spec} {sampling.temperature}: {n_plain} passes, {n_drafted} with drafts"
        )
        assert n_drafted < n_plain * 0.7
