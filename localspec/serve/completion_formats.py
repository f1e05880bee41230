"""The JSON of OpenAI's chat and text completions, and of llama-server's `/infill`."""

from __future__ import annotations

import asyncio
import codecs
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from uuid import uuid4

from localspec.models.chat_template.tool_calls import ToolCallDelta
from localspec.protocol.events import Alternative, Token
from localspec.serve.completion import AnswerText, Choice, Completion
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
        delta: dict[str, Any] = {}
        if text.reasoning_pieces:
            delta["reasoning_content"] = text.reasoning
        if text.content_pieces:
            delta["content"] = text.content
        if text.calls:
            delta["tool_calls"] = [_call_delta(call) for call in text.calls]
        return {"delta": delta}

    def _whole_part(self, index: int, text: AnswerText) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text.content,
            "refusal": None,
        }
        if text.reasoning_pieces:
            message["reasoning_content"] = text.reasoning
        if text.calls:
            message["content"] = text.content or None
            message["tool_calls"] = _whole_calls(text.calls)
        return {"message": message}

    def _score(
        self, tokens: Sequence[Token], n_top: int, offset: int
    ) -> dict[str, Any]:
        """`offset`: the characters of the choice's text before these tokens."""
        return chat_logprobs(tokens, n_top)

    def _whole(self) -> dict[str, Any]:
        choices = []
        tokens: list[Token] = []
        for index, choice in enumerate(self._choices):
            part = self._whole_part(index, choice.text)
            logprobs = self._logprobs(choice.text.tokens, offset=0)
            choices.append(_choice_item(index, part, logprobs, choice.finish_reason))
            tokens += choice.answer.tokens
        body = self._envelope(self.whole_object)
        body["choices"] = choices
        body["usage"] = self._usage()
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
        # With `echo` it is as long as the prompt.
        yield await asyncio.to_thread(self._first_chunk, index)
        offset = 0
        async for batch, text in self._deltas(choice):
            for progress in self._progress(batch):
                nothing = _choice_item(index, self._part(AnswerText()))
                yield self._chunk([nothing], **progress)
            if text is not None:
                logprobs = self._logprobs(text.tokens, offset=offset)
                offset += len(text.content)
                part = _choice_item(index, self._part(text), logprobs)
                yield self._chunk([part], **self._chunk_extras(choice, text))
        extras: dict[str, Any] = {}
        if choice is self._choices[-1] and not self.options.include_usage:
            extras = self._numbers()
        last = _choice_item(
            index, self._part(AnswerText()), reason=choice.finish_reason
        )
        yield self._chunk([last], **extras)

    def _first_chunk(self, index: int) -> bytes:
        first = self._first_part(index)
        if first is None:
            return b""
        return self._chunk([_choice_item(index, first)])

    def _logprobs(
        self, tokens: Sequence[Token], *, offset: int
    ) -> dict[str, Any] | None:
        n_top = self.options.n_logprobs
        if n_top is None:
            return None
        return self._score(tokens, n_top, offset)

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
    pieces: list[list[str]] = []  # Of the arguments of each call.
    for delta in deltas:
        if delta.name:
            call = _call_delta(delta)
            del call["index"]
            calls.append(call)
            pieces.append([])
        pieces[delta.index].append(delta.arguments)
    for call, arguments in zip(calls, pieces, strict=True):
        call["function"]["arguments"] = "".join(arguments)
    return calls


def new_call_id() -> str:
    return f"call_{uuid4().hex[:24]}"


class TextCompletion(ChatCompletion):
    """The same with other parts."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def _echo(self, index: int) -> str:
        """The prompt before a choice, if the request asks for it."""
        if not self.options.echo:
            return ""
        return self._prompts[index // self.options.n].text

    def _first_part(self, index: int) -> dict[str, Any] | None:
        echo = self._echo(index)
        return {"text": echo} if echo else None

    def _part(self, text: AnswerText) -> dict[str, Any]:
        return {"text": text.content}

    def _whole_part(self, index: int, text: AnswerText) -> dict[str, Any]:
        return {"text": self._echo(index) + text.content}

    def _score(
        self, tokens: Sequence[Token], n_top: int, offset: int
    ) -> dict[str, Any]:
        """Four arrays, with an entry for each token.

        A character of several tokens is in the text at its last token: `é` of two bytes
        and `!` have the offsets 0, 0 and 1.
        """
        texts = []
        logprobs = []
        top_logprobs = []
        offsets = []
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in _scored(tokens):
            data = _data(token)
            texts.append(data.decode("utf-8", "replace"))
            logprobs.append(_log(token.p_target))
            top = {}
            for _, other, p in _likeliest(token, n_top):
                top[other.decode("utf-8", "replace")] = _log(p)
            top_logprobs.append(top)
            offsets.append(offset)
            offset += len(decoder.decode(data))
        return {
            "tokens": texts,
            "token_logprobs": logprobs,
            "top_logprobs": top_logprobs,
            "text_offset": offsets,
        }


class InfillCompletion(Completion):
    """One answer in the form of llama-server: no choices, no `[DONE]`."""

    def _whole(self) -> dict[str, Any]:
        (choice,) = self._choices
        body = self._piece(choice.text) | self._end_fields(choice)
        requested = self.options.response_fields
        if not requested:
            return body
        return {name: _find_field(body, name) for name in requested}

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        async for _, text in self._deltas(self._choices[0]):
            if text is not None:
                yield to_event(self._piece(text) | {"stop": False})

    def _last_line(self) -> bytes:
        return to_event(self._piece(AnswerText()) | self._end_fields(self._choices[0]))

    def _piece(self, text: AnswerText) -> dict[str, Any]:
        ids: list[int] = []
        if self.options.return_tokens:
            ids = [token.id for token in text.tokens]
        piece: dict[str, Any] = {"index": 0, "content": text.content, "tokens": ids}
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
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def chat_logprobs(tokens: Sequence[Token], n_top: int) -> dict[str, Any]:
    """OpenAI's `logprobs` of a chat; with the tokens' ids, as llama-server's."""
    content = []
    for token in _scored(tokens):
        item = _logprob(token.id, _data(token), token.p_target)
        likeliest = _likeliest(token, n_top)
        item["top_logprobs"] = [_logprob(id_, data, p) for id_, data, p in likeliest]
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
