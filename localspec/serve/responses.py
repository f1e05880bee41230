"""OpenAI's Responses API: a request becomes a chat, its answer becomes output items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from localspec.protocol.events import Event
from localspec.protocol.wire import ChatMessage
from localspec.serve.api_error import ApiError, unsupported
from localspec.serve.completion import PING
from localspec.serve.completion_formats import new_call_id
from localspec.serve.json_bodies import convert_request, to_unicode
from localspec.serve.output_items import ItemCompletion, ItemKind
from localspec.serve.prompts import check_chat, join_messages, make_call, parse_message
from localspec.serve.requests import (
    ReasoningOptions,
    RequestedFunction,
    RequestMessage,
    ResponseItem,
    ResponsesRequest,
    TextFormat,
    TextOptions,
)

INPUT = "input"
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
_CONSTANTS: dict[str, Any] = {
    "error": None,
    "previous_response_id": None,
    "store": False,
    "tools": [],
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


def parse_input(body: dict[str, Any]) -> tuple[ChatMessage, ...]:
    """The chat of `instructions` and `input`. Raises ApiError."""
    for name, problem in _REFUSED.items():
        if body.get(name):
            raise unsupported(name, problem)
    request = convert_request(ResponsesRequest, body)
    messages = []
    if request.instructions:
        messages.append(ChatMessage("system", to_unicode(request.instructions)))
    if isinstance(request.input, str):
        messages.append(ChatMessage("user", to_unicode(request.input)))
    else:
        for i, item in enumerate(request.input or ()):
            messages.append(_parse_item(item, f"input[{i}]"))
    messages = join_messages(messages, ("system", "assistant"))
    check_chat(messages, "input")
    return tuple(messages)


def _parse_item(item: ResponseItem, param: str) -> ChatMessage:
    if item.type in (None, "message"):
        return parse_message(RequestMessage(item.role, item.content), param)
    if item.type == "reasoning":
        return ChatMessage("assistant", "", reasoning=_join_thinking(item))
    if item.type == "function_call":
        function = RequestedFunction(item.name, item.arguments)
        call = make_call(function, item.call_id, param)
        return ChatMessage("assistant", "", tool_calls=(call,))
    if item.type == "function_call_output":
        result = RequestMessage("tool", item.output, tool_call_id=item.call_id)
        return parse_message(result, param)
    problem = (
        "items of this type are not supported; nothing is stored (AI SDK: store: false)"
    )
    raise unsupported(f"{param}.type", problem)


def _join_thinking(item: ResponseItem) -> str:
    """Empty if it is encrypted."""
    content = [] if isinstance(item.content, str) else item.content or []
    parts = [*content, *(item.summary or [])]
    return "\n\n".join(to_unicode(part.text) for part in parts if part.text)


def to_chat_fields(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The request with its names of chat completions, and the client's names.

    Raises ApiError.
    """
    request = convert_request(ResponsesRequest, body)
    text = request.text or TextOptions()
    reasoning = request.reasoning or ReasoningOptions()
    wants_logprobs = _LOGPROBS in (request.include or ())
    choice = request.tool_choice
    changes: dict[str, Any] = dict.fromkeys(("n", "stream_options", "max_tokens"))
    changes["max_completion_tokens"] = request.max_output_tokens
    changes["reasoning_effort"] = reasoning.effort
    changes["response_format"] = nest_format(text.format)
    changes["logprobs"] = wants_logprobs or body.get("top_logprobs") is not None
    changes["tools"] = [
        _nest_function(tool) for tool in request.tools or () if _is_callable(tool)
    ]
    changes["tool_choice"] = (
        _nest_function(choice) if isinstance(choice, dict) else choice
    )
    return body | changes, _NAMES


def _is_callable(tool: Any) -> bool:
    """Agents also offer tools that only OpenAI runs, such as web search."""
    return not isinstance(tool, dict) or tool.get("type") == "function"


def _nest_function(tool: Any) -> Any:
    """A tool of this API as chat completions have it."""
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def nest_format(form: TextFormat | None) -> dict[str, Any] | None:
    """A format of this API as chat completions have it."""
    if form is None or form == TextFormat():
        return None
    nested: dict[str, Any] = {"type": form.type}
    if form.type == "json_schema" or form.schema is not None:
        nested["json_schema"] = {"schema": form.schema}
    return nested


# --- the answer


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
        request = self.options.echoed
        sampling = self.options.settings.sampling
        reasoning = request.reasoning or ReasoningOptions()
        text = request.text or TextOptions()
        form = text.format or TextFormat()
        is_done = status in ("completed", "incomplete")
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        metadata = {}
        if isinstance(request.metadata, dict):
            for name, value in request.metadata.items():
                if isinstance(value, str):  # Others have no meaning in OpenAI's API.
                    metadata[name] = value
        response = _CONSTANTS | {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "incomplete_details": reason,
            "instructions": request.instructions or None,
            "max_output_tokens": request.max_output_tokens,
            "metadata": metadata,
            "model": self._model.name,
            "output": self.items,
            "reasoning": {"effort": reasoning.effort or None, "summary": None},
            "temperature": sampling.temperature,
            "text": {"format": {"type": form.type or "text"}},
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
