"""Finds the format of a model's tool calls: its template writes some, a row reads them.

A template's source tells little: the marks of one family stand in the templates of
others, and a new template has the marks of an old one with other rules between them. So
nothing is looked for in the source. The template renders a chat in which the assistant
called a tool, and the format is a row of the table whose parser reads exactly these
calls out of the rendered text. If several do, it is the one that leaves the least text:
another one has overlooked a mark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from localspec.errors import LocalspecError
from localspec.models.chat_template import thinking_tags
from localspec.models.chat_template.call_layouts import CallLayout, find_layout
from localspec.models.chat_template.jinja_render import render
from localspec.models.chat_template.tool_calls import ToolCallParser
from localspec.models.chat_template.tool_formats import TOOL_FORMATS
from localspec.protocol.wire import ChatMessage, ToolCall

_BORDER = "\ufdd0"  # A noncharacter, which no template writes.
_PROBE_NAME = "probe_weather"
_OTHER_NAME = "probe_clock"
_PROPERTIES: dict[str, Any] = {
    "city": {"type": "string", "description": "A city."},
    "days": {"type": "integer", "description": "How many days."},
    "options": {"type": "object", "description": "Further options."},
    "tags": {
        "type": "array",
        "items": {"type": "string"},
        "description": "Some tags.",
    },
    "is_long": {"type": "boolean", "description": "Whether it is long."},
}


def _tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": []}
    function = {
        "name": name,
        "description": "Only a probe.",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


_TOOLS = (_tool(_PROBE_NAME, _PROPERTIES), _tool(_OTHER_NAME, {}))
_PARAMETERS = {
    tool["function"]["name"]: tool["function"]["parameters"] for tool in _TOOLS
}

ProbeCall = tuple[str, dict[str, Any]]

_PROBES: tuple[ProbeCall, ...] = (
    # A format that reads these has the rules of its values right.
    (_PROBE_NAME, {"city": "Rome", "days": 3, "is_long": True}),
    (_PROBE_NAME, {"city": 'a "b" \\ c\nd & <e>'}),
    (
        _PROBE_NAME,
        {"city": "12", "tags": ["u", "v"], "options": {"a": [1, {"b": "c"}]}},
    ),
    (_OTHER_NAME, {}),
)


def detect_format(source: str, variables: Mapping[str, str]) -> str | None:
    """The name of a template's format in `TOOL_FORMATS`.

    None if the template shows the model no tools, or writes calls in no known format.
    `variables` are the texts of bos_token and the like.
    """
    return _detect(source, tuple(sorted(variables.items())))


def detect_layout(
    format_name: str, source: str, variables: Mapping[str, str]
) -> CallLayout | None:
    """How a template whose format this is writes calls, to the character.

    None if it does so in a layout that is not known.
    """
    name, arguments = _PROBES[0]
    try:
        text = _render_call(source, dict(variables), _PROBES[0])
    except LocalspecError:
        return None
    return None if text is None else find_layout(format_name, text, name, arguments)


@lru_cache(maxsize=8)
def _detect(source: str, variables: tuple[tuple[str, str], ...]) -> str | None:
    try:
        texts = [_render_call(source, dict(variables), probe) for probe in _PROBES]
    except LocalspecError:
        return None
    said = [text for text in texts if text is not None]
    if len(said) < len(texts):
        return None
    best: str | None = None
    fewest_left = 0
    for name in TOOL_FORMATS:
        n_left = _count_text_left(name, said)
        if n_left is None:
            continue
        if best is None or n_left < fewest_left:
            best = name
            fewest_left = n_left
    return best


def _count_text_left(format_name: str, texts: Sequence[str]) -> int | None:
    """How many characters are no part of the probes' calls; None if one is not read."""
    n_left = 0
    for text, (name, arguments) in zip(texts, _PROBES, strict=True):
        parser = ToolCallParser(format_name, _PARAMETERS)
        names: list[str] = []
        written: list[str] = []
        for delta in [*parser.feed(text), *parser.finish(is_cut=False)]:
            if isinstance(delta, str):
                n_left += len(delta)
                continue
            if delta.name:
                names.append(delta.name)
            written.append(delta.arguments)
        # Joined, the arguments of two calls are no JSON.
        try:
            is_read = names == [name] and json.loads("".join(written)) == arguments
        except ValueError:
            is_read = False
        if not is_read:
            return None
    return n_left


def _render_call(
    source: str, variables: dict[str, str], probe: ProbeCall
) -> str | None:
    """What the template writes between the user's question and a call's result.

    None if the model does not see the tools. Raises UsageError if the template cannot
    render such a chat.
    """
    name, arguments = probe
    call = ToolCall("call00001", name, json.dumps(arguments, ensure_ascii=False))
    question = ChatMessage("user", f"Probe.{_BORDER}")
    answer = ChatMessage("assistant", "", tool_calls=(call,))
    result = ChatMessage("tool", f"{_BORDER}done", tool_call_id="call00001")
    tools = json.dumps(_TOOLS)

    def write(*messages: ChatMessage) -> str:
        return render(source, messages, variables, tools=tools, may_change=False).text

    asked = write(question)
    if _OTHER_NAME not in asked:
        return None

    whole = write(question, answer, result)
    if whole.startswith(asked):
        said = whole.removeprefix(asked)
    else:
        # The beginning of the answer is another one where it is open.
        said = whole.partition(_BORDER)[2]
    said = said.partition(_BORDER)[0]

    tags = thinking_tags.detect_tags(source)
    if tags is not None and thinking_tags.has_messages(tags):
        parts = thinking_tags.split_thinking(said, tags)
        said = "".join(part.text for part in parts if not part.is_thinking)
    return said
