"""OpenAI's Responses API: a request becomes a chat, its answer becomes output items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from localspec.protocol.events import Event
from localspec.protocol.wire import ChatMessage
from localspec.serve.api_error import ApiError, invalid, unsupported
from localspec.serve.completion import PING
from localspec.serve.completion_formats import new_call_id
from localspec.serve.content_parts import describe_unread, join_parts
from localspec.serve.json_bodies import convert_request, to_unicode
from localspec.serve.output_items import ItemCompletion, ItemKind, JsonEvent
from localspec.serve.prompts import (
    ChatFields,
    PlacedMessage,
    check_chat,
    count_answered,
    join_messages,
    make_call,
    make_custom_call,
    parse_message,
)
from localspec.serve.request_pictures import RequestPictures
from localspec.serve.requests import (
    CustomCall,
    ReasoningOptions,
    RequestedFunction,
    RequestMessage,
    ResponseItem,
    ResponsesRequest,
    TextFormat,
    TextOptions,
)
from localspec.serve.typed_tools import (
    NamespacedTool,
    check_left_out,
    find_namespaced,
    flatten_tools,
)

_LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for logprobs."""
_NOT_OF_THIS_API = dict.fromkeys(("n", "stream_options", "max_tokens"))
"""Fields of chat completions that have no meaning here, whatever a client sends."""
_REFUSED = {
    "previous_response_id": "responses are not stored; send the conversation as input",
    "conversation": "conversations are not stored; send the conversation as input",
    "prompt": "prompts are not stored; send input",
    "background": "an answer ends when its client leaves",
}
_STORED = ("item_reference", "compaction")
"""Items whose text only the server that stored it knows."""
_ITEM_TYPES: dict[ItemKind, tuple[str, str]] = {
    "thinking": ("reasoning", "rs"),
    "text": ("message", "msg"),
    "call": ("function_call", "fc"),
}
"""The type of an item, and the prefix of its id."""
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

_MAX_SHOWN = 64  # Characters of a client's word in an error.
_MAX_METADATA_PAIRS = 16
_MAX_METADATA_NAME = 64
_MAX_METADATA_TEXT = 512
_MAX_ECHOED = 64 * 1024
"""Characters of instructions that are repeated; most events repeat them."""

# --- the request


def parse_chat(
    body: dict[str, Any], *, sees: bool = False, hears: bool = False
) -> ChatFields:
    """Raises ApiError. `sees`, `hears`: whether the model takes pictures, and audio."""
    for name, problem in _REFUSED.items():
        if body.get(name):
            raise unsupported(name, problem)
    request = convert_request(ResponsesRequest, body)
    _check_metadata(request.metadata)
    return ChatFields(
        placed=_parse_input(request, RequestPictures(sees=sees, hears=hears)),
        param="input",
        body=body | _rename_fields(request, body),
        names=_NAMES,
        echoed=request,
    )


def _parse_input(
    request: ResponsesRequest, pictures: RequestPictures
) -> tuple[PlacedMessage, ...]:
    """The chat of `instructions` and `input`."""
    messages: list[PlacedMessage] = []
    if request.instructions:
        system = ChatMessage("system", to_unicode(request.instructions))
        messages.append(PlacedMessage(system, "instructions"))
    if isinstance(request.input, str):
        question = ChatMessage("user", join_parts(request.input, "input").text)
        messages.append(PlacedMessage(question, "input"))
    else:
        items = request.input or []
        n_answered = count_answered([_find_role(item) for item in items])
        for i, item in enumerate(items):
            place = f"input[{i}]"
            message = _parse_item(item, place, pictures, is_asked=i >= n_answered)
            if message is None:
                if i == len(items) - 1 or item.type in _STORED:
                    raise _refuse_item(item.type, place)
                message = _describe_item(item)
            messages.append(PlacedMessage(message, place))
    messages = join_messages(messages, ("system", "assistant"))
    check_chat(messages, "input")
    return tuple(messages)


def _refuse_item(type_: str | None, param: str) -> ApiError:
    shown = to_unicode(type_ or "")[:_MAX_SHOWN]
    problem = (
        f"items of the type {shown!r} are not supported; nothing is stored "
        "(AI SDK: store: false)"
    )
    return unsupported(f"{param}.type", problem)


def _find_role(item: ResponseItem) -> str | None:
    if item.type in ("function_call", "custom_tool_call", "reasoning"):
        return "assistant"
    return item.role


def _describe_item(item: ResponseItem) -> ChatMessage:
    """An earlier item that is not read, such as a search, as a line of text."""
    line = describe_unread(item.type)
    if (item.type or "").endswith("_output"):
        return ChatMessage("user", line)
    return ChatMessage("assistant", f"\n{line}\n")


def _parse_item(
    item: ResponseItem, param: str, pictures: RequestPictures, *, is_asked: bool
) -> ChatMessage | None:
    """None for an item of an unknown type."""
    if item.type in (None, "message"):
        message = RequestMessage(item.role, item.content)
        return parse_message(message, param, pictures, is_asked=is_asked)
    if item.type == "reasoning":
        return ChatMessage("assistant", "", reasoning=_join_thinking(item))
    if item.type == "function_call":
        name = item.name
        if name and item.namespace:
            name = NamespacedTool(item.namespace, name).flat_name
        function = RequestedFunction(name, item.arguments)
        call = make_call(function, item.call_id, param)
        return ChatMessage("assistant", "", tool_calls=(call,))
    if item.type == "custom_tool_call":
        custom = CustomCall(item.name, item.input)
        call = make_custom_call(custom, item.call_id, param)
        return ChatMessage("assistant", "", tool_calls=(call,))
    if item.type in ("function_call_output", "custom_tool_call_output"):
        result = RequestMessage("tool", item.output, tool_call_id=item.call_id)
        return parse_message(result, param, pictures, is_asked=is_asked)
    return None


def _check_metadata(metadata: Any) -> None:
    """Raise ApiError for more than OpenAI accepts: most events repeat it."""
    if not isinstance(metadata, dict):
        return
    texts = [value for value in metadata.values() if isinstance(value, str)]
    has_long_name = any(len(name) > _MAX_METADATA_NAME for name in metadata)
    has_long_text = any(len(text) > _MAX_METADATA_TEXT for text in texts)
    if len(metadata) > _MAX_METADATA_PAIRS or has_long_name or has_long_text:
        problem = (
            f"at most {_MAX_METADATA_PAIRS} pairs of a name of {_MAX_METADATA_NAME} and "
            f"a text of {_MAX_METADATA_TEXT} characters are possible"
        )
        raise invalid("metadata", problem)


def _join_thinking(item: ResponseItem) -> str:
    """Empty if it is encrypted."""
    content = [] if isinstance(item.content, str) else item.content or []
    parts = [*content, *(item.summary or [])]
    return "\n\n".join(to_unicode(part.text) for part in parts if part.text)


def _rename_fields(request: ResponsesRequest, body: dict[str, Any]) -> dict[str, Any]:
    """The fields that chat completions have under another name or in another form."""
    text = request.text or TextOptions()
    reasoning = request.reasoning or ReasoningOptions()
    wants_logprobs = _LOGPROBS in (request.include or ())
    tools, left_out = flatten_tools(request.tools)
    check_left_out(left_out, request.tool_choice, has_others=bool(tools))
    return _NOT_OF_THIS_API | {
        "max_completion_tokens": request.max_output_tokens,
        "reasoning_effort": reasoning.effort,
        "response_format": nest_format(text.format),
        "logprobs": wants_logprobs or body.get("top_logprobs") is not None,
        "tools": [_nest_function(tool) for tool in tools],
        "tool_choice": _nest_choice(request.tool_choice),
    }


def _nest_choice(choice: Any) -> Any:
    """The choice of a tool as chat completions have it.

    Here `allowed_tools` has its fields beside the type, and tools without a level more.
    """
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools":
        return _nest_function(_flatten_name(choice))
    allowed = {name: value for name, value in choice.items() if name != "type"}
    if isinstance(allowed.get("tools"), list):
        functions, _ = flatten_tools(list(map(_flatten_name, allowed["tools"])))
        allowed["tools"] = list(map(_nest_function, functions))
    return {"type": "allowed_tools", "allowed_tools": allowed}


def _flatten_name(tool: Any) -> Any:
    """A function that is named with its namespace, by the name it is offered under."""
    if not isinstance(tool, dict) or not isinstance(tool.get("namespace"), str):
        return tool
    name = NamespacedTool(tool["namespace"], str(tool.get("name"))).flat_name
    named = {key: value for key, value in tool.items() if key != "namespace"}
    return {**named, "name": name}


def _nest_function(tool: Any) -> Any:
    """A tool, or the choice of one, as chat completions have it.

    `{"type": "function", "name": "f"}` becomes
    `{"type": "function", "function": {"name": "f"}}`.
    """
    if not isinstance(tool, dict) or tool.get("type") != "function":
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def nest_format(form: TextFormat | None) -> dict[str, Any] | None:
    """A format of this API or of Anthropic's as chat completions have it."""
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

    def _begin(self, kind: ItemKind, name: str) -> Iterator[JsonEvent]:
        type_, prefix = _ITEM_TYPES[kind]
        id_ = f"{prefix}_{uuid4().hex}"
        item: dict[str, Any] = {"id": id_, "type": type_, "status": "in_progress"}
        part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        if kind == "call":
            item |= {"call_id": new_call_id(), "name": name, "arguments": ""}
            namespaced = find_namespaced(self.options.echoed.tools).get(name)
            if namespaced is not None:
                item |= {"name": namespaced.name, "namespace": namespaced.namespace}
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

    def _grow(self, delta: str, logprobs: list[Any]) -> JsonEvent:
        if self.kind == "call":
            return self._event("function_call_arguments.delta", delta=delta)
        if self.kind == "thinking":
            return self._event("reasoning_text.delta", content_index=0, delta=delta)
        (part,) = self.items[-1]["content"]
        part["logprobs"] += logprobs
        return self._event(
            "output_text.delta", content_index=0, delta=delta, logprobs=logprobs
        )

    def _set_text(self, text: str) -> None:
        item = self.items[-1]
        if self.kind == "call":
            item["arguments"] = text
        else:
            (part,) = item["content"]
            part["text"] = text

    def _end(self, *, is_cut: bool) -> Iterator[JsonEvent]:
        item = self.items[-1]
        item["status"] = "incomplete" if is_cut else "completed"
        if self.kind == "call":
            yield self._event(
                "function_call_arguments.done",
                name=item["name"],
                arguments=item["arguments"],
            )
        else:
            (part,) = item["content"]
            done = {name: part[name] for name in ("text", "logprobs") if name in part}
            yield self._event(f"{part['type']}.done", content_index=0, **done)
            yield self._event("content_part.done", content_index=0, part=part)
        yield self._event("output_item.done", item=item)

    def _event(self, kind: str, **fields: Any) -> JsonEvent:
        event = {"type": f"response.{kind}", "output_index": len(self.items) - 1}
        if "item" not in fields:
            event["item_id"] = self.items[-1]["id"]
        return event | fields

    def _news(self, batch: Sequence[Event]) -> Iterator[JsonEvent]:
        if not self._n_events:
            yield self._lifecycle("in_progress", {}, "created")
            yield self._lifecycle("in_progress", {})
        for progress in self._progress(batch):
            yield self._lifecycle("in_progress", progress)

    def ping(self) -> bytes:
        if self.items:
            return PING
        # Some clients count comments as silence.
        return self._line(self._lifecycle("in_progress", {}))

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

    def _line(self, event: JsonEvent) -> bytes:
        sequence_number = self._n_events
        self._n_events += 1
        return super()._line(event | {"sequence_number": sequence_number})

    def _response(self, status: str) -> dict[str, Any]:
        self._write_text()
        request = self.options.echoed
        instructions = request.instructions or None
        if instructions is not None and len(instructions) > _MAX_ECHOED:
            instructions = None
        reasoning = request.reasoning or ReasoningOptions()
        text = request.text or TextOptions()
        form = text.format or TextFormat()
        sampling = self.options.settings.sampling
        response: dict[str, Any] = _CONSTANTS | {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "incomplete_details": None,
            "instructions": instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": _text_values(request.metadata),
            "model": self._model.name,
            "output": self.items,
            "reasoning": {"effort": reasoning.effort or None, "summary": None},
            "temperature": sampling.temperature,
            "text": {"format": {"type": form.type or "text"}},
            "top_p": sampling.top_p,
            "usage": None,
        }
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if status in ("completed", "incomplete"):
            response["usage"] = self._response_usage()
            response |= self._numbers()
        return response

    def _response_usage(self) -> dict[str, Any]:
        usage = self._usage()
        input_details = usage["prompt_tokens_details"] | {"cache_write_tokens": 0}
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": input_details,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }


def _text_values(metadata: Any) -> dict[str, str]:
    """Other values have no meaning in OpenAI's API."""
    if not isinstance(metadata, dict):
        return {}
    return {name: value for name, value in metadata.items() if isinstance(value, str)}
