"""Prompts of requests: messages with tools, texts, tokens, or the text around a cursor."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.models.chat_template.tool_calls import (
    ForcedCall,
    ToolCallParser,
    ToolFormat,
    force_call,
)
from localspec.protocol.wire import ChatMessage, ToolCall
from localspec.serve.api_error import invalid, unsupported
from localspec.serve.json_fields import JsonFields, to_fields, to_unicode

INPUT = "messages"
_MAX_MESSAGES, _MAX_CALLS, _MAX_TOOLS = 20_000, 1024, 1024
_MAX_PROMPTS, _MAX_EXTRA_FILES = 16, 256
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_WRONG_CHOICE = (
    "it is none of none, auto, required, allowed_tools, and a function's name"
)
_TOOL_NAME = re.compile(r"[\w.-]{1,128}")


class InfillInput(Struct, frozen=True):
    prefix: str
    suffix: str
    prompt: str = ""  # Text after the prefix, before the cursor.
    # Names and texts of other files, the nearest last.
    files: tuple[tuple[str, str], ...] = ()


class PromptInput(Struct, frozen=True):
    """The prompt of one answer: messages, a text, or tokens."""

    messages: tuple[ChatMessage, ...] = ()
    text: str = ""
    tokens: tuple[int, ...] = ()
    infill: InfillInput | None = None  # Cut to the context, so it always fits.
    param: str = "prompt"  # The request's field, for errors.

    @property
    def n_bytes(self) -> int:
        contents = (message.content for message in self.messages)
        return len(self.text) + 4 * len(self.tokens) + sum(map(len, contents))


def parse_infill(fields: JsonFields) -> InfillInput:
    """The text around the cursor, and further files of the project. Raises ApiError."""
    files = []
    for i, value in enumerate(fields.items("input_extra", _MAX_EXTRA_FILES)):
        file = to_fields(value, f"input_extra[{i}]")
        if not isinstance(file.get("text"), str):
            raise invalid(file.param("text"), "it is not a string")
        files.append((file.text("filename"), file.text("text")))
    prefix, suffix = fields.text("input_prefix"), fields.text("input_suffix")
    return InfillInput(prefix, suffix, fields.text("prompt"), tuple(files))


def parse_texts(fields: JsonFields) -> list[PromptInput]:
    """A text, several, tokens, or several of these. Raises ApiError."""
    given = fields.get("prompt")
    if isinstance(given, str) or (
        isinstance(given, list) and given and type(given[0]) is int
    ):
        given = [given]
    if not isinstance(given, list) or not 0 < len(given) <= _MAX_PROMPTS:
        raise invalid(
            "prompt", f"it is not a string, or an array of up to {_MAX_PROMPTS} prompts"
        )
    texts = []
    for value in given:
        if isinstance(value, str):
            texts.append(PromptInput(text=to_unicode(value)))
        elif isinstance(value, list):
            if not all(type(token) is int and 0 <= token < 2**31 for token in value):
                raise invalid("prompt", "it is not an array of token ids")
            texts.append(PromptInput(tokens=tuple(value)))
        else:
            raise invalid("prompt", "it is not an array of strings or of token ids")
    if not all(prompt.text or prompt.tokens for prompt in texts):
        raise invalid("prompt", "it is empty")
    if fields.flag("echo") and not all(prompt.text for prompt in texts):
        raise unsupported("echo", "a prompt of token ids is not repeated")
    return texts


# --- messages
# -----------------------------------------------------------------------------------


def parse_input(fields: JsonFields) -> tuple[ChatMessage, ...]:
    """The chat of a chat completion. Raises ApiError if it is none."""
    given = enumerate(fields.items(INPUT, _MAX_MESSAGES))
    messages = tuple(parse_message(value, f"{INPUT}[{i}]") for i, value in given)
    check_chat(messages, INPUT)
    return messages


def to_chat_fields(fields: JsonFields) -> JsonFields:
    """The options with their names of chat completions."""
    return fields


def check_chat(messages: Sequence[ChatMessage], param: str) -> None:
    """Raise ApiError for messages that no template can render."""
    if not messages:
        raise invalid(param, "it is empty")
    roles = [message.role for message in messages]
    if set(roles) <= {"system"} or roles == ["assistant"]:
        raise invalid(param, "no message is of the user")
    if roles[-2:] == ["assistant", "assistant"]:
        raise invalid(param, "two messages of the assistant are at the end")
    if messages[-1].tool_calls:
        raise invalid(param, "the last one calls tools, whose results must follow")


def parse_message(value: Any, param: str) -> ChatMessage:
    fields = to_fields(value, param)
    role = fields.get("role")
    if role == "tool":
        content = parse_content(fields.get("content"), f"{param}.content")
        return ChatMessage("tool", content, tool_call_id=fields.text("tool_call_id"))
    if role == "function":
        raise unsupported(param, "use the role tool")
    if not isinstance(role, str) or role not in _ROLES:
        raise invalid(f"{param}.role", f"it is none of {', '.join(_ROLES)}")
    calls = fields.items("tool_calls", _MAX_CALLS) if role == "assistant" else []
    is_empty = role == "assistant" and fields.get("content") is None
    content = (
        "" if is_empty else parse_content(fields.get("content"), f"{param}.content")
    )
    parsed = []
    for i, given in enumerate(calls):
        call = to_fields(given, f"{param}.tool_calls[{i}]")
        parsed.append(parse_call(call.fields("function"), call.text("id")))
    names = (
        ("reasoning_content", "reasoning", "thinking") if role == "assistant" else ()
    )
    texts = (text for name in names if isinstance(text := fields.get(name), str))
    reasoning = to_unicode(next(texts, ""))
    return ChatMessage(
        _ROLES[role], content, tool_calls=tuple(parsed), reasoning=reasoning
    )


def join_messages(
    messages: Sequence[ChatMessage], roles: tuple[str, ...]
) -> list[ChatMessage]:
    """Join what a chat has in one message: texts in a row, an answer, its thinking and
    calls.
    """
    joined: list[ChatMessage] = []
    for role, group in groupby(messages, lambda message: message.role):
        parts = list(group)
        if role not in roles:
            joined += parts
            continue
        texts = [part.content for part in parts if part.content]
        content = ("" if role == "assistant" else "\n\n").join(texts)
        calls = tuple(call for part in parts for call in part.tool_calls)
        reasoning = "\n\n".join(part.reasoning for part in parts if part.reasoning)
        if role != "assistant" or content or calls:  # thinking alone is no answer
            joined.append(
                ChatMessage(role, content, tool_calls=calls, reasoning=reasoning)
            )
    return joined


def parse_call(function: JsonFields, call_id: str) -> ToolCall:
    name = function.text("name")
    if not name:
        raise invalid(function.param("name"), "it is empty")
    return ToolCall(call_id, name, function.text("arguments") or "{}")


def parse_content(content: Any, param: str) -> str:
    """The text of a string, or of an array of parts. Raises ApiError."""
    if isinstance(content, str):
        return to_unicode(content)
    if not isinstance(content, list):
        raise invalid(param, "it is not a string or an array of parts")
    return "".join(parse_text(part, f"{param}[{i}]") for i, part in enumerate(content))


def parse_text(part: Any, param: str) -> str:
    """The text of a part of a message, in any of the APIs.

    Raises ApiError for an image.
    """
    fields = to_fields(part, param)
    if fields.get("type") not in ("text", "input_text", "output_text"):
        raise unsupported(fields.param("type"), "only text is supported here")
    if not isinstance(fields.get("text"), str):
        raise invalid(fields.param("text"), "it is not a string")
    return fields.text("text")


# --- tools
# --------------------------------------------------------------------------------------


class OfferedTools(Struct, frozen=True):
    """Tools that the model may call, or has to."""

    format: ToolFormat
    tools: str  # The request's array, as JSON: templates read it.
    # The JSON Schema of the arguments, by the tool's name.
    parameters: Mapping[str, Any]
    forced: ForcedCall | None = None
    is_single: bool = False  # At most one call.

    def make_parser(self) -> ToolCallParser:
        return ToolCallParser(self.format, self.parameters)


def parse_tools(fields: JsonFields, form: ToolFormat | None) -> OfferedTools | None:
    """None without tools, or with `tool_choice` none. Raises ApiError."""
    given = fields.items("tools", _MAX_TOOLS)
    is_single = not fields.flag("parallel_tool_calls", default=True)
    choice = fields.get("tool_choice")
    if not given or choice == "none":
        return None
    if form is None:
        raise unsupported(
            "tools", "the chat template of this model takes no tools that are known"
        )
    parameters = dict(_parse_tool(tool, f"tools[{i}]") for i, tool in enumerate(given))
    try:
        tools = OfferedTools(
            form, to_unicode(json.dumps(given)), parameters, is_single=is_single
        )
    except RecursionError:
        raise invalid("tools", "they are nested too deeply") from None
    names = list(parameters)
    if isinstance(choice, dict):
        names, choice = _parse_choice(choice)
    if not names or not parameters.keys() >= set(names):
        raise invalid("tool_choice", "it names none of the tools")
    if choice is None or choice == "auto":
        return replace(tools, parameters={name: parameters[name] for name in names})
    if choice != "required":
        raise invalid("tool_choice", _WRONG_CHOICE)
    try:
        forced = force_call(form, {name: parameters[name] for name in names})
    except UsageError as error:
        raise unsupported("tool_choice", f"{error.message} Name one") from None
    return replace(tools, forced=forced)


def _parse_tool(value: Any, param: str) -> tuple[str, Any]:
    """The name of a tool, and the schema of its arguments."""
    tool = to_fields(value, param)
    if tool.get("type") != "function":
        raise unsupported(f"{param}.type", "only functions can be called")
    function = tool.fields("function")
    name = function.text("name")
    if not _TOOL_NAME.fullmatch(name):
        raise invalid(
            f"{param}.function.name", "it is not a name of up to 128 letters or digits"
        )
    return name, function.get("parameters") or {"type": "object"}


def _parse_choice(choice: dict[str, Any]) -> tuple[list[str], str]:
    """The tools among which the model chooses, and whether it has to."""
    fields = JsonFields(choice, "tool_choice.")
    mode = "required"
    if choice.get("type") == "allowed_tools":
        fields = fields.fields("allowed_tools")
        mode = fields.choice("mode", ("auto", "required")) or "auto"
        given = [
            to_fields(tool, "tool_choice") for tool in fields.items("tools", _MAX_TOOLS)
        ]
    else:
        given = [fields]
    names = [tool.fields("function").get("name") for tool in given]
    if not all(isinstance(name, str) for name in names):
        raise invalid("tool_choice", _WRONG_CHOICE)
    return names, mode
