"""The options of a completion request: OpenAI's, some of llama.cpp's, and `localspec`."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from localspec.chat.settings import ChatSettings
from localspec.config.option_types import MAX_INT, Option
from localspec.config.options import RETIRED
from localspec.protocol.wire import TemplateArgument
from localspec.serve.api_error import invalid, unsupported
from localspec.serve.content_parts import join_parts
from localspec.serve.json_bodies import (
    convert_request,
    encode_field,
    rename_param,
    to_unicode,
)
from localspec.serve.prompts import ChatFields, OfferedTools, parse_tools
from localspec.serve.requests import (
    OPTIONS_OF_ANSWERS,
    OPTIONS_OF_SPECULATION,
    ChatRequest,
    CompletionRequest,
    InfillRequest,
    OptionFields,
    OwnOptions,
    ResponseFormat,
    ResponsesRequest,
    SpeculationFields,
    StreamOptions,
    TextRequest,
)

_MAX_BIASES = 5000
_MAX_ARGUMENT_CHARS = 1024
_THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Arguments of templates that mean the same, whichever the template reads."""
_TOKEN_ID = re.compile("[0-9]{1,11}")
_REFUSED = {
    "audio": "audio is not supported",
    "web_search_options": "the web is not searched",
    "functions": "use tools",
    "function_call": "use tool_choice",
}


class Constraint(Struct, frozen=True):
    """A grammar or a JSON Schema, as JSON, that the answer follows."""

    grammar: str = ""
    json_schema: str = ""
    fallback_schema: str = ""
    """In place of a `json_schema` that cannot be compiled."""
    param: str = ""
    """The request's field that gives it, for errors."""


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
    """The text that the answer probably repeats (OpenAI's predicted outputs)."""
    constraint: Constraint = Constraint()
    tools: OfferedTools | None = None
    echo: bool = False  # Repeat the prompt before the answer.
    return_tokens: bool = False
    response_fields: tuple[str, ...] = ()
    """Of `/infill`: paths such as `timings/prompt_n`; empty for all."""
    reads_only: bool = False
    """Only read the prompt, for the next request; the one token after it is dropped."""
    echoed: ResponsesRequest = ResponsesRequest()
    """Of `/v1/responses`, whose answers repeat parts of the request."""
    template_arguments: dict[str, TemplateArgument] = field(default_factory=dict)

    def choice_settings(self, index: int) -> ChatSettings:
        seed = (self.seed + index) % 2**63
        sampling = replace(self.settings.sampling, seed=seed)
        return replace(self.settings, sampling=sampling)


def parse_chat_options(
    chat: ChatFields,
    defaults: ChatSettings,
    *,
    default_seed: int | None,
    tool_format: str,
    exact_calls: bool,
    thinking_controls: Sequence[str],
) -> CompletionOptions:
    """The options of a chat. Raises ApiError.

    `tool_format` and `thinking_controls` are those of the model's template, and
    `exact_calls` tells whether the engine knows how it writes calls.
    """
    names = chat.names
    request = convert_request(ChatRequest, chat.body, names=names)
    options = _parse_options(
        request, chat.body, defaults, default_seed=default_seed, names=names
    )
    arguments = _parse_template_arguments(request, names)
    options = replace(options, echoed=chat.echoed, template_arguments=arguments)
    if request.logprobs:
        options = replace(options, n_logprobs=request.top_logprobs or 0)
    elif request.top_logprobs:
        raise invalid("top_logprobs", "it needs logprobs: true")
    if request.continue_final_message and request.add_generation_prompt:
        raise invalid("continue_final_message", "it excludes add_generation_prompt")
    tools = parse_tools(request, tool_format, exact_calls=exact_calls)
    if tools is not None and tools.must_call and options.constraint != Constraint():
        problem = "it cannot be used together with a response_format"
        raise invalid("tool_choice", problem)
    if tools is not None and tools.forced is not None:
        constraint = Constraint(
            json_schema=tools.forced.schema,
            fallback_schema=tools.forced.fallback_schema,
            param="tools",
        )
        options = replace(options, constraint=constraint)
    settings = _parse_thinking(request, options.settings, thinking_controls, names)
    return replace(options, settings=settings, tools=tools)


def parse_text_options(
    request: TextRequest,
    body: dict[str, Any],
    defaults: ChatSettings,
    *,
    default_seed: int | None,
) -> CompletionOptions:
    """The options of a text completion. Raises ApiError."""
    if request.suffix:
        problem = "text is not inserted between a prompt and a suffix"
        raise unsupported("suffix", problem)
    if request.best_of is not None and request.best_of > 1:
        raise unsupported("best_of", "only 1 is supported")
    if request.echo and request.logprobs is not None:
        raise unsupported("echo", "with it, logprobs are not available")
    options = _parse_options(request, body, defaults, default_seed=default_seed)
    return replace(options, n_logprobs=request.logprobs, echo=bool(request.echo))


def parse_infill_options(
    request: InfillRequest,
    body: dict[str, Any],
    defaults: ChatSettings,
    *,
    default_seed: int | None,
) -> CompletionOptions:
    """The options of an infill. Raises ApiError.

    `n_predict` and `n_probs` have other names in OpenAI's API.
    """
    options = _parse_options(request, body, defaults, default_seed=default_seed)
    if options.n > 1:
        raise unsupported("n", "only 1 is supported")
    settings = options.settings
    if request.n_predict == -1:
        settings = replace(settings, max_tokens=MAX_INT)
    elif request.n_predict is not None:
        settings = replace(settings, max_tokens=max(request.n_predict, 1))
    fields = [name for name in request.response_fields or () if name]
    return replace(
        options,
        settings=settings,
        reads_only=request.n_predict == 0,
        n_logprobs=request.n_probs or None,
        return_tokens=bool(request.return_tokens) or options.stream,
        response_fields=tuple(fields),
    )


def _parse_options(
    request: CompletionRequest,
    body: dict[str, Any],
    defaults: ChatSettings,
    *,
    default_seed: int | None,
    names: Mapping[str, str] = {},
) -> CompletionOptions:
    """The options that all APIs have.

    `names` has what the client calls fields that have other names in chat completions.
    Raises ApiError for a field that is wrong, or that the server cannot honour.
    """
    for name, problem in _REFUSED.items():
        if getattr(request, name):
            raise unsupported(name, problem)
    if any(value != "text" for value in request.modalities or ()):
        raise unsupported("modalities", "only text is supported")
    settings = _parse_settings(request, body, defaults, names)
    asked = _read_seed(request.seed, default_seed)
    settings = replace(settings, seed=asked)
    seed = asked
    if seed is None:
        seed = secrets.randbits(31)
    prediction = ""
    if request.prediction is not None:
        prediction = join_parts(request.prediction.content, "prediction.content").text
    stream_options = request.stream_options or StreamOptions()
    own_options = request.localspec or OwnOptions()
    return CompletionOptions(
        settings,
        seed,
        n=request.n or 1,
        stream=bool(request.stream),
        include_usage=bool(stream_options.include_usage),
        timings_per_token=bool(request.timings_per_token),
        return_progress=bool(request.return_progress),
        show_tokens=bool(own_options.tokens),
        prediction=prediction,
        constraint=_parse_constraint(request, names),
    )


def _read_seed(given: int | None, default: int | None) -> int | None:
    """The seed that was asked for; None, and -1, are a random one."""
    if given is not None and not -(2**63) <= given < 2**64:
        raise invalid("seed", "it does not have up to 64 bits")
    seed = default if given is None else given
    if seed is None or seed == -1:
        return None
    return seed % 2**63


def _parse_settings(
    request: CompletionRequest,
    body: dict[str, Any],
    defaults: ChatSettings,
    names: Mapping[str, str],
) -> ChatSettings:
    own = body.get("localspec") or {}
    answer = convert_request(OptionFields, body, names=names)
    speculation = convert_request(SpeculationFields, own, "localspec")
    values = _replace_special(answer, OPTIONS_OF_ANSWERS)
    values |= _replace_special(speculation, OPTIONS_OF_SPECULATION)
    for (front_end, name), instead in RETIRED.items():
        if front_end == "request" and own.get(name) is not None:
            _report_ignored(name, instead)
    if request.max_completion_tokens == -1:
        values["max_tokens"] = MAX_INT
    elif request.max_completion_tokens is not None:
        values["max_tokens"] = request.max_completion_tokens
    if values.get("max_tokens") == 0:
        raise invalid("max_tokens", "it is not between 1 and the context's length")
    if request.stop is not None:
        stops = request.stop
        if isinstance(stops, str):
            stops = [stops]
        values["stop"] = tuple(to_unicode(text) for text in stops if text)
    if request.logit_bias is not None:
        values["logit_bias"] = _parse_logit_bias(request.logit_bias)
    return defaults.with_values(values)


def _replace_special(fields: Struct, options: Iterable[Option]) -> dict[str, Any]:
    """The values that a request has, by the names of their options.

    Some values stand for others: llama.cpp's `top_k` -1 for 0, which is off.
    """
    values = {}
    for option in options:
        value = getattr(fields, option.name)
        if value is None:
            continue
        if option.request is not None:
            value = option.request.replaced.get(value, value)
        values[option.name] = value
    return values


@cache
def _report_ignored(name: str, instead: str) -> None:
    message = f"localspec: `{name}` in requests is ignored; {instead}"
    print(message, file=sys.stderr, flush=True)


def _parse_logit_bias(
    given: dict[str, Any] | list[Any],
) -> tuple[tuple[int, float], ...]:
    """OpenAI's object of token ids, or llama.cpp's array of pairs; false is -100."""
    pairs = list(given.items()) if isinstance(given, dict) else given
    if len(pairs) > _MAX_BIASES:
        raise invalid("logit_bias", f"it has more than {_MAX_BIASES:,} token ids")
    return tuple(_parse_bias(pair) for pair in pairs)


def _parse_bias(pair: Any) -> tuple[int, float]:
    problem = "it does not map token ids to numbers from -100 to 100"
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise invalid("logit_bias", problem)
    token, bias = pair
    if bias is False:
        bias = -100
    if isinstance(token, str) and _TOKEN_ID.fullmatch(token):
        token = int(token)
    if type(token) is not int or not 0 <= token < 2**31:
        raise invalid("logit_bias", problem)
    if type(bias) not in (int, float) or not -100 <= bias <= 100:
        raise invalid("logit_bias", problem)
    return token, float(bias)


def _parse_constraint(
    request: CompletionRequest, names: Mapping[str, str]
) -> Constraint:
    grammar = to_unicode(request.grammar or "")
    param = rename_param("response_format", names)
    schema = _schema_of_format(request.response_format, param)
    if schema is None:
        schema = request.json_schema
        param = "json_schema"
    if schema is None and not grammar:
        return Constraint()
    if schema is None:
        return Constraint(grammar=grammar, param="grammar")
    if grammar:
        raise invalid("grammar", "it cannot be used together with a JSON schema")
    if not isinstance(schema, dict | bool):
        raise invalid(param, "it is not an object")
    return Constraint(json_schema=encode_field(schema, param), param=param)


def _schema_of_format(form: ResponseFormat | None, param: str) -> Any:
    """The schema in OpenAI's form, or in llama.cpp's; None for text."""
    if form is None or form == ResponseFormat():
        return None
    if form.type is None:
        raise invalid(f"{param}.type", "it is missing")
    if form.type == "text":
        return None
    if form.type == "json_object":
        return form.schema or {"type": "object"}
    if form.json_schema is None or form.json_schema.schema is None:
        raise invalid(f"{param}.json_schema.schema", "it is missing")
    return form.json_schema.schema


def _parse_thinking(
    request: ChatRequest,
    settings: ChatSettings,
    controls: Sequence[str],
    names: Mapping[str, str],
) -> ChatSettings:
    effort = request.reasoning_effort
    if effort is None and controls:
        # Claude Code gives a hint to every model; one without thinking ignores it.
        effort = request.effort_hint
    budget = request.thinking_budget_tokens
    needs_thinking = {
        "reasoning_effort": effort not in (None, "none", "minimal"),
        "thinking_budget_tokens": budget is not None,
    }
    for name, is_needed in needs_thinking.items():
        if is_needed and not controls:
            problem = "the chat template of this model has no thinking"
            raise unsupported(rename_param(name, names), problem)
    if effort == "none":
        settings = replace(settings, effort=effort, think=False)
    elif effort is not None:
        settings = replace(settings, effort=effort, think=None)
    if budget is not None:
        settings = replace(settings, think_budget=budget)
    for name in _THINKING_SWITCHES:
        switch = (request.chat_template_kwargs or {}).get(name)
        if isinstance(switch, bool):
            settings = replace(settings, think=switch)
    return settings


def _parse_template_arguments(
    request: ChatRequest, names: Mapping[str, str]
) -> dict[str, TemplateArgument]:
    """Further variables for the model's template. Raises ApiError.

    A template may read lists and objects, too, but none of those that are known does.
    """
    arguments: dict[str, TemplateArgument] = {}
    for name, value in (request.chat_template_kwargs or {}).items():
        param = rename_param(f"chat_template_kwargs.{name}", names)
        if value is None:
            continue
        if name in _THINKING_SWITCHES and not isinstance(value, bool):
            raise invalid(param, "it is neither true nor false")
        if not isinstance(value, bool | int | float | str):
            raise unsupported(
                param, "only true, false, numbers and texts are supported"
            )
        if isinstance(value, str):
            value = to_unicode(value)  # noqa: PLW2901
        if len(name) + len(str(value)) > _MAX_ARGUMENT_CHARS:
            problem = f"it is longer than {_MAX_ARGUMENT_CHARS:,} characters"
            raise invalid("chat_template_kwargs", problem)
        arguments[to_unicode(name)] = value
    return arguments
