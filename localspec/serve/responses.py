"""OpenAI's Responses API: a request becomes a chat, its answer becomes output items."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from itertools import chain, groupby
from typing import Any
from uuid import uuid4

from localspec.models.chat_template.tool_calls import ToolCallDelta
from localspec.protocol.wire import ChatMessage
from localspec.serve.api_error import ApiError, unsupported
from localspec.serve.completion import PING, AnswerText, Completion, to_event
from localspec.serve.completion_formats import chat_logprobs, new_call_id
from localspec.serve.json_fields import JsonFields, to_fields
from localspec.serve.prompts import check_chat, parse_call, parse_message

_MAX_ITEMS = 20_000
_MAX_TOOLS = 1024
_LOGPROBS = "message.output_text.logprobs"  # The value of `include` that asks for logprobs.
_REFUSED = {
    "previous_response_id": "responses are not stored; send the conversation as input",
    "conversation": "conversations are not stored; send the conversation as input",
    "prompt": "prompts are not stored; send input",
    "background": "an answer ends when its client leaves",
}
_ID_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc"}

# --- the request ------------------------------------------------------------------------------


def parse_input(fields: JsonFields) -> tuple[ChatMessage, ...]:
    """The chat of `instructions` and `input`. Raises ApiError."""
    for name, problem in _REFUSED.items():
        if fields.get(name):
            raise unsupported(name, problem)
    given = fields.get("input")
    if isinstance(given, str):
        items: list[Any] = [{"role": "user", "content": given}]
    else:
        items = fields.items("input", _MAX_ITEMS)
    messages: list[ChatMessage] = []
    if instructions := fields.text("instructions"):
        messages.append(ChatMessage("system", instructions))
    messages = _join([*messages, *_parse_items(items)])
    check_chat(messages, "input")
    return tuple(messages)


def _parse_items(items: list[Any]) -> Iterator[ChatMessage]:
    """Thinking, an item of its own, goes to the answer that follows it, if one does."""
    thinking = ""
    for i, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "reasoning":
            thinking = _thinking_of(to_fields(item, f"input[{i}]")) or thinking
            continue
        message = _parse_item(item, f"input[{i}]")
        yield replace(message, reasoning=thinking) if message.role == "assistant" else message
        thinking = ""


def _thinking_of(fields: JsonFields) -> str:
    """Empty if it is encrypted."""
    given = [*fields.items("content", _MAX_ITEMS), *fields.items("summary", _MAX_ITEMS)]
    parts = (to_fields(part, fields.param("content")).text("text") for part in given)
    return "\n\n".join(filter(None, parts))


def _parse_item(value: Any, param: str) -> ChatMessage:
    fields = to_fields(value, param)
    kind = value.get("type", "message")
    if kind == "message":
        message = {name: value.get(name) for name in ("role", "content")}
        return parse_message(message, param)
    if kind == "function_call":
        call = parse_call(fields, fields.text("call_id"))
        return ChatMessage("assistant", "", tool_calls=(call,))
    if kind == "function_call_output":
        call_id = fields.text("call_id")
        output = {"role": "tool", "content": value.get("output"), "tool_call_id": call_id}
        return parse_message(output, param)
    raise unsupported(f"{param}.type", "items of this type are not supported")


def _join(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Join what a chat has in one message: system texts, and an answer and its calls."""
    joined: list[ChatMessage] = []
    for role, group in groupby(messages, lambda message: message.role):
        given = list(group)
        if role == "system":
            content = "\n\n".join(message.content for message in given)
            given = [replace(given[0], content=content)]
        for is_call, part in groupby(given, lambda message: bool(message.tool_calls)):
            if not is_call:
                joined += part
                continue
            callers = list(part)
            if not joined or joined[-1].role != role:
                joined.append(ChatMessage(role, ""))
            last = joined[-1]
            calls = tuple(call for message in callers for call in message.tool_calls)
            reasoning = last.reasoning or callers[0].reasoning
            joined[-1] = replace(last, tool_calls=last.tool_calls + calls, reasoning=reasoning)
    return joined


def to_chat_fields(fields: JsonFields) -> JsonFields:
    """The options with their names of chat completions. Raises ApiError."""
    include = fields.items("include", _MAX_TOOLS)
    given = fields.items("tools", _MAX_TOOLS)
    # Agents also offer tools that only OpenAI runs, such as web search.
    tools = [tool for tool in given if not isinstance(tool, dict) or tool.get("type") == "function"]
    choice, form = fields.get("tool_choice"), fields.fields("text").fields("format")
    response_format = None if form.is_empty else {"type": form.get("type")}
    if response_format is not None and form.get("type") == "json_schema":
        response_format["json_schema"] = {"schema": form.get("schema")}
    return fields.replaced(
        n=None,
        stream_options=None,
        max_completion_tokens=fields.integer("max_output_tokens", 1, 2**31 - 1),
        max_tokens=None,
        reasoning_effort=fields.fields("reasoning").get("effort"),
        response_format=response_format,
        logprobs=_LOGPROBS in include or fields.get("top_logprobs") is not None,
        tools=[_nest_function(tool) for tool in tools],
        tool_choice=_nest_function(choice) if isinstance(choice, dict) else choice,
    )


def _nest_function(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


# --- the answer -------------------------------------------------------------------------------


class OutputItems:
    """The output of a response as it grows.

    The methods change it while their events are consumed: each event is valid until the next one.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._is_open = False  # Whether the last item still grows.

    def add(self, text: AnswerText, logprobs: list[Any]) -> Iterator[dict[str, Any]]:
        if text.reasoning:
            yield from self._add_text("reasoning", text.reasoning, [])
        if text.content:
            yield from self._add_text("message", text.content, logprobs)
        for call in text.calls:
            yield from self._add_call(call)

    def close(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """End the last item."""
        if not self._is_open:
            return
        item = self.items[-1]
        self._is_open, item["status"] = False, status
        if item["type"] == "function_call":
            done = {name: item[name] for name in ("name", "arguments")}
            yield self._event("function_call_arguments.done", **done)
        else:
            (part,) = item["content"]
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._event(f"{part['type']}.done", content_index=0, **done)
            yield self._event("content_part.done", content_index=0, part=part)
        yield self._event("output_item.done", item=item)

    def _open(self, kind: str, **fields: Any) -> Iterator[dict[str, Any]]:
        yield from self.close()
        id_ = f"{_ID_PREFIXES[kind]}_{uuid4().hex}"
        self.items.append({"id": id_, "type": kind, "status": "in_progress"} | fields)
        self._is_open = True
        yield self._event("output_item.added", item=self.items[-1])

    def _add_text(self, kind: str, delta: str, logprobs: list[Any]) -> Iterator[dict[str, Any]]:
        is_message = kind == "message"
        if not self._is_open or self.items[-1]["type"] != kind:
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
            if is_message:
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            fields: dict[str, Any] = {"role": "assistant"} if is_message else {"summary": []}
            yield from self._open(kind, content=[], **fields)
            yield self._event("content_part.added", content_index=0, part=part)
            self.items[-1]["content"].append(part)
        (part,) = self.items[-1]["content"]
        part["text"] += delta
        more: dict[str, Any] = {}
        if is_message:
            part["logprobs"] += logprobs
            more["logprobs"] = logprobs
        yield self._event(f"{part['type']}.delta", content_index=0, delta=delta, **more)

    def _add_call(self, delta: ToolCallDelta) -> Iterator[dict[str, Any]]:
        """The first delta of a call has its name."""
        if delta.name:
            yield from self._open(
                "function_call", call_id=new_call_id(), name=delta.name, arguments=""
            )
        if delta.arguments:
            self.items[-1]["arguments"] += delta.arguments
            yield self._event("function_call_arguments.delta", delta=delta.arguments)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        if "item" not in fields:
            fields = {"item_id": self.items[-1]["id"]} | fields
        return {"type": f"response.{kind}", "output_index": len(self.items) - 1} | fields


class ResponseCompletion(Completion):
    """One answer as output items; a stream ends with the whole response, without `[DONE]`."""

    id_prefix = "resp_"

    def __init__(self, fields: JsonFields, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self._options.constraint_param == "response_format":
            self._options = replace(self._options, constraint_param="text.format")
        self._fields = fields
        self._output = OutputItems()
        self._n_events = 0

    def _whole(self) -> dict[str, Any]:
        text = self._choices[0].text
        changes = self._output.add(text, self._token_logprobs(text))
        deque(chain(changes, self._output.close(self._status)), maxlen=0)  # only the items count
        return self._response(self._status)

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        yield self._lifecycle_line("in_progress", {}, "created")
        yield self._lifecycle_line("in_progress", {})
        choice = self._choices[0]
        async for batch, text in self._deltas(choice):
            for progress in self._progress(batch):
                yield self._lifecycle_line("in_progress", progress)
            if text is not None:
                extras = self._chunk_extras(choice, text)
                for change in self._output.add(text, self._token_logprobs(text)):
                    yield self._line(change | extras)
            elif not batch:
                # Some clients count comments as silence.
                yield PING if self._output.items else self._lifecycle_line("in_progress", {})
        for change in self._output.close(self._status):
            yield self._line(change)

    def _last_line(self) -> bytes:
        return self._lifecycle_line(self._status, self._numbers())

    def _error_line(self, error: ApiError) -> bytes:
        failure = {"code": error.name or error.kind, "message": error.message}
        response = self._response("failed") | {"error": failure}
        return self._line({"type": "response.failed", "response": response})

    @property
    def _status(self) -> str:
        return "incomplete" if self._choices[0].finish_reason == "length" else "completed"

    def _token_logprobs(self, text: AnswerText) -> list[Any]:
        n_top = self._options.n_logprobs
        return [] if n_top is None else list(chat_logprobs(text.tokens, n_top)["content"])

    def _lifecycle_line(self, status: str, more: dict[str, Any], kind: str = "") -> bytes:
        event = {"type": f"response.{kind or status}", "response": self._response(status)}
        return self._line(event | more)

    def _line(self, event: dict[str, Any]) -> bytes:
        self._n_events += 1
        name = f"event: {event['type']}\n"
        return name.encode() + to_event(event | {"sequence_number": self._n_events - 1})

    def _response(self, status: str) -> dict[str, Any]:
        fields, sampling = self._fields, self._options.settings.sampling
        reasoning, form = fields.fields("reasoning"), fields.fields("text").fields("format")
        is_done = status in ("completed", "incomplete")
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        given = fields.get("metadata")
        pairs = given.items() if isinstance(given, dict) else ()
        # Only texts have a meaning in OpenAI's API.
        metadata = {name: text for name, text in pairs if isinstance(text, str)}
        response: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": reason,
            "instructions": fields.text("instructions") or None,
            "max_output_tokens": fields.get("max_output_tokens"),
            "metadata": metadata,
            "model": self._model.name,
            "output": self._output.items,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": reasoning.text("effort") or None, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": {"type": form.get("type") or "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": self._response_usage() if is_done else None,
        }
        return response | self._numbers() if is_done else response

    def _response_usage(self) -> dict[str, Any]:
        usage = self._usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
