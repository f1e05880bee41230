"""Tool calls in an answer: the formats of chat templates, and a parser of streamed text.

What cannot be read as a call of an offered tool stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from localspec.errors import UsageError
from localspec.models.chat_template import tagged_arguments
from localspec.models.chat_template.json_repair import JsonRepairer
from localspec.models.chat_template.schema_references import WorkBudget
from localspec.models.chat_template.thinking_tags import partial_length

ToolFormat = Literal["tags", "llama3", "mistral", "gpt-oss"]
"""`tags` is <tool_call> around JSON (Hermes, Qwen), around <function=…> (Qwen Coder) or
around <arg_key> (GLM).
"""

_FORMAT_BY_SIGN: tuple[tuple[str, ToolFormat], ...] = (
    # A string in the template's source, and its format; the first match applies.
    ("<|channel|>commentary", "gpt-oss"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "tags"),
    ('{"name": function name, "parameters"', "llama3"),
)
_CONTROL_TEXTS: Mapping[ToolFormat, tuple[str, ...]] = {
    "tags": ("<tool_call>", "</tool_call>"),
    "llama3": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    "gpt-oss": ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"),
}
_MARKERS: Mapping[ToolFormat, tuple[str, ...]] = {
    "tags": ("<tool_call>", "<function="),
    "llama3": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]",),
    "gpt-oss": ("<|channel|>",),
}
_ENDS: Mapping[ToolFormat, str] = {
    "tags": "</tool_call>",
    "llama3": ";",
    "mistral": "]",
    "gpt-oss": "<|call|>",
}


def detect_format(source: str) -> ToolFormat | None:
    """The format of a template; None if it takes no tools, or in an unknown format."""
    if "tools" not in source:
        return None
    return next((form for sign, form in _FORMAT_BY_SIGN if sign in source), None)


def control_texts(form: ToolFormat) -> tuple[str, ...]:
    """Markers of a format, which may be control tokens."""
    return _CONTROL_TEXTS[form]


class ToolCallDelta(Struct, frozen=True):
    """A part of the call `index`; the first one has the name and no arguments."""

    index: int
    name: str = ""
    arguments: str = ""


class ForcedCall(Struct, frozen=True):
    """How to make an answer a call."""

    prefix: str
    """The text with which the answer begins."""
    schema: str
    """The JSON Schema of the rest."""


def force_call(form: ToolFormat, tools: Mapping[str, Any]) -> ForcedCall:
    """Make an answer one call of any of the tools.

    `tools` has the JSON Schema of each tool's arguments, by its name. Raises UsageError if the format cannot leave the choice among several to the model.
    """
    if form == "gpt-oss":
        if len(tools) != 1:
            raise UsageError(
                "This model cannot be forced to call one of several tools."
            )
        ((name, arguments),) = tools.items()
        prefix = (
            f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        )
        return ForcedCall(prefix, json.dumps(arguments))
    key = "parameters" if form == "llama3" else "arguments"
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, key: arguments},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for name, arguments in tools.items()
    ]
    schema: dict[str, Any] = {"anyOf": calls}
    if form == "mistral":
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    prefix = {"tags": "<tool_call>\n", "mistral": "[TOOL_CALLS]"}.get(form, "")
    return ForcedCall(prefix, json.dumps(schema))


_MAX_HEAD = 256  # Characters in which a name has to come.
_MISTRAL_LIST = re.compile(r"\s*+(?:\[\s*+)?(?=\{)")
_MISTRAL_NAME = re.compile(
    r"\s*+([\w.-]+)\s*+(?:\[CALL_ID\][^\[{]*+)?(?:\[ARGS\])?\s*+(?=\{)"
)
_FUNCTION_HEAD = re.compile(r"<function=([^<>\s]+)\s*>")
_KEYED_HEAD = re.compile(r"([\w.-]+)(?=\s*(?:<arg_key>|</tool_call>))")
_EXTRA_BRACKETS = re.compile(r"\A(?:\}\s*){1,3}")
_TAGGED_BEGUN = re.compile(r"(?:<[\w=.-]*|[\w.-]+)?\s*(?:</?\w*)?")
_MAX_SCHEMA_STEPS = 20_000
"""Parts of the tools' schemas that one answer may read.

A tool with 50 arguments takes some 200.
"""
_MAX_CHARS_AGAIN = 1024 * 1024
"""Characters that are read again in one answer.

A call that is cut short is read twice.
"""

ToolDelta = str | ToolCallDelta  # Text of the answer, or a part of a call.


class _CallHead(Struct, frozen=True):
    """How text after a marker goes on; `end` is the index of what follows."""

    end: int  # -1: it is no call.
    name: str = ""  # Empty: it is in the object that follows.
    arguments: str | None = None  # None: they follow as JSON.


_NO_CALL = _CallHead(-1)


class ToolCallParser:
    """Splits a streamed answer into text and calls of the offered tools.

    Text that may begin a call is held back until more of it, or the end, decides.
    Arguments are JSON, whatever the model writes. Raises nothing and loses no text.

    Text that turns out to be no call is read again from behind its marker, as a call
    may follow. A long text of markers would be read once for each of them, so there is
    a limit on what is read again (`_MAX_CHARS_AGAIN`); after it, the rest of the answer
    is text.
    """

    def __init__(self, form: ToolFormat, parameters: Mapping[str, Any]) -> None:
        """`parameters` has the JSON Schema of each tool's arguments, by its name.

        If it is empty, any name is a tool.
        """
        self._format = form
        self._parameters = _ToolSchemas(parameters)
        self._n_chars_again = 0
        self._buffer = ""
        self._object: _CallObject | None = None
        self._is_start = True
        self._is_after_call = False
        self._in_list = False
        self._n_searched = 0  # Characters of arguments in which their end was searched.
        self.n_calls = 0

    def begin_another(self) -> ToolCallParser:
        """A parser for another part of the same answer.

        Both share the limits of work.
        """
        parser = ToolCallParser(self._format, {})
        parser._parameters = self._parameters
        parser._n_chars_again = self._n_chars_again
        return parser

    def feed(self, text: str) -> list[ToolDelta]:
        self._buffer += text
        return self._run(at_end=False)

    def finish(self, *, is_cut: bool = True) -> list[ToolDelta]:
        """What was held back.

        A call that is not complete stays so if the answer is cut.
        """
        deltas = self._run(at_end=True)
        if self._object is not None and self._object.name and not is_cut:
            deltas.append(ToolCallDelta(self.n_calls - 1, "", self._object.close()))
        elif self._object is not None and not self._object.name:
            deltas.append(self._object.text)
        self._object = None
        return _join_texts(deltas)

    def _run(self, *, at_end: bool) -> list[ToolDelta]:
        deltas: list[ToolDelta] = []
        while self._read(deltas, at_end=at_end):
            self._n_chars_again += len(self._buffer)
        return _join_texts(deltas)

    # --- steps: each returns whether another can follow
    # -----------------------------------------

    def _read(self, deltas: list[ToolDelta], *, at_end: bool) -> bool:
        if self._object is not None:
            return self._read_object(self._object, deltas)
        if self._is_after_call:
            return self._skip_end(at_end=at_end)
        if self._n_chars_again > _MAX_CHARS_AGAIN:
            deltas.append(self._buffer)
            self._buffer = ""
            return False
        begin, end = self._find_marker(at_end=at_end)
        head = None if end is None else self._read_head(begin, end, at_end=at_end)
        text = self._buffer[:begin] if end is None else self._buffer[:begin].rstrip()
        if text.strip() or not self.n_calls:
            deltas.append(text)
        rest = self._buffer[len(text) :]
        if end is None or head is None:
            self._buffer = rest
            return False
        self._is_start = False
        self._n_searched = 0
        if head is _NO_CALL:
            deltas.append(self._buffer[len(text) : end])
            self._buffer = self._buffer[end:]
            return True
        raw = self._buffer[len(text) : head.end]
        self._buffer = self._buffer[head.end :]
        if head.name:
            self._add_call(deltas, head.name, head.arguments or "")
        if head.arguments is None:
            self._object = _CallObject(self._parameters, head.name, raw)
        self._is_after_call = bool(head.name) and head.arguments is not None
        return True

    def _find_marker(self, *, at_end: bool) -> tuple[int, int | None]:
        """Where a call may begin, and the index after its marker.

        The latter is None if the marker is not complete yet, or there is none.
        """
        if self._is_start and self._format == "llama3":
            begin = len(self._buffer) - len(self._buffer.lstrip())
            if self._buffer.startswith("{", begin):
                return begin, begin
            if begin == len(self._buffer) and not at_end:
                return 0, None
            self._is_start = False
        markers = _MARKERS[self._format]
        begin = len(self._buffer)
        end = None
        for marker in markers:
            at = self._buffer.find(marker, 0, begin)
            if at >= 0:
                begin = at
                end = at + len(marker)
        if end is not None:
            return begin, end
        if at_end:
            return len(self._buffer), None
        n_held = max(partial_length(self._buffer, marker) for marker in markers)
        text = self._buffer[: len(self._buffer) - n_held]
        return len(text.rstrip()), None

    def _read_object(self, call: _CallObject, deltas: list[ToolDelta]) -> bool:
        had_name = bool(call.name)
        arguments, self._buffer = call.feed(self._buffer)
        if call.name and not had_name:
            self._add_call(deltas, call.name)
        if arguments:
            deltas.append(ToolCallDelta(self.n_calls - 1, "", arguments))
        if not call.is_complete:
            return False
        self._object = None
        self._is_after_call = True
        if not call.name:
            found = call.parse()
            self._is_after_call = found is not None
            if found is None:
                deltas.append(call.text)
            else:
                self._add_call(deltas, *found)
        return True

    def _add_call(
        self, deltas: list[ToolDelta], name: str, arguments: str = ""
    ) -> None:
        deltas.append(ToolCallDelta(self.n_calls, name))
        if arguments:
            deltas.append(ToolCallDelta(self.n_calls, "", arguments))
        self.n_calls += 1

    def _skip_end(self, *, at_end: bool) -> bool:
        """The end marker of a call; in a list another call may follow."""
        text = self._buffer.lstrip()
        bare = _EXTRA_BRACKETS.sub("", text, count=1)
        end = "," if self._in_list and bare.startswith(",") else _ENDS[self._format]
        followers = (end, *_MARKERS[self._format])
        if not at_end and any(
            tag.startswith(bare) and tag != bare for tag in followers
        ):
            return False
        if bare.startswith(followers) or not bare:
            text = bare
            self._buffer = bare
        self._is_after_call = False
        if not text.startswith(end) or (end == "]" and not self._in_list):
            self._in_list = False
            return True
        rest = text[len(end) :].lstrip()
        if end == "," and not rest and not at_end:
            self._is_after_call = True
            return False
        self._in_list = end == "," and rest.startswith("{")
        self._is_start = end == ";"
        if self._in_list:
            raw = self._buffer[: -len(rest)]
            self._object = _CallObject(self._parameters, "", raw)
            self._buffer = rest
        elif end != ",":
            self._buffer = text[len(end) :]
        return True

    # --- what follows a marker: None if more text decides
    # ----------------------------------------

    def _read_head(self, begin: int, end: int, *, at_end: bool) -> _CallHead | None:
        read = {
            "tags": self._read_tagged,
            "llama3": self._read_plain,
            "mistral": self._read_mistral,
            "gpt-oss": self._read_channel,
        }[self._format]
        is_function = self._buffer.startswith("<function=", begin)
        head = read(begin if is_function else end, at_end=at_end)
        return _NO_CALL if head is None and at_end else head

    def _read_plain(self, start: int, *, at_end: bool) -> _CallHead | None:
        """An object with name and arguments."""
        text = self._buffer[start:].lstrip()
        if not text:
            return None
        return _CallHead(len(self._buffer) - len(text)) if text[0] == "{" else _NO_CALL

    def _read_mistral(self, start: int, *, at_end: bool) -> _CallHead | None:
        """`[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`."""
        text = self._buffer[start:]
        if found := _MISTRAL_LIST.match(text):
            self._in_list = "[" in found[0]
            return _CallHead(start + found.end())
        if found := _MISTRAL_NAME.match(text):
            is_tool = found[1] in self._parameters
            return _CallHead(start + found.end(), found[1]) if is_tool else _NO_CALL
        return None if len(text) < _MAX_HEAD and "{" not in text else _NO_CALL

    def _read_channel(self, start: int, *, at_end: bool) -> _CallHead | None:
        """`commentary to=functions.name<|message|>{…}`, as `HarmonyParser` leaves it."""
        header, marker, rest = self._buffer[start:].partition("<|message|>")
        text = rest.lstrip()
        name = re.search(r"to=functions\.([\w.-]+)", header)
        if not text:
            return None if marker or len(header) < _MAX_HEAD else _NO_CALL
        if name is None or text[0] != "{" or name[1] not in self._parameters:
            return _NO_CALL
        return _CallHead(len(self._buffer) - len(text), name[1])

    def _read_tagged(self, start: int, *, at_end: bool) -> _CallHead | None:
        """An object, `<function=…>` with `<parameter=…>`, or a name with `<arg_key>`."""
        text = self._buffer
        begun = text[start : start + _MAX_HEAD]
        start += len(begun) - len(begun.lstrip())
        is_function = text.startswith("<function=", start)
        head = (_FUNCTION_HEAD if is_function else _KEYED_HEAD).match(text, start)
        if head is None:
            may_go_on = len(text) < start + _MAX_HEAD and _TAGGED_BEGUN.fullmatch(
                text, start
            )
            return None if may_go_on else self._read_plain(start, at_end=at_end)
        if head[1] not in self._parameters:
            return _NO_CALL
        style = tagged_arguments.FUNCTION if is_function else tagged_arguments.KEYED
        begin = head.end() + self._n_searched
        end, begin = style.find_end(text, head.end(), begin)
        self._n_searched = begin - head.end()
        if end is None:
            end = style.find_last_end(text, head.end()) if at_end else None
        if end is None:
            return None
        body = text[head.end() : end]
        arguments = style.parse(body, self._parameters.types_of(head[1]))
        if arguments is None:
            return _NO_CALL
        return _CallHead(end + len(style.end), head[1], arguments)


class _ToolSchemas:
    """JSON Schemas of arguments by name; without any, whatever has a name is a tool."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._schemas = schemas
        self._types: dict[str, tagged_arguments.ArgumentTypes] = {}
        self._budget = WorkBudget(_MAX_SCHEMA_STEPS)

    def __contains__(self, name: object) -> bool:
        if not self._schemas:
            return bool(name)
        return name in self._schemas

    def types_of(self, name: str) -> tagged_arguments.ArgumentTypes:
        """What is known of a tool's arguments.

        Each is read once, and all within one budget.
        """
        if name not in self._types:
            schema = self._schemas.get(name, {})
            self._types[name] = tagged_arguments.ArgumentTypes(schema, self._budget)
        return self._types[name]


class _CallObject:
    """A call as a JSON object, as it comes: its name, and its arguments as valid JSON.

    With `name` the object is the arguments. Until it has a name, `text` may be no call.
    """

    _HEADER = re.compile(
        r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
    )

    def __init__(self, parameters: _ToolSchemas, name: str, marker: str) -> None:
        self._parameters = parameters
        self.name = name
        self._marker = marker
        # The object as it was written, and as it is valid.
        self._written: list[str] = []
        self._valid: list[str] = []
        self._whole = JsonRepairer()
        self._arguments = self._whole if name else None
        self._begin = ""

    @property
    def is_complete(self) -> bool:
        return self._whole.is_complete

    @property
    def text(self) -> str:
        """All that was read, with the marker."""
        return "".join([self._marker, *self._written])

    def feed(self, text: str) -> tuple[str, str]:
        """Further arguments, and the text after the object."""
        valid, rest = self._whole.feed(text)
        written = text[: len(text) - len(rest)]
        if self._arguments is self._whole:
            return valid, rest
        if self._arguments is None:
            self._written.append(written)
            self._valid.append(valid)
            if len(self._begin) >= _MAX_HEAD:
                return "", rest
            self._begin = (self._begin + written)[:_MAX_HEAD]
            header = self._HEADER.match(self._begin)
            if header is None or header[1] not in self._parameters:
                return "", rest
            self.name = header[1]
            self._arguments = JsonRepairer()
            written = "".join(self._written)[header.end() :]
        return self._arguments.feed(written)[0], rest

    def close(self) -> str:
        """What is missing to the arguments."""
        return self._arguments.close() if self._arguments else ""

    def parse(self) -> tuple[str, str] | None:
        """Name and arguments of a complete object in any order; None if it is no call."""
        try:
            call = json.loads("".join(self._valid))
            name = call.get("name")
            given = call.get("arguments", call.get("parameters"))
            has_arguments = (
                "arguments" in call or "parameters" in call or self._marker.strip()
            )
            arguments = json.loads(given) if isinstance(given, str) else given or {}
            written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError, AttributeError):
            return None
        is_call = (
            bool(has_arguments)
            and isinstance(name, str)
            and isinstance(arguments, dict)
        )
        written = written.encode("utf-8", "replace").decode()
        return (name, written) if is_call and name in self._parameters else None


class ThinkingCallFinder:
    """Finds calls with which an answer ends inside its thinking.

    Some models do not close their thinking before a call.
    """

    def __init__(self, make_parser: Callable[[], ToolCallParser]) -> None:
        self._parser = make_parser()
        self._held = ""
        self._deltas: list[ToolDelta] = []

    def feed(self, text: str) -> str:
        """What is thinking in any case. The rest waits for the end, from a call on."""
        self._held += text
        n_certain = 0
        for delta in self._parser.feed(text):
            if isinstance(delta, str) and not self._deltas:
                n_certain += len(delta)
            else:
                self._deltas.append(delta)
        certain = self._held[:n_certain]
        self._held = self._held[n_certain:]
        return certain

    def close(self) -> str:
        """The rest, which is thinking if a closing tag comes."""
        held = self._held
        self._held = ""
        self._parser = self._parser.begin_another()
        self._deltas = []
        return held

    def finish(self, *, is_cut: bool) -> tuple[str, list[ToolCallDelta]]:
        """The rest of an answer's thinking, and the calls with which it ends.

        A cut answer has no calls.
        """
        deltas = [] if is_cut else [*self._deltas, *self._parser.finish(is_cut=False)]
        calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        texts = "".join(delta for delta in deltas if isinstance(delta, str))
        held = self.close()
        return (held, []) if texts.strip() or not calls else ("", calls)


def _join_texts(deltas: list[ToolDelta]) -> list[ToolDelta]:
    joined: list[ToolDelta] = []
    for delta in deltas:
        if isinstance(delta, str) and joined and isinstance(joined[-1], str):
            joined[-1] += delta
        elif delta:
            joined.append(delta)
    return joined
