"""Renders a chat with the model's own Jinja template, or with a built-in one.

Renders as transformers' `apply_chat_template(add_generation_prompt=True)` does. A
template is a program from an untrusted file: it runs in jinja2's sandbox, with limits
of output and steps.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import UsageError
from localspec.models.chat_template import (
    builtin_templates,
    message_check,
    thinking_tags,
)
from localspec.models.chat_template.memory_limit import limit_memory
from localspec.models.chat_template.message_check import FittedChat
from localspec.models.chat_template.role_changes import (
    RoleChange,
    apply_changes,
    parse_arguments,
)
from localspec.protocol.events import Notice
from localspec.protocol.wire import ChatMessage, TemplateArgument, ToolCall
from localspec.sanitize import sanitize

_MAX_SOURCE_CHARS = 1024 * 1024
"""The largest known template has 17,000."""
MAX_PROMPT_CHARS = 16 * 1024 * 1024
MAX_STEPS = 10_000_000
"""Passes of loops: 3 s of them. A long chat of 1,000 messages takes some 100,000."""
_MAX_NAMED = 10
"""Messages that a notice names."""
_UNUSED_TEXT = "\ufdd0\ufdd1"  # Noncharacters: no template writes them.


THINKING_VARIABLES = ("enable_thinking", "thinking", "reasoning")
"""The names under which templates read whether the model shall think."""


class RenderResult(Struct, frozen=True):
    """A chat's prompt text, notices, and the template: `own` or a built-in's name."""

    text: str
    notices: tuple[Notice, ...] = ()
    template: str = "own"
    generation_prompt: str = ""
    """What the template writes after the last message: the end of `text`."""
    lost: tuple[int, ...] = ()
    """The indices of messages that the template leaves out with all changes."""


class TemplateRaisedError(jinja2.TemplateError):
    """A template called `raise_exception`."""


class _TemplateOptions(Struct, frozen=True):
    """What a template reads besides the messages."""

    variables: tuple[tuple[str, TemplateArgument], ...]
    enable_thinking: bool | None
    tools: str
    completes_tools: bool = False

    def to_variables(self) -> dict[str, Any]:
        options: dict[str, Any] = {**dict(self.variables), "tools": None}
        if self.tools:
            options["tools"] = json.loads(self.tools)
        options |= _other_variables(options["tools"] or [])
        if self.completes_tools:
            options["tools"] = list(map(_complete_tool, options["tools"]))
        if self.enable_thinking is not None:
            for variable in THINKING_VARIABLES:
                options[variable] = self.enable_thinking
        return options


class _RenderedChat(Struct, frozen=True):
    text: str
    messages: Sequence[ChatMessage]
    """As the template accepted them."""
    notices: tuple[Notice, ...] = ()
    lost: tuple[int, ...] = ()


def render(  # noqa: PLR0913  all but two are named
    source: str,
    messages: Sequence[ChatMessage],
    variables: Mapping[str, TemplateArgument],
    enable_thinking: bool | None = None,
    tools: str = "",
    *,
    name: str = "own",
    may_change: bool = True,
) -> RenderResult:
    """The prompt that a template makes of a chat.

    `variables` are further ones: the texts of bos_token, eos_token, …, and what a
    caller gives. Those that the renderer makes come before them. `tools` is a JSON
    array; `name` is `own` for the model's template, else that of a built-in one. With
    `may_change`, the roles of the chat are changed if the template rejects it or leaves
    messages out. Raises UsageError if the template fails, rejects the chat or exceeds
    its limits.
    """
    try:
        if len(source) > _MAX_SOURCE_CHARS:
            raise OverflowError(f"it has {len(source):,} characters")
        settings = _TemplateOptions(
            tuple(sorted(variables.items())), enable_thinking, tools
        )
        order = _order_results(messages)
        separated = _separate_thinking(source, [messages[i] for i in order])
        try:
            chat = _render_chat(source, separated, settings, may_change=may_change)
        except _FAILURES_BY_TOOLS:
            if not tools:
                raise
            settings = replace(settings, completes_tools=True)
            chat = _render_chat(source, separated, settings, may_change=may_change)
        options = settings.to_variables()
        generation_prompt = _find_generation_prompt(source, chat, options)
        return RenderResult(
            chat.text,
            notices=chat.notices,
            template=name,
            generation_prompt=generation_prompt,
            lost=tuple(order[i] for i in chat.lost),
        )
    except TemplateRaisedError as error:
        failure = f"rejects this chat: {error}"
    except MemoryError:
        failure = "fails: it needs too much memory"
    except Exception as error:  # a hostile template may raise anything
        failure = f"fails: {type(error).__name__}: {error}"
    reason = sanitize(failure, multiline=False)[:300].rstrip(".")
    raise UsageError(f"The model's chat template {reason}.", builtin_templates.HINT)


_FAILURES_BY_TOOLS = (jinja2.UndefinedError, AttributeError, RecursionError, TypeError)


def _complete_tool(tool: Any) -> Any:
    """A tool with the fields that some templates take for granted.

    In a tool, all but the name may be absent. gpt-oss's template fails without a
    description, Seed-OSS's without parameters, Hermes's at a list of types.
    """
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    function = dict(tool["function"])
    function["description"] = function.get("description") or ""
    parameters = _complete_schema(function.get("parameters") or {})
    parameters = {"type": "object", "properties": {}, "required": []} | parameters
    return {**tool, "function": {**function, "parameters": parameters}}


def _complete_schema(schema: Any) -> dict[str, Any]:
    """The schema of an argument, with a description, and of one type."""
    if not isinstance(schema, dict):
        schema = {}
    complete = {**schema, "description": schema.get("description") or ""}
    types = schema.get("type")
    if isinstance(types, list):
        named = [each for each in types if each != "null"]
        complete["type"] = named[0] if named else "null"
    properties = schema.get("properties")
    if isinstance(properties, dict):
        complete["properties"] = {
            name: _complete_schema(part) for name, part in properties.items()
        }
    if isinstance(schema.get("items"), dict):
        complete["items"] = _complete_schema(schema["items"])
    return complete


def _other_variables(tools: list[Any]) -> dict[str, str]:
    """What some templates read instead of `tools` and `strftime_now`."""
    functions = []
    for tool in tools:
        if isinstance(tool, dict):
            functions.append(tool.get("function", tool))
    return {
        "functions": json.dumps(functions, ensure_ascii=False, indent=4),
        # A time of day would make each prompt another one, which no cache holds.
        "datetime": datetime.now().strftime("%b %d %Y"),
    }


def find_variables(source: str) -> frozenset[str]:
    """The names that a template reads from outside; none if it is invalid."""
    if len(source) > _MAX_SOURCE_CHARS:
        return frozenset()
    with suppress(Exception):  # a hostile template may raise anything
        tree = _LimitedEnvironment().parse(source)
        return frozenset(meta.find_undeclared_variables(tree))
    return frozenset()


# --- roles and the generation prompt


def _order_results(messages: Sequence[ChatMessage]) -> list[int]:
    """The indices of the messages, with results of tools in the order of their calls.

    Clients may send them as they were ready, and most templates write no id by which a
    model could tell whose result it reads. A result of no call stays behind the others.
    """
    order: list[int] = []
    positions: dict[str, int] = {}
    results: list[int] = []

    def position(index: int) -> int:
        return positions.get(messages[index].tool_call_id, len(positions))

    for index, message in enumerate(messages):
        if message.role == "tool":
            results.append(index)
            continue
        order += [*sorted(results, key=position), index]
        results = []
        if message.tool_calls:
            positions = {call.id: n for n, call in enumerate(message.tool_calls)}
    return [*order, *sorted(results, key=position)]


def _separate_thinking(
    source: str, messages: Sequence[ChatMessage]
) -> tuple[ChatMessage, ...]:
    """The messages with the thinking of answers in `reasoning`."""
    tags = thinking_tags.detect_tags(source)
    separated = []
    for message in messages:
        if message.role != "assistant":
            separated.append(message)
            continue
        thinking, content = thinking_tags.separate_thinking(
            message.content, tags, message.starts_in_thinking
        )
        separated.append(
            replace(
                message,
                content=content,
                reasoning=message.reasoning.strip() or thinking or "",
                starts_in_thinking=False,
            )
        )
    return tuple(separated)


def _render_chat(
    source: str,
    messages: tuple[ChatMessage, ...],
    settings: _TemplateOptions,
    *,
    may_change: bool,
) -> _RenderedChat:
    """Render the chat with all its texts, with other roles if the template needs them.

    A chat is rendered once: which changes it needs is known for its shape.
    """
    options = settings.to_variables()
    if not may_change:
        return _RenderedChat(_render_text(source, messages, options), messages)
    shape = message_check.collapse(message_check.describe_shape(messages))
    fitted = _fit_shape(source, settings, shape)
    changes = fitted.changes
    text: str | None = None
    failure: Exception | None = None
    try:
        changed = apply_changes(messages, changes)
        text = _render_text(source, changed, options)
        if not fitted.lost and message_check.has_every_text(text, changed):
            return _describe_chat(text, changed, changes)
    except TemplateRaisedError as error:
        failure = error

    # What the template does depends on the words of this chat.
    marked = message_check.mark_chat(messages)
    try:
        renderer = _CountedRenderer(source, options)
        fitted = message_check.fit_chat(marked, renderer, known=changes)
    except Exception:  # a hostile template may raise anything
        if failure is not None:
            raise failure from None
        # It reads the words, such as a result that is JSON, and accepts no marks.
        fitted = FittedChat(changes, fitted.lost)
    if text is None or fitted.changes != changes:
        changed = apply_changes(messages, fitted.changes)
        text = _render_text(source, changed, options)
    return _describe_chat(text, changed, fitted.changes, fitted.lost)


@lru_cache(maxsize=32)
def _fit_shape(
    source: str, settings: _TemplateOptions, shape: message_check.Shape
) -> FittedChat:
    """The changes that a chat of this shape needs; none if no chat is accepted."""
    renderer = _CountedRenderer(source, settings.to_variables())
    try:
        return message_check.fit_chat(message_check.make_marked_chat(shape), renderer)
    except Exception:  # a hostile template may raise anything
        return FittedChat(())


class _CountedRenderer:
    """Renders chats with one template, all of them within the limit of steps."""

    def __init__(self, source: str, options: dict[str, Any]) -> None:
        self._source = source
        self._options = options
        self._n_steps = 0

    def __call__(self, messages: Sequence[ChatMessage]) -> str:
        if self._n_steps > MAX_STEPS:
            raise OverflowError(f"it takes more than {MAX_STEPS:,} steps")
        try:
            return _render_text(self._source, messages, self._options)
        finally:
            self._n_steps += _compile(self._source)[1].n_steps


def _describe_chat(
    text: str,
    messages: Sequence[ChatMessage],
    changes: Sequence[RoleChange],
    lost: tuple[int, ...] = (),
) -> _RenderedChat:
    notices = []
    if changes:
        descriptions = "; ".join(change.description for change in changes)
        message = f"This model's chat template is strict: {descriptions}."
        notices.append(Notice("info", "template-roles", message))
    if lost:
        places = ", ".join(str(i + 1) for i in lost[:_MAX_NAMED])
        message = (
            f"This model's chat template leaves out messages of this chat: {places}."
        )
        notices.append(Notice("warning", "template-roles", message))
    return _RenderedChat(text, messages, tuple(notices), lost)


def _find_generation_prompt(
    source: str, chat: _RenderedChat, options: dict[str, Any]
) -> str:
    """What the template writes after the last message; empty for one without thinking.

    That is what it leaves out without `add_generation_prompt`. A template that ignores
    this writes the same after any last message. Both are found without looking for a
    message in the text, whose words may also be the template's.

    A chat of "<user>Hi<bot>" is "<user>Hi" without the generation prompt, so that is
    "<bot>". If the template writes "<user>Hi<bot>" both times, a chat whose last
    message is X gives "<user>X<bot>", and "<bot>" is what follows X.
    """
    tags = thinking_tags.detect_tags(source)
    if tags is None or tags.open.rstrip() not in chat.text:
        return (
            ""  # The caller only wants to know whether the answer begins in thinking.
        )

    with suppress(Exception):  # a hostile template may raise anything
        shorter_options = {**options, "add_generation_prompt": False}
        without = _render_text(source, chat.messages, shorter_options)
        if without != chat.text and chat.text.startswith(without):
            return chat.text.removeprefix(without)

    with suppress(Exception):
        last = replace(chat.messages[-1], content=_UNUSED_TEXT)
        marked = _render_text(source, [*chat.messages[:-1], last], options)
        _, found, end = marked.rpartition(_UNUSED_TEXT)
        if found and chat.text.endswith(end):
            return end
    return ""


# --- one rendering


def _render_text(
    source: str, messages: Sequence[ChatMessage], options: dict[str, Any]
) -> str:
    has_calls = any(message.tool_calls for message in messages)
    if has_calls and _numbers_calls(source):
        bodies = _number_calls(messages)
    else:
        bodies = list(map(_template_message, messages))
    if has_calls and _takes_arguments_as_text(source):
        bodies = [_with_arguments_as_text(body) for body in bodies]
    has_thinking = any(message.reasoning for message in messages)
    if has_thinking and _takes_thinking_as_part(source):
        bodies = [_with_thinking_part(body) for body in bodies]
    if _takes_parts(source):
        bodies = [_with_parts(body) for body in bodies]
    text = _generate(source, bodies, options)
    if not text.strip():
        raise ValueError("its output is empty")
    return text


_PROBE_ID = "call00001"


@lru_cache(maxsize=8)
def _numbers_calls(source: str) -> bool:
    """Whether a template numbers calls itself, and results keep their own ids.

    The first template of Kimi K2 does: a result with another id would belong to no
    call.
    """
    call = ToolCall(_PROBE_ID, "probe", "{}")
    messages = (
        ChatMessage("user", "Probe."),
        ChatMessage("assistant", "", tool_calls=(call,)),
        ChatMessage("tool", "done", tool_call_id=_PROBE_ID),
    )
    text = _render_probe(source, list(map(_template_message, messages)))
    return "functions.probe:0" in text and _PROBE_ID in text


def _number_calls(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages for templates, whose calls have the ids that Kimi's template writes."""
    bodies = []
    ids: dict[str, str] = {}
    for message in messages:
        body = _template_message(message)
        for index, call in enumerate(body.get("tool_calls", ())):
            number = f"functions.{call['function']['name']}:{index}"
            ids[call["id"]] = number
            call["id"] = number
        if "tool_call_id" in body:
            body["tool_call_id"] = ids.get(body["tool_call_id"], body["tool_call_id"])
        bodies.append(body)
    return bodies


def _generate(
    source: str, bodies: Sequence[dict[str, Any]], options: Mapping[str, Any]
) -> str:
    with limit_memory():
        return _generate_within_limits(source, bodies, options)


def _generate_within_limits(
    source: str, bodies: Sequence[dict[str, Any]], options: Mapping[str, Any]
) -> str:
    template, environment = _compile(source)
    pieces = []
    length = 0
    variables = {
        "documents": None,
        "add_generation_prompt": True,
        **options,
        "messages": list(bodies),
    }
    environment.begin(variables)
    for piece in template.generate(variables):
        length += len(piece)
        if length > MAX_PROMPT_CHARS:
            raise OverflowError(f"its output exceeds {MAX_PROMPT_CHARS:,} characters")
        pieces.append(piece)
    return "".join(pieces)


@lru_cache(maxsize=4)
def _takes_parts(source: str) -> bool:
    """Whether a template reads only typed parts, and would lose a plain text."""
    body = {"role": "user", "content": "localspec-asks-9417"}
    if body["content"] in _render_probe(source, [body]):
        return False
    return body["content"] in _render_probe(source, [_with_parts(body)])


_PROBE_THINKING = "localspec-asks-9417"


@lru_cache(maxsize=4)
def _takes_thinking_as_part(source: str) -> bool:
    """Whether a template writes thinking only where it is a part of the content.

    Ministral's does. A template that knows no such part may write the whole list as
    Python or JSON would, `[{'type': 'thinking', …}]`, and so the word itself.
    """
    call = ToolCall(_PROBE_ID, "probe", "{}")
    answer = ChatMessage("assistant", "", tool_calls=(call,), reasoning=_PROBE_THINKING)
    question = {"role": "user", "content": "Probe."}
    result = {"role": "tool", "content": "done", "tool_call_id": _PROBE_ID}
    calling = _template_message(answer)
    plain = _render_probe(source, [question, calling, result])
    if not plain or _PROBE_THINKING in plain:
        return False
    calling = _with_thinking_part(calling)
    written = _render_probe(source, [question, calling, result])
    if written.count("thinking") != plain.count("thinking"):
        return False
    return _PROBE_THINKING in written


_PROBE_ARGUMENTS = {"localspec_asks": "9417"}


@lru_cache(maxsize=4)
def _takes_arguments_as_text(source: str) -> bool:
    """Whether a template writes the arguments of a call only if they are JSON text.

    OpenAI's API has them as a text, transformers as an object. Most templates read the
    object, or both. The others raise an exception, or write it as Python would:
    `{'city': 'Rome'}`.
    """
    call = ToolCall("call00001", "localspec_probe", json.dumps(_PROBE_ARGUMENTS))
    calling = {
        "role": "assistant",
        "content": "",
        "tool_calls": [_template_call(call)],
    }
    question = {"role": "user", "content": "localspec-asks-9417"}
    result = {"role": "tool", "content": "9417", "tool_call_id": call.id}
    written = _render_probe(source, [question, calling, result])
    if "localspec_asks" in written and str(_PROBE_ARGUMENTS) not in written:
        return False
    calling = _with_arguments_as_text(calling)
    return call.arguments in _render_probe(source, [question, calling, result])


def _render_probe(source: str, bodies: Sequence[dict[str, Any]]) -> str:
    """What a template writes for a chat; empty if it fails."""
    options = {"bos_token": "", "eos_token": "", "tools": None}
    try:
        return _generate(source, bodies, options | _other_variables([]))
    except Exception:  # a hostile template may raise anything
        return ""


def _with_arguments_as_text(body: dict[str, Any]) -> dict[str, Any]:
    calls = []
    for call in body.get("tool_calls", ()):
        function = call["function"]
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**body, "tool_calls": calls} if calls else body


def _with_thinking_part(body: dict[str, Any]) -> dict[str, Any]:
    """An answer whose content is a list that begins with its thinking."""
    thinking = body.get("thinking")
    if not thinking:
        return body
    parts = [{"type": "thinking", "thinking": thinking}]
    if body["content"]:
        parts.append({"type": "text", "text": body["content"]})
    return {**body, "content": parts}


def _with_parts(body: dict[str, Any]) -> dict[str, Any]:
    if isinstance(body["content"], list):
        return body
    parts = []
    if body["content"]:
        parts.append({"type": "text", "text": body["content"]})
    return {**body, "content": parts}


_THINKING_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")
"""Where templates look for the thinking of an answer.

Most read the first. gpt-oss's and LFM2.5's read `thinking`, Solar's `reasoning`, and
Apriel 1.5's `thought`.
"""


def _template_message(message: ChatMessage) -> dict[str, Any]:
    """A message in the form that templates read; thinking is in separate keys."""
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_call_id:
        body["tool_call_id"] = _short_id(message.tool_call_id)
    if message.tool_calls:
        body["tool_calls"] = [_template_call(call) for call in message.tool_calls]
    if message.reasoning:
        body |= dict.fromkeys(_THINKING_KEYS, message.reasoning)
    return body


def _template_call(call: ToolCall) -> dict[str, Any]:
    arguments = parse_arguments(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": _short_id(call.id), "type": "function", "function": function}


def _short_id(id_: str) -> str:
    """Nine letters and digits: Mistral's templates reject others."""
    if len(id_) == 9 and id_.isalnum():
        return id_
    return hashlib.sha256(id_.encode("utf-8", "replace")).hexdigest()[:9]


# --- the sandbox


class _LimitedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox that counts the steps of a template.

    As in llama.cpp, a template may change a list that it has made. What it is given
    stays as it is: a chat may be rendered again with the same tools.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationExtension, loopcontrols],
        )
        self.n_steps = 0
        self._given: object = None
        self._given_lists: set[int] | None = None
        self.filters |= {
            "tojson": _tojson,
            "from_json": json.loads,
            "count_passes": self._count_passes,
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: datetime.now().strftime(form),
            "dict": _SafeDict(),
            "namespace": _SafeNamespace,
        }
        del self.globals["lipsum"]

    def _parse(
        self, source: str, name: str | None, filename: str | None
    ) -> nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(
                loop.iter, "count_passes", [], [], None, None, lineno=loop.lineno
            )
        return template

    def begin(self, given: object) -> None:
        """Begin a rendering with these variables."""
        self.n_steps = 0
        self._given = given
        self._given_lists = None

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is list and attr in ("append", "pop"):
            # Most templates change no list, so the given ones are found when one does.
            if self._given_lists is None:
                self._given_lists = _find_lists(self._given)
            return id(obj) not in self._given_lists
        return super().is_safe_attribute(obj, attr, value)

    def _count_passes(self, items: Iterable[Any] | None) -> Iterator[Any]:
        """The items of a loop; none of None, as which absent tools are given."""
        if items is None:
            return
        for item in items:
            self._count_steps(1)
            yield item

    def _count_steps(self, n: int) -> None:
        self.n_steps += n
        if self.n_steps > MAX_STEPS:
            raise OverflowError(f"it takes more than {MAX_STEPS:,} steps")

    def call(
        self, context: Context, function: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        self._count_steps(10)  # A call takes as long as ten passes.
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and max(abs(left), abs(right)) > 1000:
            raise OverflowError("a power is too large")
        if operator == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        return super().call_binop(context, operator, left, right)


def _find_lists(value: object) -> set[int]:
    """The ids of all lists in the variables of a rendering, which keep them alive."""
    found: set[int] = set()
    unread = [value]
    while unread:
        part = unread.pop()
        if isinstance(part, list) and id(part) not in found:
            found.add(id(part))
            unread += part
        elif isinstance(part, dict):
            unread += part.values()
    return found


def _check_repetition(items: Any, n: Any) -> None:
    if isinstance(items, str | list | tuple) and len(items) * n > MAX_PROMPT_CHARS:
        raise OverflowError("a repeated text or list is too long")


@lru_cache(maxsize=4)
def _compile(source: str) -> tuple[jinja2.Template, _LimitedEnvironment]:
    environment = _LimitedEnvironment()
    return environment.from_string(source), environment


def _raise_exception(message: str) -> None:
    raise TemplateRaisedError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces Jinja's own filter, which escapes HTML.

    Noncharacters stay as they are, also where all others are escaped: they are marks
    within the texts of a chat, which are looked for in the prompt.
    """
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_to_list,
    )
    if not ensure_ascii:
        return text
    return _ESCAPED_NONCHARACTER.sub(_unescape, text)


_ESCAPED_NONCHARACTER = re.compile(r"(?<!\\)((?:\\\\)*)\\u(fd[de][0-9a-f])")
"""A backslash that is itself escaped escapes nothing: `\\\\ufdd2` is a text of six signs."""


def _unescape(found: re.Match[str]) -> str:
    return found[1] + chr(int(found[2], 16))


def _to_list(value: Any) -> list[Any]:
    """What a filter such as `map` returns, as JSON can have it."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


class _GenerationExtension(Extension):
    """`{% generation %}` marks an answer for training; only its body is rendered."""

    tags = {"generation"}  # noqa: RUF012  jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return str(caller())


class _SafeDict:
    """`dict` without access to the type and its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _SafeNamespace(Namespace):
    """A `namespace` that rejects names with a leading underscore.

    They may be Python's own.
    """

    def __init__(*args: Any, **kwargs: Any) -> None:  # `self` may be a template's name
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute_name(name)
        super().__setitem__(name, value)


def _check_attribute_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")
