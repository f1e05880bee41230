"""The shapes of answers: OpenAI's chat completions, and its older text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from localspec.models.chat_template.tool_calls import ToolCallDelta
from localspec.protocol.events import Token
from localspec.serve import answer_numbers
from localspec.serve.completion import AnswerText


class ChatFormat:
    """`chat.completion` and its chunks; thinking is in `reasoning_content`."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def start(self, index: int) -> dict[str, Any]:
        return _chunk_choice(index, {"role": "assistant", "content": None})

    def delta(self, index: int, text: AnswerText, logprobs: Any) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if text.reasoning:
            delta["reasoning_content"] = text.reasoning
        if text.content:
            delta["content"] = text.content
        if text.calls:
            delta["tool_calls"] = list(map(_call_delta, text.calls))
        return _chunk_choice(index, delta, logprobs)

    def end(self, index: int, reason: str | None) -> dict[str, Any]:
        return _chunk_choice(index, {}, reason=reason)

    def whole(
        self, index: int, text: AnswerText, logprobs: Any, reason: str | None
    ) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text.content, "refusal": None}
        if text.reasoning:
            message["reasoning_content"] = text.reasoning
        if text.calls:
            message["content"] = text.content or None
            message["tool_calls"] = _whole_calls(text.calls)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[Token], n_top: int, offset: int) -> Any:
        return answer_numbers.chat_logprobs(tokens, n_top)


def _call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    """OpenAI's form: the first delta of a call has its id and name."""
    if not delta.name:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    return {
        "index": delta.index,
        "id": new_call_id(),
        "type": "function",
        "function": {"name": delta.name, "arguments": delta.arguments},
    }


def _whole_calls(deltas: Sequence[ToolCallDelta]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        if delta.name:
            function = {"name": delta.name, "arguments": delta.arguments}
            calls.append({"id": new_call_id(), "type": "function", "function": function})
        else:
            calls[delta.index]["function"]["arguments"] += delta.arguments
    return calls


def new_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


def _chunk_choice(
    index: int, delta: dict[str, Any], logprobs: Any = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


class TextFormat:
    """`text_completion`; its chunks have the same object."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, echoes: Sequence[str] = ()) -> None:
        """`echoes`: by choice, the prompt to repeat before the answer."""
        self._echoes = echoes

    def start(self, index: int) -> dict[str, Any] | None:
        echo = self._echo(index)
        return _text_choice(index, echo) if echo else None

    def delta(self, index: int, text: AnswerText, logprobs: Any) -> dict[str, Any]:
        return _text_choice(index, text.content, logprobs)

    def end(self, index: int, reason: str | None) -> dict[str, Any]:
        return _text_choice(index, "", reason=reason)

    def whole(
        self, index: int, text: AnswerText, logprobs: Any, reason: str | None
    ) -> dict[str, Any]:
        return _text_choice(index, self._echo(index) + text.content, logprobs, reason)

    def logprobs(self, tokens: Sequence[Token], n_top: int, offset: int) -> Any:
        return answer_numbers.text_logprobs(tokens, n_top, offset)

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""


def _text_choice(
    index: int, text: str, logprobs: Any = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
