"""The JSON of OpenAI's chat and text completions, and of llama-server's `/infill`."""

from __future__ import annotations

import codecs
import math
from collections.abc import AsyncGenerator, Sequence
from itertools import accumulate
from typing import Any
from uuid import uuid4

from localspec.models.chat_template.tool_calls import ToolCallDelta
from localspec.protocol.events import Alternative, Token
from localspec.serve.completion import PING, AnswerText, Choice, Completion
from localspec.serve.json_bodies import to_event

_MIN_LOGPROB = -9999.0  # OpenAI's value for a token that is as good as impossible.
_STOP_TYPES = {"eog": "eos", "stop": "word", "length": "limit", "context": "limit"}


class ChatCompletion(Completion):
    """One object, or chunks of it; both have `choices`.

    Thinking is in `reasoning_content`.
    """

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def _first_part(self, index: int) -> dict[str, Any] | None:
        """Of a choice that begins; None for nothing."""
        return {"delta": {"role": "assistant", "content": ""}}

    def _part(self, text: AnswerText) -> dict[str, Any]:
        calls = list(map(_call_delta, text.calls))
        fields = {
            "reasoning_content": text.reasoning,
            "content": text.content,
            "tool_calls": calls,
        }
        return {"delta": {name: value for name, value in fields.items() if value}}

    def _whole_part(self, index: int, text: AnswerText) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text.content,
            "refusal": None,
        }
        if text.reasoning:
            message["reasoning_content"] = text.reasoning
        if text.calls:
            message["content"] = text.content or None
            message["tool_calls"] = _whole_calls(text.calls)
        return {"message": message}

    def _score(
        self, tokens: Sequence[Token], n_top: int, offset: int
    ) -> dict[str, Any]:
        return chat_logprobs(tokens, n_top)

    def _whole(self) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(self._choices):
            part = self._whole_part(index, choice.text)
            logprobs = self._logprobs(choice.text.tokens, 0)
            choices.append(_choice_item(index, part, logprobs, choice.finish_reason))
        tokens = [token for choice in self._choices for token in choice.answer.tokens]
        body = self._envelope(self.whole_object) | {
            "choices": choices,
            "usage": self._usage(),
        }
        return body | self._numbers() | self._token_details(tokens)

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        for index, choice in enumerate(self._choices):
            async for line in self._choice_lines(index, choice):
                yield line
        if self.options.include_usage:
            yield self._chunk([], usage=self._usage(), **self._numbers())

    def _last_line(self) -> bytes:
        return b"data: [DONE]\n\n"

    async def _choice_lines(
        self, index: int, choice: Choice
    ) -> AsyncGenerator[bytes, None]:
        first = self._first_part(index)
        if first is not None:
            yield self._chunk([_choice_item(index, first)])
        offset = 0
        async for batch, text in self._deltas(choice):
            for progress in self._progress(batch):
                yield self._chunk(
                    [_choice_item(index, self._part(AnswerText()))], **progress
                )
            if text is not None:
                logprobs = self._logprobs(text.tokens, offset)
                offset += len(text.content)
                part = _choice_item(index, self._part(text), logprobs)
                yield self._chunk([part], **self._chunk_extras(choice, text))
            elif not batch:
                yield PING
        is_last = choice is self._choices[-1]
        extras = self._numbers() if is_last and not self.options.include_usage else {}
        last = _choice_item(
            index, self._part(AnswerText()), reason=choice.finish_reason
        )
        yield self._chunk([last], **extras)

    def _logprobs(self, tokens: Sequence[Token], offset: int) -> Any:
        n_top = self.options.n_logprobs
        return None if n_top is None else self._score(tokens, n_top, offset)

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model.name,
            "system_fingerprint": self._model.fingerprint,
        }

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return to_event(self._envelope(self.chunk_object) | {"choices": choices} | more)


def _choice_item(
    index: int, part: dict[str, Any], logprobs: Any = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": index, **part, "logprobs": logprobs, "finish_reason": reason}


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
            call = _call_delta(delta)
            del call["index"]
            calls.append(call)
        else:
            calls[delta.index]["function"]["arguments"] += delta.arguments
    return calls


def new_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


class TextCompletion(ChatCompletion):
    """The same with other parts."""

    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def __init__(self, echoes: Sequence[str], *arguments: Any) -> None:
        """`echoes`: by choice, the prompt to repeat before the answer; empty for none."""
        super().__init__(*arguments)
        self._echoes = echoes

    def _first_part(self, index: int) -> dict[str, Any] | None:
        return {"text": self._echoes[index]} if self._echoes else None

    def _part(self, text: AnswerText) -> dict[str, Any]:
        return {"text": text.content}

    def _whole_part(self, index: int, text: AnswerText) -> dict[str, Any]:
        echo = self._echoes[index] if self._echoes else ""
        return {"text": echo + text.content}

    def _score(
        self, tokens: Sequence[Token], n_top: int, offset: int
    ) -> dict[str, Any]:
        """Four arrays; `offset` is that of the first token."""
        tokens = _scored(tokens)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        lengths = [len(decoder.decode(_data(token))) for token in tokens]
        offsets = accumulate(lengths[:-1], initial=offset)
        return {
            "tokens": [_data(token).decode("utf-8", "replace") for token in tokens],
            "token_logprobs": [_log(token.p_target) for token in tokens],
            "top_logprobs": [
                {
                    data.decode("utf-8", "replace"): _log(p)
                    for _, data, p in _likeliest(token, n_top)
                }
                for token in tokens
            ],
            "text_offset": list(offsets)[: len(tokens)],
        }


class InfillCompletion(Completion):
    """One answer in the form of llama-server: no choices, no `[DONE]`."""

    def _whole(self) -> dict[str, Any]:
        (choice,) = self._choices
        body = self._piece(choice.text) | self._end_fields(choice)
        wanted = self.options.response_fields
        return {name: _find_field(body, name) for name in wanted} if wanted else body

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        async for batch, text in self._deltas(self._choices[0]):
            if text is not None:
                yield to_event(self._piece(text) | {"stop": False})
            elif not batch:
                yield PING

    def _last_line(self) -> bytes:
        return to_event(self._piece(AnswerText()) | self._end_fields(self._choices[0]))

    def _piece(self, text: AnswerText) -> dict[str, Any]:
        tokens = (
            [token.id for token in text.tokens] if self.options.return_tokens else []
        )
        piece: dict[str, Any] = {"index": 0, "content": text.content, "tokens": tokens}
        n_top = self.options.n_logprobs
        if n_top is not None:
            items = chat_logprobs(text.tokens, n_top)["content"]
            piece["completion_probabilities"] = items
        return piece

    def _end_fields(self, choice: Choice) -> dict[str, Any]:
        finished = choice.answer.finished
        settings = self.options.settings
        assert finished is not None
        n_predict = 0 if self.options.reads_only else settings.max_tokens
        return {
            "stop": True,
            "stop_type": _STOP_TYPES.get(finished.reason, "none"),
            "stopping_word": finished.stop,
            "model": self._model.name,
            "tokens_predicted": choice.answer.totals.tokens,
            "tokens_evaluated": finished.totals.get("prompt_tokens", 0),
            "tokens_cached": finished.totals.get("reused_tokens", 0),
            "truncated": False,
            "has_new_line": "\n" in choice.text.content,
            "generation_settings": {"seed": self.options.seed, "n_predict": n_predict},
            **self._numbers(),
        }


def _find_field(body: dict[str, Any], path: str) -> Any:
    """The value at a path such as `timings/prompt_n`; None without it."""
    value: Any = body
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def chat_logprobs(tokens: Sequence[Token], n_top: int) -> dict[str, Any]:
    """OpenAI's `logprobs` of a chat; with the tokens' ids, as llama-server's."""
    content = []
    for token in _scored(tokens):
        item = _logprob(token.id, _data(token), token.p_target)
        item["top_logprobs"] = [
            _logprob(*likely) for likely in _likeliest(token, n_top)
        ]
        content.append(item)
    return {"content": content, "refusal": None}


def _scored(tokens: Sequence[Token]) -> list[Token]:
    return [token for token in tokens if token.p_target is not None and _data(token)]


def _data(token: Token | Alternative) -> bytes:
    """The token's own bytes, also if its text was shown later or with another token's."""
    if token.piece is None:
        return token.text.encode("utf-8", "replace")
    return token.piece.encode("latin-1", "replace")


def _likeliest(token: Token, n: int) -> list[tuple[int, bytes, float]]:
    """Ids, bytes and probabilities of a scored token and its alternatives."""
    ranked = [
        (other.rank, other.id, _data(other), other.p) for other in token.alternatives
    ]
    if token.rank is not None and token.p_target is not None:
        ranked.append((token.rank, token.id, _data(token), token.p_target))
    return [(id_, data, p) for _, id_, data, p in sorted(ranked)[:n]]


def _logprob(id_: int, data: bytes, p: float | None) -> dict[str, Any]:
    text = data.decode("utf-8", "replace")
    return {"id": id_, "token": text, "logprob": _log(p), "bytes": list(data)}


def _log(p: float | None) -> float:
    return round(math.log(p), 6) if p else _MIN_LOGPROB
