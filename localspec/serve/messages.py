"""Anthropic's Messages API: a request becomes a chat, its answer content blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from localspec.protocol.events import Event, Prefill
from localspec.protocol.wire import ChatMessage
from localspec.serve.api_error import ApiError, invalid
from localspec.serve.completion import PING
from localspec.serve.content_parts import join_parts, read_part
from localspec.serve.json_bodies import convert_request, to_event, to_unicode
from localspec.serve.output_items import ItemCompletion, ItemKind, JsonEvent
from localspec.serve.prompts import (
    ChatFields,
    PlacedMessage,
    check_chat,
    count_answered,
    join_messages,
    make_call,
)
from localspec.serve.request_pictures import RequestPictures
from localspec.serve.requests import (
    ContentPart,
    MessageBlock,
    MessagesRequest,
    MessageToolChoice,
    OutputConfig,
    RequestedFunction,
    ThinkingOptions,
)
from localspec.serve.responses import nest_format
from localspec.serve.typed_tools import check_left_out, make_client_function

_BILLING = "x-anthropic-billing-header:"
"""A system block of Claude Code that differs in each request.

With it, no prompt would continue another.
"""
_SIGNATURE = "localspec"
"""The signature of all thinking; some clients send back only thinking that has one."""
_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "effort_hint": "output_config.effort",
    "thinking_budget_tokens": "thinking.budget_tokens",
}
"""The names that fields of chat completions have here."""
_NOT_OF_THIS_API = dict.fromkeys(
    ("n", "stream_options", "logprobs", "top_logprobs", "modalities")
)
"""Fields of chat completions that have no meaning here, whatever a client sends."""
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOP_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}

# --- the request


def parse_chat(
    body: dict[str, Any], *, sees: bool = False, hears: bool = False
) -> ChatFields:
    """Raises ApiError. `sees`, `hears`: whether the model takes pictures, and audio."""
    pictures = RequestPictures(sees=sees, hears=hears)
    return _parse_chat(body, pictures, is_counted=False)


def parse_counted_chat(
    body: dict[str, Any], *, sees: bool = False, hears: bool = False
) -> ChatFields:
    """As `parse_chat`, where only the tokens are counted.

    Pictures that cannot be read count as the text in their place.
    """
    pictures = RequestPictures(sees=sees, hears=hears)
    return _parse_chat(body, pictures, is_counted=True)


def _parse_chat(
    body: dict[str, Any], pictures: RequestPictures, *, is_counted: bool
) -> ChatFields:
    request = convert_request(MessagesRequest, body)
    return ChatFields(
        placed=_parse_messages(request, pictures, is_counted=is_counted),
        param="messages",
        body=body | _rename_fields(request, body),
        names=_NAMES,
    )


def _parse_messages(
    request: MessagesRequest, pictures: RequestPictures, *, is_counted: bool
) -> tuple[PlacedMessage, ...]:
    """The chat of `system` and `messages`."""
    system = _parse_blocks(
        "system", request.system or [], "system", pictures, is_asked=not is_counted
    )
    messages = []
    for block in system:
        if not block.message.content.startswith(_BILLING):
            messages.append(block)
    given = request.messages or []
    n_answered = count_answered([message.role for message in given])
    for i, message in enumerate(given):
        blocks = _parse_blocks(
            message.role,
            message.content,
            f"messages[{i}].content",
            pictures,
            is_asked=i >= n_answered and not is_counted,
        )
        messages += join_messages(blocks, ("user", "assistant", "system"))
    messages = join_messages(messages, ("system",))
    check_chat(messages, "messages")
    return tuple(messages)


def _parse_blocks(
    role: str,
    content: str | list[MessageBlock],
    param: str,
    pictures: RequestPictures,
    *,
    is_asked: bool,
) -> list[PlacedMessage]:
    """Each block as a message of its own."""
    if isinstance(content, str):
        text = join_parts(content, param).text
        return [PlacedMessage(ChatMessage(role, text), param)]
    messages = []
    for i, block in enumerate(content):
        place = f"{param}[{i}]"
        message = _parse_block(role, block, place, pictures, is_asked=is_asked)
        messages.append(PlacedMessage(message, place))
    return messages


def _parse_block(
    role: str,
    block: MessageBlock,
    param: str,
    pictures: RequestPictures,
    *,
    is_asked: bool,
) -> ChatMessage:
    if role == "assistant" and block.type in ("thinking", "redacted_thinking"):
        return ChatMessage(role, "", reasoning=to_unicode(block.thinking or ""))
    if role == "assistant" and block.type == "tool_use":
        try:
            given_input = {} if block.input is None else block.input
            arguments = json.dumps(given_input, ensure_ascii=False)
        except RecursionError:
            raise invalid(f"{param}.input", "it is nested too deeply") from None
        function = RequestedFunction(block.name, arguments)
        return ChatMessage(role, "", tool_calls=(make_call(function, block.id, param),))
    if role == "user" and block.type == "tool_result":
        given = block.content
        if isinstance(given, dict):
            given = [convert_request(ContentPart, given, f"{param}.content")]
        content = join_parts(given, f"{param}.content", pictures, is_asked=False)
        call_id = to_unicode(block.tool_use_id or "")
        return ChatMessage(
            "tool", content.text, tool_call_id=call_id, images=content.images
        )
    part = ContentPart(
        block.type,
        block.text,
        tool_name=block.tool_name,
        title=block.title,
        context=block.context,
        source=block.source,
        content=block.content,
    )
    if role == "assistant":
        text = read_part(part, param, is_asked=is_asked).text
        if block.type != "text":
            # The blocks of an answer are joined without a line feed.
            text = f"\n{text}\n"
        return ChatMessage(role, text)
    read = read_part(part, param, pictures, is_asked=is_asked)
    return ChatMessage(role, read.text, images=read.images)


def _rename_fields(request: MessagesRequest, body: dict[str, Any]) -> dict[str, Any]:
    """The fields that chat completions have under another name or in another form."""
    output = request.output_config or OutputConfig()
    thinking = request.thinking or ThinkingOptions()
    effort = None
    if thinking.type == "disabled":
        effort = "none"
    arguments = body.get("chat_template_kwargs")
    if thinking.type == "enabled" and isinstance(arguments, dict | None):
        arguments = {**(arguments or {}), "enable_thinking": True}
    choice = request.tool_choice or MessageToolChoice()
    tool_choice: Any = None
    if choice.type == "tool":
        function = {"name": choice.name or ""}
        tool_choice = {"type": "function", "function": function}
    elif choice.type is not None:
        tool_choice = _TOOL_CHOICES[choice.type]
    return _NOT_OF_THIS_API | {
        "stop": request.stop_sequences,
        "tools": _nest_tools(request),
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
        "tool_choice": tool_choice,
        "response_format": nest_format(output.format),
        "effort_hint": output.effort,
        "reasoning_effort": effort,
        "chat_template_kwargs": arguments,
        "thinking_budget_tokens": thinking.budget_tokens,
    }


def _nest_tools(request: MessagesRequest) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    left_out: list[str] = []
    for i, tool in enumerate(request.tools or ()):
        if tool.type not in (None, "custom"):
            made = make_client_function(tool.type, tool.name or "", f"tools[{i}]")
            if made is None:
                left_out.append(tool.name or tool.type)
            else:
                tools.append({"type": "function", "function": made})
            continue
        if tool.input_schema is None:
            raise invalid(f"tools[{i}].input_schema", "it is missing")
        function: dict[str, Any] = {}
        if tool.name:
            function["name"] = tool.name
        if tool.description:
            function["description"] = tool.description
        function["parameters"] = tool.input_schema
        tools.append({"type": "function", "function": function})
    choice = request.tool_choice or MessageToolChoice()
    forced = choice.name if choice.type == "tool" else None
    if choice.type == "any":
        forced = "required"
    check_left_out(left_out, forced, has_others=bool(tools))
    return tools


# --- the answer


class MessageCompletion(ItemCompletion):
    """A stream begins when it is known how much of the prompt is read again."""

    id_prefix = "msg_"
    _has_begun = False

    def _begin(self, kind: ItemKind, name: str) -> Iterator[JsonEvent]:
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind == "thinking":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind == "call":
            id_ = f"toolu_{uuid4().hex[:24]}"
            block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        self.items.append(block)
        yield self._event("start", content_block=block)

    def _grow(self, delta: str, logprobs: list[Any]) -> JsonEvent:
        if self.kind == "call":
            return self._delta("input_json_delta", partial_json=delta)
        if self.kind == "thinking":
            return self._delta("thinking_delta", thinking=delta)
        return self._delta("text_delta", text=delta)

    def _set_text(self, text: str) -> None:
        block = self.items[-1]
        if self.kind == "call":
            with suppress(ValueError):  # The call was cut.
                block["input"] = json.loads(text or "{}")
        elif self.kind == "thinking":
            block["thinking"] = text
        else:
            block["text"] = text

    def _end(self, *, is_cut: bool) -> Iterator[JsonEvent]:
        if self.kind == "thinking":
            self.items[-1]["signature"] = _SIGNATURE
            yield self._delta("signature_delta", signature=_SIGNATURE)
        yield self._event("stop")

    def _delta(self, kind: str, **fields: Any) -> JsonEvent:
        return self._event("delta", delta={"type": kind} | fields)

    def _event(self, kind: str, **fields: Any) -> JsonEvent:
        return {"type": f"content_block_{kind}", "index": len(self.items) - 1} | fields

    def _news(self, batch: Sequence[Event]) -> Iterator[JsonEvent]:
        answer = self._choices[0].answer
        if not self._has_begun and (answer.prefill or answer.finished):
            self._has_begun = True
            message = self._message(stop_reason=None, stop_sequence=None)
            yield {"type": "message_start", "message": message}
        for progress in self._progress(batch):
            yield {"type": "ping"} | progress

    def ping(self) -> bytes:
        return self._line({"type": "ping"}) if self._has_begun else PING

    def _answer(self) -> dict[str, Any]:
        return self._message(content=self.items, **self._stop(), **self._numbers())

    def _last_line(self) -> bytes:
        end = {
            "type": "message_delta",
            "delta": self._stop(),
            "usage": self._message_usage(),
        }
        return self._line(end | self._numbers()) + self._line({"type": "message_stop"})

    def _error_line(self, error: ApiError) -> bytes:
        return to_event(error.to_anthropic(), "error")

    def _message(self, **fields: Any) -> dict[str, Any]:
        message = {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._model.name,
            "usage": self._message_usage(),
        }
        return message | fields

    def _stop(self) -> dict[str, Any]:
        choice = self._choices[0]
        finished = choice.answer.finished
        assert finished is not None
        reason = _STOP_REASONS.get(finished.reason, "end_turn")
        stop = None
        if choice.finish_reason == "tool_calls":
            reason = "tool_use"
        elif finished.stop in self.options.settings.stop:
            reason = "stop_sequence"
            stop = finished.stop
        return {"stop_reason": reason, "stop_sequence": stop}

    def _message_usage(self) -> dict[str, Any]:
        """Nothing counts as the creation of a cache: all that is read is kept."""
        prefill = self._choices[0].answer.prefill or Prefill(0, 0, 0)
        usage = self._usage()
        n_thinking = usage["completion_tokens_details"]["reasoning_tokens"]
        return {
            "input_tokens": prefill.total - prefill.reused,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": prefill.reused,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": n_thinking},
        }
