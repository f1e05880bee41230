"""Prompts of requests: messages with tools, texts, tokens, or the text around a cursor."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.models.chat_template.tool_calls import (
    ForcedCall,
    ToolCallParser,
    force_call,
)
from localspec.models.pictures import PICTURE_MARK
from localspec.protocol.wire import ChatMessage, PictureRef, ToolCall
from localspec.serve.api_error import invalid, unsupported
from localspec.serve.content_parts import join_parts
from localspec.serve.json_bodies import convert_request, encode_field, to_unicode
from localspec.serve.request_pictures import RequestPictures
from localspec.serve.requests import (
    ChatMessages,
    ChatRequest,
    Content,
    CustomCall,
    FunctionTool,
    InfillRequest,
    RequestedFunction,
    RequestMessage,
    RequestTool,
    ResponsesRequest,
    TextRequest,
)
from localspec.serve.typed_tools import refuse_tool

_MAX_PROMPTS = 16
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_WRONG_CHOICE = (
    "it is none of none, auto, required, allowed_tools, and a function's name"
)
_FIELD_STEPS = re.compile(r"(?=[.\[])")
"""Where the names in a field's path begin: `a[1].b` has `a`, `[1]` and `.b`."""
_TOOL_NAME = re.compile(r"[\w.-]{1,128}")
_EXACT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A name that calls of every model can have, also those that are Python."""


class ProjectFile(Struct, frozen=True):
    name: str
    text: str


class InfillInput(Struct, frozen=True):
    prefix: str
    suffix: str
    prompt: str = ""  # Text after the prefix, before the cursor.
    files: tuple[ProjectFile, ...] = ()  # Other files, the nearest last.


class PromptInput(Struct, frozen=True):
    """The prompt of one answer: messages, a text, or tokens."""

    messages: tuple[ChatMessage, ...] = ()
    text: str = ""
    tokens: tuple[int, ...] = ()
    infill: InfillInput | None = None  # Cut to the context, so it always fits.
    param: str = "prompt"  # The request's field, for errors.
    message_fields: tuple[str, ...] = ()  # The field of each message's text.


def parse_infill(request: InfillRequest) -> InfillInput:
    """The text around the cursor, and further files of the project."""
    files = []
    for file in request.input_extra or ():
        name = to_unicode(file.filename or "")
        files.append(ProjectFile(name, to_unicode(file.text)))
    return InfillInput(
        prefix=to_unicode(request.input_prefix or ""),
        suffix=to_unicode(request.input_suffix or ""),
        prompt=to_unicode(request.prompt or ""),
        files=tuple(files),
    )


def parse_texts(request: TextRequest) -> list[PromptInput]:
    """A text, several, tokens, or several of these. Raises ApiError."""
    prompts = [_make_prompt(given) for given in _split_prompts(request.prompt)]
    if not all(prompt.text or prompt.tokens for prompt in prompts):
        raise invalid("prompt", "it is empty")
    if request.echo and not all(prompt.text for prompt in prompts):
        raise unsupported("echo", "a prompt of token ids is not repeated")
    return prompts


def _split_prompts(given: Any) -> list[Any]:
    """`[5, 6]` is one prompt of two tokens, `["a", [5, 6]]` are two prompts."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise invalid("prompt", "it is not a string or an array")
    if isinstance(given[0], int):
        return [given]
    if len(given) > _MAX_PROMPTS:
        raise invalid("prompt", f"it has more than {_MAX_PROMPTS} prompts")
    return given


def _make_prompt(given: Any) -> PromptInput:
    if isinstance(given, str):
        return PromptInput(text=to_unicode(given))
    if not isinstance(given, list) or not all(isinstance(each, int) for each in given):
        raise invalid("prompt", "it is not an array of strings or of token ids")
    return PromptInput(tokens=tuple(given))


# --- messages


class PlacedMessage(Struct, frozen=True):
    """A message, and the request's field that has its text."""

    message: ChatMessage
    field: str


class ChatFields(Struct, frozen=True):
    """A request of any chat API, translated to OpenAI's chat completions."""

    placed: tuple[PlacedMessage, ...]
    param: str  # The request's field that has the messages, for errors.
    body: dict[str, Any]
    """The other fields, with the names and forms of chat completions, unchecked."""
    names: Mapping[str, str] = {}
    """Field of chat completions -> its name in the request, if it has another there."""
    echoed: ResponsesRequest = ResponsesRequest()
    """The request of `/v1/responses`, whose answers repeat parts of it."""

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        return tuple(each.message for each in self.placed)

    @property
    def message_fields(self) -> tuple[str, ...]:
        return tuple(each.field for each in self.placed)


def parse_chat(
    body: dict[str, Any], *, sees: bool = False, hears: bool = False
) -> ChatFields:
    """A chat completion, which needs no translation. Raises ApiError.

    `sees`, `hears`: whether the model takes pictures, and audio.
    """
    pictures = RequestPictures(sees=sees, hears=hears)
    request = convert_request(ChatMessages, body)
    given = request.messages or []
    n_answered = count_answered([message.role for message in given])
    messages = []
    for i, message in enumerate(given):
        place = f"messages[{i}]"
        parsed = parse_message(message, place, pictures, is_asked=i >= n_answered)
        messages.append(PlacedMessage(parsed, f"{place}.content"))
    check_chat(messages, "messages")
    return ChatFields(placed=tuple(messages), param="messages", body=body)


def count_answered(roles: Sequence[str | None]) -> int:
    """How many messages are up to the last whole answer; the question is after them.

    Messages of the assistant at the end are the beginning of the answer to come: of
    `user, assistant, user, assistant`, two messages are answered.
    """
    end = len(roles)
    while end and roles[end - 1] == "assistant":
        end -= 1
    while end and roles[end - 1] != "assistant":
        end -= 1
    return end


def check_chat(messages: Sequence[PlacedMessage], param: str) -> None:
    """Raise ApiError for messages that no template can render."""
    if not messages:
        raise invalid(param, "it is empty")
    roles = [placed.message.role for placed in messages]
    if set(roles) <= {"system"} or roles == ["assistant"]:
        raise invalid(param, "no message is of the user")
    if roles[-2:] == ["assistant", "assistant"]:
        raise invalid(param, "two messages of the assistant are at the end")
    if messages[-1].message.tool_calls:
        raise invalid(param, "the last one calls tools, whose results must follow")


def parse_message(
    message: RequestMessage,
    param: str,
    pictures: RequestPictures,
    *,
    is_asked: bool,
) -> ChatMessage:
    """Raises ApiError, with the place `param` of the message.

    `is_asked`: whether it is after the last answer. Then a picture of the user that
    cannot be read is refused.
    """
    is_result = message.role in ("tool", "function")
    given = message.content
    if isinstance(given, dict):
        if not is_result:
            raise invalid(
                f"{param}.content", "it is an object, and no result of a tool"
            )
        given = encode_field(given, f"{param}.content")
    if message.role == "assistant":
        return _parse_assistant(message, given, param)
    if is_result:
        content = join_parts(given, f"{param}.content", pictures, is_asked=False)
        # Before there were ids of calls, a result had the name of the function.
        call_id = to_unicode(message.tool_call_id or message.name or "")
        return ChatMessage(
            "tool", content.text, tool_call_id=call_id, images=content.images
        )
    if message.role is None or message.role not in _ROLES:
        raise invalid(f"{param}.role", f"it is none of {', '.join(_ROLES)}")
    content = join_parts(given, f"{param}.content", pictures, is_asked=is_asked)
    return ChatMessage(_ROLES[message.role], content.text, images=content.images)


def _parse_assistant(
    message: RequestMessage, given: Content | None, param: str
) -> ChatMessage:
    content = join_parts(given, f"{param}.content", is_asked=False).text
    if not content and isinstance(message.refusal, str):
        content = to_unicode(message.refusal)
    calls = []
    for i, call in enumerate(message.tool_calls or ()):
        place = f"{param}.tool_calls[{i}]"
        if call.custom is not None:
            calls.append(make_custom_call(call.custom, call.id, f"{place}.custom"))
        else:
            calls.append(make_call(call.function, call.id, f"{place}.function"))
    if message.function_call is not None:
        function = message.function_call
        calls.append(make_call(function, function.name, f"{param}.function_call"))
    reasoning = ""
    for thoughts in (message.reasoning_content, message.reasoning, message.thinking):
        if isinstance(thoughts, str):
            reasoning = to_unicode(thoughts)
            break
    return ChatMessage(
        "assistant", content, tool_calls=tuple(calls), reasoning=reasoning
    )


def join_messages(
    messages: Sequence[PlacedMessage], roles: tuple[str, ...]
) -> list[PlacedMessage]:
    """Join messages in a row that have one of these roles.

    Some APIs have items of their own for thinking, text and calls, which a chat has in
    one message: `[system "a", system "b", user "c"]` becomes `[system "a\\n\\nb", user
    "c"]`.
    """
    joined: list[PlacedMessage] = []
    for role, group in groupby(messages, lambda placed: placed.message.role):
        placed = list(group)
        if role not in roles:
            joined += placed
            continue
        parts = [each.message for each in placed]
        separator = "" if role == "assistant" else "\n\n"
        content = _join_contents(parts, separator)
        reasoning = "\n\n".join(part.reasoning for part in parts if part.reasoning)
        calls: list[ToolCall] = []
        images: list[PictureRef] = []
        for part in parts:
            calls += part.tool_calls
            images += part.images
        if role == "assistant" and not content and not calls:
            continue  # Thinking alone is no answer.
        message = ChatMessage(
            role,
            content,
            tool_calls=tuple(calls),
            reasoning=reasoning,
            images=tuple(images),
        )
        field = _find_common_field([each.field for each in placed])
        joined.append(PlacedMessage(message, field))
    return joined


def _join_contents(messages: Sequence[ChatMessage], separator: str) -> str:
    """Their texts; a picture stands where it is, without a separator."""
    pieces: list[str] = []
    for message in messages:
        text = message.content
        if not text:
            continue
        if pieces:
            before = pieces[-1]
            if not (before.endswith(PICTURE_MARK) or text.startswith(PICTURE_MARK)):
                pieces.append(separator)
        pieces.append(text)
    return "".join(pieces)


def _find_common_field(fields: Sequence[str]) -> str:
    """The field that all of these are in; the first one if there is none.

    `messages[1].content[0]` and `messages[1].content[2]` are in `messages[1].content`.
    """
    common = _FIELD_STEPS.split(fields[0])
    for field in fields[1:]:
        steps = _FIELD_STEPS.split(field)
        pairs = zip(common, steps, strict=False)
        common = [step for step, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "".join(common) or fields[0]


def make_call(function: RequestedFunction, id_: str | None, param: str) -> ToolCall:
    """Raises ApiError for a call without a name."""
    if not function.name:
        raise invalid(f"{param}.name", "it is empty")
    arguments = function.arguments or "{}"
    if not isinstance(arguments, str):
        arguments = encode_field(arguments, f"{param}.arguments")
    return ToolCall(
        to_unicode(id_ or ""), to_unicode(function.name), to_unicode(arguments)
    )


def make_custom_call(call: CustomCall, id_: str | None, param: str) -> ToolCall:
    """A call with a text as the only argument of a function: templates know no other.

    Raises ApiError for a call without a name.
    """
    function = RequestedFunction(call.name, {"input": call.input})
    return make_call(function, id_, param)


# --- tools


class OfferedTools(Struct, frozen=True):
    """Tools that the model may call, or has to."""

    format: str
    tools: str  # The request's array, as JSON: templates read it.
    parameters: Mapping[str, Any]
    """Name of a tool -> the JSON Schema of its arguments."""
    must_call: bool = False
    """Whether the answer has to be a call."""
    forced: ForcedCall | None = None
    """How to make it one if the engine does not know how the model writes calls."""
    is_single: bool = False  # At most one call.

    def make_parser(self) -> ToolCallParser:
        return ToolCallParser(self.format, self.parameters)


def parse_tools(
    request: ChatRequest, form: str, *, exact_calls: bool
) -> OfferedTools | None:
    """None without tools, or with `tool_choice` none. Raises ApiError."""
    given = request.tools
    choice = request.tool_choice
    if not given and choice not in (None, "none", "auto"):
        raise invalid("tool_choice", "there are no tools to choose from")
    if not given or choice == "none":
        return None
    parameters = {}
    for i, tool in enumerate(given):
        name, schema = _parse_tool(tool, f"tools[{i}]")
        parameters[name] = schema
    tools = OfferedTools(
        form,
        encode_field(given, "tools"),
        parameters,
        is_single=request.parallel_tool_calls is False,
    )
    chosen = _parse_choice(choice, parameters)
    parameters = {name: parameters[name] for name in chosen.names}
    tools = replace(tools, parameters=parameters, must_call=chosen.is_required)
    if not chosen.is_required:
        return tools
    if exact_calls and all(map(_EXACT_NAME.fullmatch, parameters)):
        return tools
    try:
        forced = force_call(form, parameters)
    except UsageError as error:
        raise unsupported("tool_choice", f"{error.message} Name one") from None
    return replace(tools, forced=forced)


def _parse_tool(value: Any, param: str) -> tuple[str, Any]:
    """The name of a tool, and the schema of its arguments."""
    tool = convert_request(RequestTool, value, param)
    if tool.type != "function":
        name = value.get("name") if isinstance(value, dict) else None
        raise refuse_tool(tool.type, name, param)
    function = tool.function
    if function is None or not _TOOL_NAME.fullmatch(function.name or ""):
        problem = "it is not a name of up to 128 letters or digits"
        raise invalid(f"{param}.function.name", problem)
    return str(function.name), function.parameters or {"type": "object"}


class _AllowedTools(Struct, frozen=True):
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[RequestTool], Meta(max_length=1024)] = []


class _ToolChoice(Struct, frozen=True):
    """One tool by its name, or some to choose from."""

    type: str | None = None
    function: FunctionTool | None = None
    allowed_tools: _AllowedTools | None = None


class _ChosenTools(Struct, frozen=True):
    names: Sequence[str]  # Those among which the model chooses.
    is_required: bool  # Whether it has to call one.


def _parse_choice(
    choice: str | dict[str, Any] | None, offered: Mapping[str, Any]
) -> _ChosenTools:
    """What `tool_choice` makes of the tools that are offered. Raises ApiError."""
    if choice is None or choice == "auto":
        return _ChosenTools(list(offered), is_required=False)
    if choice == "required":
        return _ChosenTools(list(offered), is_required=True)
    if isinstance(choice, str):
        raise invalid("tool_choice", _WRONG_CHOICE)
    given = convert_request(_ToolChoice, choice, "tool_choice")
    functions = [given.function]
    is_required = True
    if given.type == "allowed_tools":
        allowed = given.allowed_tools or _AllowedTools()
        functions = [tool.function for tool in allowed.tools]
        is_required = allowed.mode == "required"
    names = []
    for function in functions:
        if function is None or function.name is None:
            raise invalid("tool_choice", _WRONG_CHOICE)
        names.append(function.name)
    if not names or not offered.keys() >= set(names):
        raise invalid("tool_choice", "it names none of the tools")
    return _ChosenTools(names, is_required=is_required)
