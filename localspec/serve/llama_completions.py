"""llama-server's own completions: `/completion`, and `/infill` for editors."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from localspec.chat.settings import ChatSettings
from localspec.protocol.events import Token
from localspec.serve import answer_numbers, request_options
from localspec.serve.api_error import invalid, unsupported
from localspec.serve.completion import PING, AnswerText, Choice, Completion, to_event
from localspec.serve.infill import InfillInput
from localspec.serve.json_fields import JsonFields, check_token_ids, to_fields, to_unicode
from localspec.serve.request_options import CompletionOptions
from localspec.serve.served_model import PromptInput

_MAX_EXTRA_FILES = 256
_MAX_FIELDS = 256
_STOP_TYPES = {"eog": "eos", "stop": "word", "length": "limit", "context": "limit"}


def parse_llama_options(
    fields: JsonFields, defaults: ChatSettings, default_seed: int | None
) -> CompletionOptions:
    """`n_predict` and `n_probs` have other names in OpenAI's API."""
    options = request_options.parse_options(fields, defaults, default_seed)
    if options.n > 1:
        raise unsupported("n", "only 1 is supported")
    n_predict = fields.integer("n_predict", -1, 2**31 - 1)
    if n_predict is not None:
        max_tokens = 2**31 - 1 if n_predict == -1 else max(n_predict, 1)
        settings = replace(options.settings, max_tokens=max_tokens)
        options = replace(options, settings=settings, reads_only=n_predict == 0)
    wanted = fields.items("response_fields", _MAX_FIELDS)
    if not all(isinstance(name, str) for name in wanted):
        raise invalid("response_fields", "it is not an array of strings")
    return replace(
        options,
        n_logprobs=fields.integer("n_probs", 0, request_options.MAX_LOGPROBS) or None,
        return_tokens=fields.flag("return_tokens") or options.stream,
        response_fields=tuple(filter(None, wanted)),
    )


def parse_prompt(fields: JsonFields) -> PromptInput:
    """A text, or token ids."""
    given = fields.get("prompt")
    if isinstance(given, str) and given:
        return PromptInput(text=to_unicode(given))
    if isinstance(given, list) and given:
        return PromptInput(tokens=check_token_ids(given, "prompt"))
    raise invalid("prompt", "it is not a text, or an array of token ids")


def parse_infill(fields: JsonFields) -> PromptInput:
    """The text around the cursor, and further files of the project."""
    files = []
    for i, value in enumerate(fields.items("input_extra", _MAX_EXTRA_FILES)):
        file = to_fields(value, f"input_extra[{i}]")
        if not isinstance(file.get("text"), str):
            raise invalid(file.param("text"), "it is not a string")
        files.append((file.text("filename"), file.text("text")))
    return PromptInput(
        infill=InfillInput(
            fields.text("input_prefix"),
            fields.text("input_suffix"),
            fields.text("prompt"),
            tuple(files),
        )
    )


class LlamaCompletion(Completion):
    """One answer in the form of llama-server: no choices, no `[DONE]`."""

    def _whole(self) -> dict[str, Any]:
        (choice,) = self._choices
        body = self._piece(choice.text) | self._end_fields(choice)
        wanted = self._options.response_fields
        return {name: _find_field(body, name) for name in wanted} if wanted else body

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        (choice,) = self._choices
        async for batch, text in self._deltas(choice):
            if text is not None:
                yield to_event(self._piece(text) | {"stop": False})
            elif not batch:
                yield PING

    def _last_line(self) -> bytes:
        return to_event(self._piece(AnswerText()) | self._end_fields(self._choices[0]))

    def _piece(self, text: AnswerText) -> dict[str, Any]:
        piece: dict[str, Any] = {
            "index": 0,
            "content": text.content,
            "tokens": [token.id for token in text.tokens] if self._options.return_tokens else [],
        }
        if (n_top := self._options.n_logprobs) is not None:
            piece["completion_probabilities"] = _probabilities(text.tokens, n_top)
        return piece

    def _end_fields(self, choice: Choice) -> dict[str, Any]:
        finished, stops = choice.answer.finished, self._options.settings.stop
        assert finished is not None
        return {
            "stop": True,
            "stop_type": _STOP_TYPES.get(finished.reason, "none"),
            "stopping_word": stops[0] if finished.reason == "stop" and len(stops) == 1 else "",
            "model": self._model.name,
            "tokens_predicted": choice.answer.totals.tokens,
            "tokens_evaluated": finished.totals.get("prompt_tokens", 0),
            "tokens_cached": finished.totals.get("reused_tokens", 0),
            "truncated": False,
            "has_new_line": "\n" in choice.text.content,
            "generation_settings": {
                "seed": self._options.seed,
                "n_predict": 0 if self._options.reads_only else self._options.settings.max_tokens,
            },
            **self._numbers(),
        }


def _probabilities(tokens: list[Token], n_top: int) -> list[dict[str, Any]]:
    scored = [token for token in tokens if token.p_target is not None and token.text]
    items: list[dict[str, Any]] = answer_numbers.chat_logprobs(scored, n_top)["content"]
    for token, item in zip(scored, items, strict=True):
        item["id"] = token.id
        ids = answer_numbers.likeliest_ids(token, n_top)
        item["top_logprobs"] = [
            {"id": id_} | top for id_, top in zip(ids, item["top_logprobs"], strict=True)
        ]
    return items


def _find_field(body: dict[str, Any], path: str) -> Any:
    """The value at a path such as `timings/prompt_n`; None without it."""
    value: Any = body
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value
