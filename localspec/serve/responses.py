"""OpenAI's Responses API: a request becomes a chat, its answer becomes output items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from localspec.config.option_types import MAX_INT
from localspec.protocol.events import Event
from localspec.protocol.wire import ChatMessage
from localspec.serve.api_error import ApiError, unsupported
from localspec.serve.completion import PING
from localspec.serve.completion_formats import new_call_id
from localspec.serve.json_fields import JsonFields, to_fields
from localspec.serve.output_items import ItemCompletion, ItemKind
from localspec.serve.prompts import check_chat, join_messages, parse_call, parse_message

INPUT = "input"
_MAX_ITEMS = 20_000
_MAX_TOOLS = 1024
# The value of `include` that asks for logprobs.
_LOGPROBS = "message.output_text.logprobs"
_REFUSED = {
    "previous_response_id": "responses are not stored; send the conversation as input",
    "conversation": "conversations are not stored; send the conversation as input",
    "prompt": "prompts are not stored; send input",
    "background": "an answer ends when its client leaves",
}
_ITEM_TYPES: dict[ItemKind, tuple[str, str]] = {  # With the prefix of their ids.
    "thinking": ("reasoning", "rs"),
    "text": ("message", "msg"),
    "call": ("function_call", "fc"),
}
_CONSTANTS: Any = {
    "error": None,
    "previous_response_id": None,
    "store": False,
    "tools": [],
}
_CONSTANTS |= {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "disabled",
}
_NAMES = {
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
"""The names that fields of chat completions have here."""

# --- the request
# ------------------------------------------------------------------------------


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
    instructions = fields.text("instructions")
    messages = [ChatMessage("system", instructions)] if instructions else []
    messages += (_parse_item(item, f"input[{i}]") for i, item in enumerate(items))
    messages = join_messages(messages, ("system", "assistant"))
    check_chat(messages, "input")
    return tuple(messages)


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
    if kind == "reasoning":
        return ChatMessage("assistant", "", reasoning=_thinking_of(fields))
    if kind == "function_call":
        call = parse_call(fields, fields.text("call_id"))
        return ChatMessage("assistant", "", tool_calls=(call,))
    if kind == "function_call_output":
        call_id = fields.text("call_id")
        output = {
            "role": "tool",
            "content": value.get("output"),
            "tool_call_id": call_id,
        }
        return parse_message(output, param)
    problem = (
        "items of this type are not supported; nothing is stored (AI SDK: store: false)"
    )
    raise unsupported(f"{param}.type", problem)


def to_chat_fields(fields: JsonFields) -> JsonFields:
    """The options with their names of chat completions. Raises ApiError."""
    include = fields.items("include", _MAX_TOOLS)
    given = fields.items("tools", _MAX_TOOLS)
    # Agents also offer tools that only OpenAI runs, such as web search.
    tools = [
        tool
        for tool in given
        if not isinstance(tool, dict) or tool.get("type") == "function"
    ]
    choice, form = fields.get("tool_choice"), fields.fields("text").fields("format")
    response_format = {"type": form.get("type")} if form.values else None
    if response_format is not None and form.get("type") == "json_schema":
        response_format["json_schema"] = {"schema": form.get("schema")}
    return fields.renamed(
        _NAMES,
        n=None,
        stream_options=None,
        max_completion_tokens=fields.integer("max_output_tokens", 1, MAX_INT),
        max_tokens=None,
        reasoning_effort=fields.fields("reasoning").get("effort"),
        response_format=response_format,
        logprobs=_LOGPROBS in include or fields.get("top_logprobs") is not None,
        tools=[nest_function(tool) for tool in tools],
        tool_choice=nest_function(choice) if isinstance(choice, dict) else choice,
    )


def nest_function(tool: Any) -> Any:
    """A tool of this API as chat completions have it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


# --- the answer
# -------------------------------------------------------------------------------


class ResponseCompletion(ItemCompletion):
    """A stream ends with the whole response, without `[DONE]`."""

    id_prefix = "resp_"
    _n_events = 0

    def _begin(self, kind: ItemKind, name: str) -> Iterator[dict[str, Any]]:
        type_, prefix = _ITEM_TYPES[kind]
        id_ = f"{prefix}_{uuid4().hex}"
        item: dict[str, Any] = {"id": id_, "type": type_, "status": "in_progress"}
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        if kind == "call":
            item |= {"call_id": new_call_id(), "name": name, "arguments": ""}
        elif kind == "text":
            item |= {"role": "assistant", "content": []}
            part = {
                "type": "output_text",
                "text": "",
                "annotations": [],
                "logprobs": [],
            }
        else:
            item |= {"summary": [], "content": []}
        self.items.append(item)
        yield self._event("output_item.added", item=item)
        if kind != "call":
            yield self._event("content_part.added", content_index=0, part=part)
            item["content"].append(part)

    def _grow(self, delta: str, logprobs: list[Any]) -> dict[str, Any]:
        if self.kind == "call":
            self.items[-1]["arguments"] += delta
            return self._event("function_call_arguments.delta", delta=delta)
        (part,) = self.items[-1]["content"]
        part["text"] += delta
        more: dict[str, Any] = {}
        if self.kind == "text":
            part["logprobs"] += logprobs
            more["logprobs"] = logprobs
        return self._event(
            f"{part['type']}.delta", content_index=0, delta=delta, **more
        )

    def _end(self, is_cut: bool) -> Iterator[dict[str, Any]]:
        item = self.items[-1]
        item["status"] = "incomplete" if is_cut else "completed"
        if self.kind == "call":
            done = {name: item[name] for name in ("name", "arguments")}
            yield self._event("function_call_arguments.done", **done)
        else:
            (part,) = item["content"]
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._event(f"{part['type']}.done", content_index=0, **done)
            yield self._event("content_part.done", content_index=0, part=part)
        yield self._event("output_item.done", item=item)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        if "item" not in fields:
            fields = {"item_id": self.items[-1]["id"]} | fields
        return {
            "type": f"response.{kind}",
            "output_index": len(self.items) - 1,
        } | fields

    def _news(self, batch: Sequence[Event]) -> Iterator[dict[str, Any]]:
        if not self._n_events:
            yield self._lifecycle("in_progress", {}, "created")
            yield self._lifecycle("in_progress", {})
        for progress in self._progress(batch):
            yield self._lifecycle("in_progress", progress)

    def _ping(self) -> bytes:
        # Some clients count comments as silence.
        return PING if self.items else self._line(self._lifecycle("in_progress", {}))

    def _answer(self) -> dict[str, Any]:
        return self._response(self._status)

    def _last_line(self) -> bytes:
        return self._line(self._lifecycle(self._status, self._numbers()))

    def _error_line(self, error: ApiError) -> bytes:
        failure = {"code": error.name or error.kind, "message": error.message}
        response = self._response("failed") | {"error": failure}
        return self._line({"type": "response.failed", "response": response})

    @property
    def _status(self) -> str:
        return "incomplete" if self._is_cut else "completed"

    def _lifecycle(
        self, status: str, more: dict[str, Any], kind: str = ""
    ) -> dict[str, Any]:
        event = {
            "type": f"response.{kind or status}",
            "response": self._response(status),
        }
        return event | more

    def _line(self, event: dict[str, Any]) -> bytes:
        self._n_events += 1
        return super()._line(event | {"sequence_number": self._n_events - 1})

    def _response(self, status: str) -> dict[str, Any]:
        fields, sampling = self.options.fields, self.options.settings.sampling
        reasoning, form = (
            fields.fields("reasoning"),
            fields.fields("text").fields("format"),
        )
        is_done = status in ("completed", "incomplete")
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        given = fields.get("metadata")
        pairs = given.items() if isinstance(given, dict) else ()
        # Only texts have a meaning in OpenAI's API.
        metadata = {name: text for name, text in pairs if isinstance(text, str)}
        response: dict[str, Any] = _CONSTANTS | {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "incomplete_details": reason,
            "instructions": fields.text("instructions") or None,
            "max_output_tokens": fields.get("max_output_tokens"),
            "metadata": metadata,
            "model": self._model.name,
            "output": self.items,
            "reasoning": {"effort": reasoning.text("effort") or None, "summary": None},
            "temperature": sampling.temperature,
            "text": {"format": {"type": form.get("type") or "text"}},
            "top_p": sampling.top_p,
            "usage": self._response_usage() if is_done else None,
        }
        return response | self._numbers() if is_done else response

    def _response_usage(self) -> dict[str, Any]:
        usage = self._usage()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"]
            | {"cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
