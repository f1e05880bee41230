"""Tools for models whose chat template has no format for them that is known.

The tools are described in the system prompt, and calls and results are parts of
ordinary messages, so any template will do. The form is Hermes's, which many models have
seen in training:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Rome"}}
    </tool_call>

Models that have not seen it make mistakes. So the engine holds them to the form from
the mark `<tool_call>` on (`spec/constraints/tool_call_text.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from localspec.models.chat_template.schema_references import require_object
from localspec.protocol.wire import ChatMessage, ToolCall

FORMAT = "generic"
"""The name of this form among the formats of tools (`tool_formats.py`)."""
OPENING = "<tool_call>"
BEFORE_OBJECT = "\n"
AFTER_OBJECT = "\n</tool_call>"
RESULT_OPENING = "<tool_response>"

_DESCRIPTION = """\
You can call tools. Each line has the name of a tool, what it does, and the JSON Schema \
of its arguments:
<tools>
{tools}
</tools>

To call a tool, write its name and its arguments in this form:
<tool_call>
{{"name": "NAME", "arguments": {{"ARGUMENT": "VALUE"}}}}
</tool_call>

The result of a call comes in <tool_response>. You may write several calls in one \
answer. If you need no tool, answer without a call."""


def write_as_text(messages: Sequence[ChatMessage], tools: str) -> list[ChatMessage]:
    """A chat with tools as one without: `tools` is a JSON array, or empty.

    For example, "system: Be kind", "assistant calls weather", "tool: sunny" becomes
    "system: Be kind … <tools>…", "assistant: <tool_call>…", "user: <tool_response>…".
    """
    written: list[ChatMessage] = []
    results: list[ChatMessage] = []
    calls: tuple[ToolCall, ...] = ()
    for message in messages:
        if message.role == "tool":
            results.append(message)
            continue
        written += _write_results(results, calls)
        results = []
        if message.tool_calls:
            calls = message.tool_calls
        written.append(_write_calls(message))
    written += _write_results(results, calls)
    return _describe_tools(written, tools) if tools else written


def read_schemas(tools: str) -> dict[str, Any]:
    """The JSON Schema of each tool's arguments, by its name."""
    return {
        function["name"]: require_object(function.get("parameters"))
        for function in _functions(tools)
    }


def _functions(tools: str) -> list[Mapping[str, Any]]:
    """The functions of an array that the server has checked."""
    return [tool["function"] for tool in json.loads(tools)]


def _describe_tools(messages: list[ChatMessage], tools: str) -> list[ChatMessage]:
    lines: list[str] = []
    for function in _functions(tools):
        fields = {
            name: function[name]
            for name in ("name", "description", "parameters")
            if function.get(name)
        }
        lines.append(json.dumps(fields, ensure_ascii=False))
    description = _DESCRIPTION.format(tools="\n".join(lines))
    if not messages or messages[0].role != "system":
        return [ChatMessage("system", description), *messages]
    content = f"{messages[0].content}\n\n{description}"
    return [replace(messages[0], content=content), *messages[1:]]


def _write_calls(message: ChatMessage) -> ChatMessage:
    if not message.tool_calls:
        return message
    parts = [message.content] if message.content else []
    parts += map(write_call, message.tool_calls)
    return replace(message, content="\n".join(parts), tool_calls=())


def write_call(call: ToolCall) -> str:
    """A call as the model wrote it, so that its tokens match those in memory."""
    name = json.dumps(call.name, ensure_ascii=False)
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    with suppress(ValueError, RecursionError):
        json.loads(call.arguments)
        arguments = call.arguments
    body = f'{{"name": {name}, "arguments": {arguments}}}'
    return f"{OPENING}{BEFORE_OBJECT}{body}{AFTER_OBJECT}"


def _write_results(
    results: Sequence[ChatMessage], calls: Sequence[ToolCall]
) -> list[ChatMessage]:
    """Results in a row as one message of the user, in the order of their calls."""
    if not results:
        return []
    places = {call.id: place for place, call in enumerate(calls)}
    ordered = sorted(
        results, key=lambda result: places.get(result.tool_call_id, len(calls))
    )
    parts = [write_result(result) for result in ordered]
    return [ChatMessage("user", "\n".join(parts))]


def write_result(result: ChatMessage) -> str:
    return f"{RESULT_OPENING}\n{result.content}\n</tool_response>"
