"""The requests of each API: their fields, with types and ranges.

An absent field and null are the same, None. Fields that are not declared are ignored.
The options of an answer are declared in `config/options.py`; `OptionFields` and
`SpeculationFields` are made of that table.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, defstruct

from localspec.config.option_types import (
    MAX_INT,
    SWITCH,
    SWITCH_OR_AUTO,
    Option,
    RequestRange,
)
from localspec.config.options import select

MAX_ITEMS = 20_000
MAX_CHOICES = 16
MAX_LOGPROBS = 20
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LogprobCount = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
TokenLimit = Annotated[int, Meta(ge=-1, le=MAX_INT)]
TokenBudget = Annotated[int, Meta(ge=0, le=MAX_INT)]
PositiveLimit = Annotated[int, Meta(ge=1, le=MAX_INT)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
StopString = Annotated[str, Meta(max_length=4096)]
StopStrings = Annotated[list[StopString], Meta(max_length=64)]


# --- parts of messages and tools


class ContentPart(Struct, frozen=True):
    """A part of a message in any of the APIs."""

    type: str | None = None
    text: str | None = None
    # Fields of parts that have no `text`.
    refusal: Any = None
    tool_name: Any = None
    title: Any = None
    source: Any = None
    content: Any = None
    context: Any = None
    file: Any = None
    file_data: Any = None
    file_id: Any = None
    file_url: Any = None
    filename: Any = None
    image_url: Any = None
    input_audio: Any = None


Content = str | Annotated[list[ContentPart], Meta(max_length=MAX_ITEMS)]


class RequestedFunction(Struct, frozen=True):
    name: str | None = None
    arguments: Any = None
    """A JSON text; some clients send the object itself."""


class CustomCall(Struct, frozen=True):
    """A call whose input is a text, and no JSON."""

    name: str | None = None
    input: Any = None


class RequestedCall(Struct, frozen=True):
    id: str | None = None
    function: RequestedFunction = RequestedFunction()
    custom: CustomCall | None = None


class RequestMessage(Struct, frozen=True):
    role: str | None = None
    content: Content | dict[str, Any] | None = None
    """An object only in results of tools, whose clients send what the tool returned."""
    refusal: Any = None
    name: str | None = None
    tool_call_id: str | None = None
    function_call: RequestedFunction | None = None
    """The only call, as it was before `tool_calls`."""
    tool_calls: Annotated[list[RequestedCall], Meta(max_length=1024)] | None = None
    # Three names of one thing: clients send back what they show as thinking.
    reasoning_content: Any = None
    reasoning: Any = None
    thinking: Any = None


class FunctionTool(Struct, frozen=True):
    name: str | None = None
    parameters: Any = None


class RequestTool(Struct, frozen=True):
    type: str | None = None
    function: FunctionTool | None = None


# --- OpenAI's chats and completions, and llama.cpp's fields


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None


class OwnOptions(Struct, frozen=True):
    """Our own field `localspec`, without the options of `SpeculationFields`."""

    tokens: bool | None = None


class PredictedOutput(Struct, frozen=True):
    type: Literal["content"] | None = None
    content: Content | None = None


class NamedSchema(Struct, frozen=True):
    schema: dict[str, Any] | None = None


class ResponseFormat(Struct, frozen=True):
    """OpenAI's `json_schema`, or llama.cpp's `schema`."""

    type: Literal["text", "json_object", "json_schema"] | None = None
    schema: Any = None
    json_schema: NamedSchema | None = None


class CompletionRequest(Struct, kw_only=True, frozen=True):
    """What chats, texts and infills have in common."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: int | None = None
    max_completion_tokens: TokenLimit | None = None
    stop: StopString | StopStrings | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    prediction: PredictedOutput | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    response_format: ResponseFormat | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    localspec: OwnOptions | None = None
    modalities: Annotated[list[Any], Meta(max_length=8)] | None = None
    # They are refused, whatever their type.
    audio: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None


class ChatRequest(CompletionRequest, kw_only=True, frozen=True):
    logprobs: bool | None = None
    top_logprobs: LogprobCount | None = None
    tools: Annotated[list[Any], Meta(max_length=1024)] | None = None
    """Templates read them as they came."""
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    reasoning_effort: Effort | None = None
    thinking_budget_tokens: TokenBudget | None = None
    effort_hint: Effort | None = None
    """An effort that a model without thinking ignores; only `/v1/messages` has it."""


class ChatMessages(Struct, frozen=True):
    messages: Annotated[list[RequestMessage], Meta(max_length=MAX_ITEMS)] | None = None


class TextRequest(CompletionRequest, kw_only=True, frozen=True):
    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    echo: bool | None = None
    suffix: Any = None
    best_of: Annotated[int, Meta(ge=1, le=100)] | None = None
    logprobs: LogprobCount | None = None


class InfillFile(Struct, frozen=True):
    text: str
    filename: str | None = None


class InfillRequest(CompletionRequest, kw_only=True, frozen=True):
    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: Annotated[list[InfillFile], Meta(max_length=256)] | None = None
    prompt: str | None = None
    n_predict: TokenLimit | None = None
    n_probs: LogprobCount | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[str], Meta(max_length=256)] | None = None


class TokenizeRequest(Struct, frozen=True):
    content: Annotated[str, Meta(max_length=2 * 1024 * 1024)] | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


# --- OpenAI's Responses API


class ResponseItem(Struct, frozen=True):
    """An item of `input`; which fields it has depends on its type."""

    type: str | None = None
    role: str | None = None
    content: Content | None = None
    summary: Annotated[list[ContentPart], Meta(max_length=MAX_ITEMS)] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: Any = None
    output: Content | None = None


class TextFormat(Struct, frozen=True):
    type: str | None = None
    schema: Any = None


class TextOptions(Struct, frozen=True):
    format: TextFormat | None = None


class ReasoningOptions(Struct, frozen=True):
    effort: str | None = None


class ResponsesRequest(Struct, frozen=True, kw_only=True):
    input: str | Annotated[list[ResponseItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    include: Annotated[list[Any], Meta(max_length=1024)] | None = None
    tools: Annotated[list[Any], Meta(max_length=1024)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: PositiveLimit | None = None
    metadata: Any = None
    # They are refused: they need stored responses, which this server does not have.
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: Any = None


# --- Anthropic's Messages API


class MessageBlock(Struct, frozen=True):
    """A block of a message; which fields it has depends on its type."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: Content | dict[str, Any] | None = None
    tool_name: Any = None
    title: Any = None
    context: Any = None
    source: Any = None


Blocks = str | Annotated[list[MessageBlock], Meta(max_length=MAX_ITEMS)]


class BlockMessage(Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: Blocks


class MessageTool(Struct, frozen=True):
    type: str | None = None
    name: str | None = None
    description: Any = None
    input_schema: dict[str, Any] | None = None


class MessageToolChoice(Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"] | None = None
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingOptions(Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive"] | None = None
    budget_tokens: PositiveLimit | None = None


class OutputConfig(Struct, frozen=True):
    format: TextFormat | None = None
    effort: str | None = None


class MessagesRequest(Struct, frozen=True, kw_only=True):
    system: Blocks | None = None
    messages: Annotated[list[BlockMessage], Meta(max_length=MAX_ITEMS)] | None = None
    tools: Annotated[list[MessageTool], Meta(max_length=MAX_ITEMS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: ThinkingOptions | None = None
    output_config: OutputConfig | None = None
    stop_sequences: StopStrings | None = None


# --- options of the table


def _field_type(option: Option) -> Any:
    value_type = option.value_type
    allowed = option.request or RequestRange(value_type.low, value_type.high)
    if value_type.is_whole:
        return Annotated[int, Meta(ge=int(allowed.low), le=int(allowed.high))]
    if value_type.metavar is not None:
        return Annotated[float, Meta(ge=allowed.low, le=allowed.high)]
    if value_type in (SWITCH, SWITCH_OR_AUTO):
        return bool
    return Literal[tuple(value_type.all_words())]


def _declare(name: str, options: list[Option]) -> type[Struct]:
    """A Struct whose fields are these options, all of which may be absent."""
    fields = [(option.name, _field_type(option) | None, None) for option in options]
    return defstruct(name, fields, frozen=True)


OPTIONS_OF_ANSWERS = [
    option
    for option in select("request", "sampling", "answer")
    if not option.value_type.is_text  # `stop` may be one text or several.
]
OPTIONS_OF_SPECULATION = list(select("request", "speculation"))
OptionFields = _declare("OptionFields", OPTIONS_OF_ANSWERS)
SpeculationFields = _declare("SpeculationFields", OPTIONS_OF_SPECULATION)
