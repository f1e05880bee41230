"""Anthropic's Messages API: a request becomes a chat, its answer becomes content
blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from localspec.config.option_types import MAX_INT
from localspec.protocol.events import Event
from localspec.protocol.wire import ChatMessage
from localspec.serve.api_error import ApiError, invalid
from localspec.serve.completion import PING
from localspec.serve.json_fields import JsonFields, to_event, to_fields
from localspec.serve.output_items import ItemCompletion, ItemKind
from localspec.serve.prompts import (
    check_chat,
    join_messages,
    parse_call,
    parse_content,
    parse_text,
)
from localspec.serve.responses import nest_function

INPUT = "messages"
_MAX_ITEMS = 20_000
_BILLING = "x-anthropic-billing-header:"
"""A system block of Claude Code, other in each request: with it, no prompt continues
another.
"""
# Of thinking; some clients send back only thinking that has one.
_SIGNATURE = "localspec"
_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "effort_hint": "output_config.effort",
    "thinking_budget_tokens": "thinking.budget_tokens",
}
"""The names that fields of chat completions have here."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none", None: None}
_STOP_REASONS = {"length": "max_tokens", "context": "model_context_window_exceeded"}

# --- the request
# ------------------------------------------------------------------------------


def parse_input(fields: JsonFields) -> tuple[ChatMessage, ...]:
    """The chat of `system` and `messages`. Raises ApiError."""
    system = _parse_blocks("system", fields.get("system") or [], "system")
    messages = [block for block in system if not block.content.startswith(_BILLING)]
    for i, value in enumerate(fields.items("messages", _MAX_ITEMS)):
        message = to_fields(value, f"messages[{i}]")
        if (role := message.choice("role", ("user", "assistant", "system"))) is None:
            raise invalid(message.param("role"), "it is missing")
        blocks = _parse_blocks(role, message.get("content"), message.param("content"))
        messages += join_messages(blocks, ("user", "assistant", "system"))
    messages = join_messages(messages, ("system",))
    check_chat(messages, "messages")
    return tuple(messages)


def _parse_blocks(role: str, content: Any, param: str) -> list[ChatMessage]:
    """Each block as a message of its own."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or len(content) > _MAX_ITEMS:
        raise invalid(
            param, f"it is not a string or an array of up to {_MAX_ITEMS:,} blocks"
        )
    return [
        _parse_block(role, block, f"{param}[{i}]") for i, block in enumerate(content)
    ]


def _parse_block(role: str, value: Any, param: str) -> ChatMessage:
    block = to_fields(value, param)
    kind = role, block.get("type")
    if kind in (("assistant", "thinking"), ("assistant", "redacted_thinking")):
        return ChatMessage(role, "", reasoning=block.text("thinking"))
    if kind == ("assistant", "tool_use"):
        try:
            arguments = json.dumps(block.fields("input").values, ensure_ascii=False)
        except RecursionError:
            raise invalid(block.param("input"), "it is nested too deeply") from None
        call = parse_call(block.renamed({}, arguments=arguments), block.text("id"))
        return ChatMessage(role, "", tool_calls=(call,))
    if kind == ("user", "tool_result"):
        content = parse_content(block.get("content") or "", block.param("content"))
        return ChatMessage("tool", content, tool_call_id=block.text("tool_use_id"))
    return ChatMessage(role, parse_text(value, param))


def to_chat_fields(fields: JsonFields) -> JsonFields:
    """The options with their names of chat completions. Raises ApiError."""
    choice, thinking = fields.fields("tool_choice"), fields.fields("thinking")
    kind = choice.choice("type", ("auto", "any", "tool", "none"))
    named = nest_function({"type": "function", "name": choice.text("name")})
    output = fields.fields("output_config")
    form = output.fields("format")
    schema = {"type": form.get("type"), "json_schema": {"schema": form.get("schema")}}
    thinks = thinking.choice("type", ("enabled", "disabled", "adaptive"))
    return fields.renamed(
        _NAMES,
        **dict.fromkeys(
            ("n", "stream_options", "logprobs", "top_logprobs", "modalities")
        ),
        stop=fields.get("stop_sequences"),
        tools=list(_nest_tools(fields)),
        tool_choice=named if kind == "tool" else _CHOICES[kind],
        parallel_tool_calls=not choice.flag("disable_parallel_tool_use"),
        response_format=schema if form.values else None,
        reasoning_effort="none" if thinks == "disabled" else None,
        effort_hint=output.get("effort"),
        chat_template_kwargs={"enable_thinking": True} if thinks == "enabled" else None,
        thinking_budget_tokens=thinking.integer("budget_tokens", 1, MAX_INT),
    )


def _nest_tools(fields: JsonFields) -> Iterator[dict[str, Any]]:
    for i, value in enumerate(fields.items("tools", _MAX_ITEMS)):
        tool = to_fields(value, f"tools[{i}]")
        if tool.get("input_schema") is not None:  # else one that only Anthropic runs
            given = {
                name: tool.get(name)
                for name in ("name", "description")
                if tool.get(name)
            }
            function = given | {"parameters": tool.fields("input_schema").values}
            yield {"type": "function", "function": function}


# --- the answer
# -------------------------------------------------------------------------------


class MessageCompletion(ItemCompletion):
    """A stream begins when it is known how much of the prompt is read again."""

    id_prefix = "msg_"
    _has_begun = False

    def _begin(self, kind: ItemKind, name: str) -> Iterator[dict[str, Any]]:
        block: dict[str, Any] = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        elif kind == "call":
            id_ = f"toolu_{uuid4().hex[:24]}"
            block = {"type": "tool_use", "id": id_, "name": name, "input": {}}
        self._arguments = ""
        self.items.append(block)
        yield self._event("start", content_block=block)

    def _grow(self, delta: str, logprobs: list[Any]) -> dict[str, Any]:
        if self.kind == "call":
            self._arguments += delta
            return self._delta("input_json_delta", partial_json=delta)
        kind = str(self.kind)
        self.items[-1][kind] += delta
        return self._delta(f"{kind}_delta", **{kind: delta})

    def _end(self, is_cut: bool) -> Iterator[dict[str, Any]]:
        if self.kind == "thinking":
            self.items[-1]["signature"] = _SIGNATURE
            yield self._delta("signature_delta", signature=_SIGNATURE)
        elif self.kind == "call":
            with suppress(ValueError):  # of a call that was cut
                self.items[-1]["input"] = json.loads(self._arguments or "{}")
        yield self._event("stop")

    def _delta(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event("delta", delta={"type": kind} | fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        return {"type": f"content_block_{kind}", "index": len(self.items) - 1} | fields

    def _news(self, batch: Sequence[Event]) -> Iterator[dict[str, Any]]:
        answer = self._choices[0].answer
        if not self._has_begun and (answer.prefill or answer.finished):
            self._has_begun = True
            message = self._message(stop_reason=None, stop_sequence=None)
            yield {"type": "message_start", "message": message}
        for progress in self._progress(batch):
            yield {"type": "ping"} | progress

    def _ping(self) -> bytes:
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
        }
        return (
            message
            | {"model": self._model.name, "usage": self._message_usage()}
            | fields
        )

    def _stop(self) -> dict[str, Any]:
        choice = self._choices[0]
        finished = choice.answer.finished
        assert finished is not None
        reason, stop = _STOP_REASONS.get(finished.reason, "end_turn"), None
        if choice.finish_reason == "tool_calls":
            reason = "tool_use"
        elif finished.stop in self.options.settings.stop:
            reason, stop = "stop_sequence", finished.stop
        return {"stop_reason": reason, "stop_sequence": stop}

    def _message_usage(self) -> dict[str, Any]:
        """Nothing counts as the creation of a cache: all that is read is kept."""
        prefill, usage = self._choices[0].answer.prefill, self._usage()
        n_thinking = usage["completion_tokens_details"]["reasoning_tokens"]
        return {
            "input_tokens": prefill.total - prefill.reused if prefill else 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": prefill.reused if prefill else 0,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": n_thinking},
        }
