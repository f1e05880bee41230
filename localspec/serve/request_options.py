"""The options of a completion request: OpenAI's, some of llama.cpp's, and `localspec`."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.chat.settings import ChatSettings
from localspec.config.option_types import (
    MAX_INT,
    SWITCH,
    SWITCH_OR_AUTO,
    Option,
    RequestRange,
)
from localspec.config.options import RETIRED, select
from localspec.models.chat_template.thinking_effort import EFFORTS
from localspec.models.chat_template.tool_calls import ToolFormat
from localspec.serve.api_error import invalid, unsupported
from localspec.serve.json_fields import JsonFields, to_unicode
from localspec.serve.prompts import OfferedTools, parse_content, parse_tools

MAX_CHOICES = 16
MAX_LOGPROBS = 20
_MAX_STOPS, _MAX_STOP_CHARS = 64, 4096
_MAX_BIASES = 5000
_MAX_FIELDS = 256
_REFUSED = {
    "audio": "audio is not supported",
    "web_search_options": "the web is not searched",
    "functions": "use tools",
    "function_call": "use tool_choice",
}


class CompletionOptions(Struct, frozen=True):
    """How to answer: for one request, and the same in all its choices but for the seed."""

    settings: ChatSettings  # The server's own, with what the request changes.
    seed: int
    n: int = 1
    # How many alternatives per token; None without probabilities.
    n_logprobs: int | None = None
    stream: bool = False
    include_usage: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    show_tokens: bool = False  # Add the tokens and their classes to the answer.
    prediction: str = ""
    grammar: str = ""
    json_schema: str = ""  # As JSON.
    constraint_param: str = ""
    """The request's field that gives the grammar or the schema, for errors."""
    tools: OfferedTools | None = None
    return_tokens: bool = False
    response_fields: tuple[str, ...] = ()
    """Of `/infill`: paths such as `timings/prompt_n`; empty for all."""
    reads_only: bool = False
    """Only read the prompt, for the next request; the one token after it is dropped."""
    fields: JsonFields = field(default_factory=lambda: JsonFields({}))
    """The request: some answers repeat parts of it."""

    def choice_settings(self, index: int) -> ChatSettings:
        sampling = replace(self.settings.sampling, seed=(self.seed + index) % 2**63)
        return replace(self.settings, sampling=sampling)


def parse_options(
    fields: JsonFields, defaults: ChatSettings, default_seed: int | None
) -> CompletionOptions:
    """Raises ApiError for a field that is wrong, or that the server cannot honour."""
    for name, problem in _REFUSED.items():
        if fields.get(name):
            raise unsupported(name, problem)
    if any(value != "text" for value in fields.items("modalities", 8)):
        raise unsupported("modalities", "only text is supported")
    stream_options, own = fields.fields("stream_options"), fields.fields("localspec")
    seed = fields.integer("seed", -(2**63), 2**64 - 1)
    seed = default_seed if seed is None else seed
    grammar, schema, constraint_param = _parse_constraint(fields)
    return CompletionOptions(
        _parse_settings(fields, own, defaults),
        secrets.randbits(31) if seed is None or seed == -1 else seed % 2**63,
        n=fields.integer("n", 1, MAX_CHOICES) or 1,
        stream=fields.flag("stream"),
        include_usage=stream_options.flag("include_usage"),
        timings_per_token=fields.flag("timings_per_token"),
        return_progress=fields.flag("return_progress"),
        show_tokens=own.flag("tokens"),
        prediction=_parse_prediction(fields),
        grammar=grammar,
        json_schema=schema,
        constraint_param=constraint_param,
        fields=fields,
    )


def parse_chat_options(
    fields: JsonFields,
    defaults: ChatSettings,
    default_seed: int | None = None,
    tool_format: ToolFormat | None = None,
    thinking_controls: Sequence[str] = (),
) -> CompletionOptions:
    """As `parse_options`, with the fields that only chats have.

    `tool_format` and `thinking_controls` are those of the model's template.
    """
    options = parse_options(fields, defaults, default_seed)
    top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)
    if fields.flag("logprobs"):
        options = replace(options, n_logprobs=top or 0)
    elif top:
        raise invalid("top_logprobs", "it needs logprobs: true")
    if fields.flag("continue_final_message") and fields.flag("add_generation_prompt"):
        raise invalid("continue_final_message", "it excludes add_generation_prompt")
    tools = parse_tools(fields, tool_format)
    if tools is not None and tools.forced is not None:
        if options.grammar or options.json_schema:
            raise invalid(
                "tool_choice", "it cannot be used together with a response_format"
            )
        options = replace(
            options, json_schema=tools.forced.schema, constraint_param="tools"
        )
    settings = _parse_thinking(fields, options.settings, thinking_controls)
    return replace(options, settings=settings, tools=tools)


def _parse_thinking(
    fields: JsonFields, settings: ChatSettings, controls: Sequence[str]
) -> ChatSettings:
    kwargs = fields.fields("chat_template_kwargs")
    effort, hint = (
        fields.choice(name, EFFORTS) for name in ("reasoning_effort", "effort_hint")
    )
    # Claude Code gives one to every model
    effort = effort or (hint if controls else None)
    budget = fields.integer("thinking_budget_tokens", 0, MAX_INT)
    for name, value in (
        ("reasoning_effort", effort),
        ("thinking_budget_tokens", budget),
    ):
        if value not in (None, "none", "minimal") and not controls:
            problem = "the chat template of this model has no thinking"
            raise unsupported(fields.param(name), problem)
    if effort is not None:
        settings = replace(
            settings, effort=effort, think=False if effort == "none" else None
        )
    if budget is not None:
        settings = replace(settings, think_budget=budget)
    if kwargs.get("enable_thinking") is not None:
        settings = replace(settings, think=kwargs.flag("enable_thinking"))
    return settings


def _parse_constraint(fields: JsonFields) -> tuple[str, str, str]:
    """The grammar or the JSON Schema that the answer follows, and the field that gives
    it.
    """
    grammar, param = fields.text("grammar"), fields.param("response_format")
    schema = _schema_of_format(fields.fields("response_format"))
    if schema is None:
        schema, param = fields.get("json_schema"), "json_schema"
    if schema is None:
        return grammar, "", "grammar"
    if grammar:
        raise invalid("grammar", "it cannot be used together with a JSON schema")
    if not isinstance(schema, dict | bool):
        raise invalid("json_schema", "it is not an object")
    try:
        return "", json.dumps(schema), param
    except RecursionError:
        raise invalid(param, "it is nested too deeply") from None


def _schema_of_format(response_format: JsonFields) -> Any:
    """The schema in OpenAI's form, or in llama.cpp's; None for text."""
    if not response_format.values:
        return None
    kind = response_format.choice("type", ("text", "json_object", "json_schema"))
    if kind is None:
        raise invalid(response_format.param("type"), "it is missing")
    if kind == "json_object":
        return response_format.get("schema") or {"type": "object"}
    if kind == "text":
        return None
    form = response_format.fields("json_schema")
    schema = form.get("schema")
    if not isinstance(schema, dict):
        raise invalid(form.param("schema"), "it is not an object")
    return schema


def _parse_settings(
    fields: JsonFields, own: JsonFields, defaults: ChatSettings
) -> ChatSettings:
    given = [(option, fields) for option in select("request", "sampling", "answer")]
    given += [(option, own) for option in select("request", "speculation")]
    values = {option.name: _parse_option(source, option) for option, source in given}
    for (front_end, name), instead in RETIRED.items():
        if front_end == "request" and own.get(name) is not None:
            _report_ignored(name, instead)
    limit = fields.integer("max_completion_tokens", -1, MAX_INT)
    if limit is not None:
        values["max_tokens"] = MAX_INT if limit == -1 else limit
    if values["max_tokens"] == 0:
        raise invalid("max_tokens", "it is not between 1 and the context's length")
    stop = _parse_stops(fields) if fields.get("stop") is not None else None
    values |= {"stop": stop, "logit_bias": _parse_logit_bias(fields.get("logit_bias"))}
    return defaults.with_values(
        {name: each for name, each in values.items() if each is not None}
    )


@cache
def _report_ignored(name: str, instead: str) -> None:
    message = f"localspec: `{name}` in requests is ignored; {instead}"
    print(message, file=sys.stderr, flush=True)


def _parse_option(fields: JsonFields, option: Option) -> Any:
    """None if the request leaves it open; also for texts, which are read one by one."""
    name, value_type = option.name, option.value_type
    allowed = option.request or RequestRange(value_type.low, value_type.high)
    if value_type.is_whole:
        value: Any = fields.integer(name, int(allowed.low), int(allowed.high))
    elif value_type.metavar is not None:
        value = fields.number(name, allowed.low, allowed.high)
    elif value_type in (SWITCH, SWITCH_OR_AUTO):
        return None if fields.get(name) is None else fields.flag(name)
    else:
        if value_type.is_text:
            return None
        return fields.choice(name, tuple(value_type.all_words()))
    return allowed.replaced.get(value, value)


def _parse_stops(fields: JsonFields) -> tuple[str, ...]:
    given = fields.get("stop")
    texts = [given] if isinstance(given, str) else fields.items("stop", _MAX_STOPS)
    if not all(
        isinstance(text, str) and len(text) <= _MAX_STOP_CHARS for text in texts
    ):
        problem = f"it is not a string, or an array of up to {_MAX_STOPS} strings"
        raise invalid(fields.param("stop"), problem)
    return tuple(to_unicode(text) for text in texts if text)


def _parse_logit_bias(given: Any) -> tuple[tuple[int, float], ...] | None:
    """OpenAI's object of token ids, or llama.cpp's array of pairs; false is -100."""
    if given is None:
        return None
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list) or len(pairs) > _MAX_BIASES:
        raise invalid(
            "logit_bias", f"it is not an object of at most {_MAX_BIASES:,} token ids"
        )
    return tuple(_parse_bias(pair) for pair in pairs)


def _parse_bias(pair: Any) -> tuple[int, float]:
    given: Any = (
        pair if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
    )
    token, bias = given[0], -100 if given[1] is False else given[1]
    if (
        isinstance(token, str)
        and token.isascii()
        and token.isdecimal()
        and len(token) < 12
    ):
        token = int(token)
    is_number = type(token) is int and token >= 0 and type(bias) in (int, float)
    if not is_number or not -100 <= bias <= 100:
        raise invalid(
            "logit_bias", "it does not map token ids to numbers from -100 to 100"
        )
    return token, float(bias)


def _parse_prediction(fields: JsonFields) -> str:
    """The text that the answer probably repeats (OpenAI's predicted outputs)."""
    prediction = fields.fields("prediction")
    if not prediction.values:
        return ""
    prediction.choice("type", ("content",))
    return parse_content(prediction.get("content"), "prediction.content")


def parse_text_options(
    fields: JsonFields, defaults: ChatSettings, default_seed: int | None = None
) -> CompletionOptions:
    """As `parse_options`, with the fields that only text completions have."""
    if fields.get("suffix"):
        raise unsupported(
            "suffix", "text is not inserted between a prompt and a suffix"
        )
    if (fields.integer("best_of", 1, 100) or 1) > 1:
        raise unsupported("best_of", "only 1 is supported")
    options = parse_options(fields, defaults, default_seed)
    return replace(options, n_logprobs=fields.integer("logprobs", 0, MAX_LOGPROBS))


def parse_infill_options(
    fields: JsonFields, defaults: ChatSettings, default_seed: int | None
) -> CompletionOptions:
    """As `parse_options`; `n_predict` and `n_probs` have other names in OpenAI's API."""
    options = parse_options(fields, defaults, default_seed)
    if options.n > 1:
        raise unsupported("n", "only 1 is supported")
    n_predict = fields.integer("n_predict", -1, MAX_INT)
    if n_predict is not None:
        max_tokens = MAX_INT if n_predict == -1 else max(n_predict, 1)
        settings = replace(options.settings, max_tokens=max_tokens)
        options = replace(options, settings=settings, reads_only=n_predict == 0)
    wanted = fields.items("response_fields", _MAX_FIELDS)
    if not all(isinstance(name, str) for name in wanted):
        raise invalid("response_fields", "it is not an array of strings")
    return replace(
        options,
        n_logprobs=fields.integer("n_probs", 0, MAX_LOGPROBS) or None,
        return_tokens=fields.flag("return_tokens") or options.stream,
        response_fields=tuple(filter(None, wanted)),
    )
