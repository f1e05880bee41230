"""Tool calls in an answer: the formats that chat templates use, and a parser for a stream of text.

What cannot be read as a call stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from localspec.errors import UsageError
from localspec.lazy_dataclass import dataclass
from localspec.models.chat_template.thinking_tags import partial_length

ToolFormat = Literal["tags", "llama3", "mistral", "gpt-oss"]
"""`tags` is <tool_call> around JSON (Hermes, Qwen), <function=…> (Qwen Coder), <arg_key> (GLM)."""

_FORMAT_BY_SIGN: tuple[tuple[str, ToolFormat], ...] = (
    # A string in the template's source, and its format; the first match applies.
    ("<|channel|>commentary", "gpt-oss"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "tags"),
    ('{"name": function name, "parameters"', "llama3"),
)
_CONTROL_TEXTS: Mapping[ToolFormat, str] = {
    "tags": "<tool_call></tool_call>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS][CALL_ID][ARGS]",
    "gpt-oss": "<|start|><|channel|><|constrain|><|message|><|end|>",
}
_MARKERS: Mapping[ToolFormat, str] = {
    "tags": "<tool_call>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]",
    "gpt-oss": "<|channel|>",
}


def detect_format(source: str) -> ToolFormat | None:
    """The format of a template; None if it takes no tools, or in an unknown format."""
    if "tools" not in source:
        return None
    return next((form for sign, form in _FORMAT_BY_SIGN if sign in source), None)


def control_texts(form: ToolFormat) -> str:
    """Markers of a format, which may be control tokens."""
    return _CONTROL_TEXTS[form]


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A part of the call `index`; the first one has the name and no arguments."""

    index: int
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """How to make an answer a call: the text it begins with, and the JSON Schema of the rest."""

    prefix: str
    schema: str


def force_call(form: ToolFormat, tools: Mapping[str, Any]) -> ForcedCall:
    """For one call of any of the tools: the JSON Schema of their arguments, by name.

    Raises UsageError if the format cannot leave the choice among several to the model.
    """
    if form == "gpt-oss":
        if len(tools) != 1:
            raise UsageError("This model cannot be forced to call one of several tools.")
        ((name, arguments),) = tools.items()
        prefix = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
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


ToolDelta = str | ToolCallDelta  # Text of the answer, or a part of a call.


class ToolCallParser:
    """Splits the text of one answer into text and calls, as it comes.

    Text that may begin a call is held back until more of it, or the end, decides.
    """

    def __init__(self, form: ToolFormat, parameters: Mapping[str, Any] | None = None) -> None:
        """`parameters`: the JSON Schema of each tool's arguments, by its name."""
        self._format, self._parameters = form, parameters or {}
        self._marker = _MARKERS[form]
        self._buffer = ""
        self._raw = ""  # The text of a call that may still turn out to be none.
        self._read = self._read_start
        self._object: _ObjectScanner | None = None
        self.n_calls = 0

    def feed(self, text: str) -> list[ToolDelta]:
        self._buffer += text
        deltas: list[ToolDelta] = []
        while self._read(deltas):
            pass
        return _join_texts(deltas)

    def finish(self) -> list[ToolDelta]:
        """What was held back."""
        deltas: list[ToolDelta] = []
        if self._object is not None:
            self._read_object(deltas)
            if self._object is not None and not self._object.name:
                deltas.append(self._raw + self._object.text)
        elif self._raw or not self.n_calls or self._buffer.strip():
            deltas.append(self._raw + self._buffer)
        self._buffer = self._raw = ""
        return _join_texts(deltas)

    # --- outside of calls. Each method returns whether another can go on ---------------------

    def _read_start(self, deltas: list[ToolDelta]) -> bool:
        """At the start of an answer Llama and gpt-oss call without a marker."""
        text = self._buffer.lstrip()
        if not text:
            return False
        self._read = self._read_text
        if self._format == "llama3" and text[0] == "{":
            return self._begin_object(text, self._buffer[: -len(text)])
        if self._format == "gpt-oss":
            direct = "to=functions."
            if direct.startswith(text[: len(direct)]):
                self._read = self._read_start if len(text) < len(direct) else self._read_header
                return len(text) >= len(direct)
        return True

    def _read_text(self, deltas: list[ToolDelta]) -> bool:
        at = self._buffer.find(self._marker)
        if at < 0:
            end = len(self._buffer) - _held_length(self._buffer, self._marker)
            if self._buffer[:end].strip() or not self.n_calls:
                deltas.append(self._buffer[:end])
            self._buffer = self._buffer[end:]
            return False
        text = self._buffer[:at].rstrip()
        deltas.append(text)
        end = at + len(self._marker)
        self._raw, self._buffer = self._buffer[len(text) : end], self._buffer[end:]
        self._read = self._read_header
        return True

    # --- the beginning of a call ------------------------------------------------------------

    def _read_header(self, deltas: list[ToolDelta]) -> bool:
        return {
            "tags": self._read_tag_header,
            "llama3": self._read_json_header,
            "mistral": self._read_mistral_header,
            "gpt-oss": self._read_channel_header,
        }[self._format](deltas)

    def _read_tag_header(self, deltas: list[ToolDelta]) -> bool:
        text = self._buffer.lstrip()
        if not text or "<function=".startswith(text[:10]):
            call, end, rest = self._buffer.partition("</function>")
            pattern = _TAGGED_CALL
        elif text[0] == "{" or _PLAIN_NAME.match(text) is None:
            return self._read_json_header(deltas)
        else:
            call, end, rest = self._buffer.partition("</tool_call>")
            pattern = _KEYED_CALL
        if not end:
            return False
        found = pattern.match(call)
        if found is None:
            return self._give_up(deltas)
        self._add_call(deltas, found[1], self._tagged_arguments(found[1], found[2]))
        return self._end_call(rest)

    def _read_json_header(self, deltas: list[ToolDelta]) -> bool:
        text = self._buffer.lstrip()
        if not text:
            return False
        if text[0] != "{":
            return self._give_up(deltas)
        return self._begin_object(text, self._raw + self._buffer[: -len(text)])

    def _read_mistral_header(self, deltas: list[ToolDelta]) -> bool:
        """`[TOOL_CALLS][{…}, …]`, or `[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`."""
        text = self._buffer.lstrip(" \n[,")
        if text.startswith("{"):
            return self._begin_object(text, self._raw + self._buffer[: -len(text)])
        name, marker, rest = self._buffer.partition("[ARGS]")
        if not marker or not rest.lstrip():
            return False
        return self._begin_arguments(deltas, name.partition("[CALL_ID]")[0].strip(), rest)

    def _read_channel_header(self, deltas: list[ToolDelta]) -> bool:
        header, marker, rest = self._buffer.partition("<|message|>")
        if not marker:
            return False
        name = re.search(r"to=functions\.([\w.-]+)", header)
        if name is None:  # a channel of text
            self._raw, self._buffer, self._read = "", rest, self._read_text
            return True
        return bool(rest.lstrip()) and self._begin_arguments(deltas, name[1], rest)

    # --- JSON ---------------------------------------------------------------------------------

    def _begin_object(self, text: str, raw: str) -> bool:
        self._raw, self._buffer = raw, text
        self._object, self._read = _ObjectScanner(), self._read_object
        return True

    def _begin_arguments(self, deltas: list[ToolDelta], name: str, text: str) -> bool:
        """The arguments alone, after the name."""
        if not text.lstrip().startswith("{"):
            return self._give_up(deltas)
        self._add_call(deltas, name)
        self._raw, self._buffer = "", text.lstrip()
        self._object, self._read = _ObjectScanner(name), self._read_object
        return True

    def _read_object(self, deltas: list[ToolDelta]) -> bool:
        scanner = self._object
        if scanner is None or not self._buffer:
            return False
        had_name = bool(scanner.name)
        arguments, rest = scanner.scan(self._buffer)
        self._buffer = ""
        if scanner.name and not had_name:
            self._add_call(deltas, scanner.name)
        if arguments:
            deltas.append(ToolCallDelta(self.n_calls - 1, "", arguments))
        if not scanner.is_complete:
            return False
        self._object = None
        if scanner.name:
            return self._end_call(rest)
        call = scanner.parse()
        if call is None:
            self._buffer = scanner.text + rest
            return self._give_up(deltas)
        self._add_call(deltas, *call)
        return self._end_call(rest)

    # --- the end of a call --------------------------------------------------------------------

    def _add_call(self, deltas: list[ToolDelta], name: str, arguments: str = "") -> None:
        deltas.append(ToolCallDelta(self.n_calls, name))
        if arguments:
            deltas.append(ToolCallDelta(self.n_calls, "", arguments))
        self.n_calls += 1

    def _end_call(self, rest: str) -> bool:
        self._raw, self._buffer, self._read = "", rest, self._read_after_call
        return True

    def _read_after_call(self, deltas: list[ToolDelta]) -> bool:
        """Skip the end marker; in a list another call follows."""
        if self._format == "mistral":
            self._buffer = self._buffer.lstrip(" \n,]")
            if not self._buffer:
                return False
            is_call = self._buffer.startswith("{")
            self._read = self._read_header if is_call else self._read_text
            return True
        end = {"tags": "</tool_call>", "gpt-oss": "<|call|>"}.get(self._format, ";")
        text = self._buffer.lstrip()
        if not text or (len(text) < len(end) and end.startswith(text)):
            return False
        self._buffer, self._read = text.removeprefix(end), self._read_text
        if self._format == "llama3" and text.startswith(";"):
            self._read = self._read_start
        return True

    def _give_up(self, deltas: list[ToolDelta]) -> bool:
        """It is text after all."""
        deltas.append(self._raw)
        self._raw, self._read = "", self._read_text
        return True

    def _tagged_arguments(self, name: str, text: str) -> str:
        properties = (self._parameters.get(name) or {}).get("properties", {})
        arguments: dict[str, Any] = {}
        for found in _TAGGED_ARGUMENT.finditer(text):
            key, value = (found[1] or found[3]).strip(), found[2] or found[4] or ""
            schema = properties.get(key)
            is_text = not isinstance(schema, dict) or schema.get("type") == "string"
            arguments[key] = value if is_text else _parse_value(value)
        return json.dumps(arguments, ensure_ascii=False)


_TAGGED_CALL = re.compile(r"\s*<function=([^>\s]+)\s*>(.*)", re.DOTALL)
_KEYED_CALL = re.compile(r"\s*([\w.-]+)\s*(.*)", re.DOTALL)
_PLAIN_NAME = re.compile(r"[\w.-]+\s*(<|$)")
_TAGGED_ARGUMENT = re.compile(
    r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>"
    r"|<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>",
    re.DOTALL,
)


class _ObjectScanner:
    """Scans the JSON object of a call as it comes: the name, and the arguments as written.

    With `name` the object is the arguments themselves.
    """

    _HEADER = re.compile(
        r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
    )

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.text = ""  # All of the object so far.
        self.is_complete = False
        self._depth = 0
        self._in_string = self._is_escaped = False
        self._n_scanned = 0
        self._depth_around = 0 if name else 1  # Depth of what the arguments are part of.
        self._begin: int | None = 0 if name else None
        self._end: int | None = None  # Where the arguments begin and end.
        self._n_sent = 0

    def scan(self, text: str) -> tuple[str, str]:
        """New text of the arguments, and what follows the object."""
        self.text += text
        if self._begin is None and (header := self._HEADER.match(self.text)):
            self.name = json.loads(header[1], strict=False)
            self._begin = self._n_sent = header.end()
        while self._n_scanned < len(self.text) and not self.is_complete:
            self._scan_character(self.text[self._n_scanned])
        rest, self.text = self.text[self._n_scanned :], self.text[: self._n_scanned]
        if self._begin is None:
            return "", rest
        end = len(self.text) if self._end is None else self._end
        arguments, self._n_sent = self.text[self._n_sent : end], end
        return arguments, rest

    def _scan_character(self, character: str) -> None:
        self._n_scanned += 1
        if self._in_string:
            self._in_string = self._is_escaped or character != '"'
            self._is_escaped = character == "\\" and not self._is_escaped
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            has_begun = self._begin is not None and self._n_scanned > self._begin
            if has_begun and self._end is None and self._depth == self._depth_around:
                self._end = self._n_scanned
            self.is_complete = self._depth == 0

    def parse(self) -> tuple[str, str] | None:
        """Name and arguments of a complete object in any order; None if it is no call."""
        try:
            call = json.loads(self.text, strict=False)
        except ValueError:
            return None
        name = call.get("name")
        arguments = call.get("arguments", call.get("parameters", {}))
        if not isinstance(name, str) or not isinstance(arguments, dict | str):
            return None
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return name, arguments


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _held_length(text: str, marker: str) -> int:
    """Length of the end of `text` that may begin a marker, with the whitespace before it."""
    n = partial_length(text, marker)
    before = text[: len(text) - n]
    return n + len(before) - len(before.rstrip())


def _join_texts(deltas: list[ToolDelta]) -> list[ToolDelta]:
    joined: list[ToolDelta] = []
    for delta in deltas:
        if isinstance(delta, str) and joined and isinstance(joined[-1], str):
            joined[-1] += delta
        elif delta:
            joined.append(delta)
    return joined
