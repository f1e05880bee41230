"""Tool calls in an answer: a parser for a stream of text, in any format of the table.

What cannot be read as a call of an offered tool stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from msgspec import Struct

from localspec.errors import UsageError
from localspec.models.chat_template.argument_types import ArgumentTypes
from localspec.models.chat_template.call_bodies import (
    MAX_LOOKAHEAD,
    BodyStyle,
    BodyText,
    ParsedCall,
    to_json,
)
from localspec.models.chat_template.json_repair import JsonRepairer
from localspec.models.chat_template.schema_references import (
    WorkBudget,
    move_references,
    require_object,
)
from localspec.models.chat_template.text_scanner import TextScanner
from localspec.models.chat_template.thinking_tags import partial_length
from localspec.models.chat_template.tool_formats import (
    MAX_HEAD,
    TOOL_FORMATS,
    CallReader,
    ToolFormat,
)


class ToolCallDelta(Struct, frozen=True):
    """A part of the call `index`; the first one has the name and no arguments."""

    index: int
    name: str = ""
    arguments: str = ""


class ForcedCall(Struct, frozen=True):
    """How to make an answer a call.

    It begins with the text `prefix`; the rest has the JSON Schema `schema`.
    """

    prefix: str
    schema: str
    fallback_schema: str
    """The same with any object as arguments, if a schema cannot be compiled."""


def force_call(format_name: str, tools: Mapping[str, Any]) -> ForcedCall:
    """For one call of any of the tools: the JSON Schema of their arguments, by name.

    Raises UsageError if the format cannot leave the choice among several to the model.
    """
    form = TOOL_FORMATS[format_name]
    has_form_of_one = bool(form.forced_call) and len(tools) == 1
    prefix = form.forced_prefix
    if has_form_of_one:
        (name,) = tools
        prefix = form.forced_call.replace("{name}", name)
    elif not prefix and not form.begins_bare:
        raise UsageError("This model cannot be forced to call one of several tools.")

    def write(schemas: Mapping[str, Any]) -> str:
        if has_form_of_one:
            (arguments,) = schemas.values()
            return json.dumps(arguments)
        return _write_call_schema(form, schemas)

    schemas = {name: require_object(schema) for name, schema in tools.items()}
    any_object = {"type": "object"}
    return ForcedCall(
        prefix,
        schema=write(schemas),
        fallback_schema=write(dict.fromkeys(tools, any_object)),
    )


def _write_call_schema(form: ToolFormat, tools: Mapping[str, Any]) -> str:
    """The JSON Schema, as JSON, of a call of one of the tools."""
    root = "#/items" if form.forces_list else "#"
    calls: list[dict[str, Any]] = []
    for i, (name, arguments) in enumerate(tools.items()):
        properties: dict[str, Any] = {}
        key: str = form.arguments_key
        if form.is_keyed:
            key = name
        else:
            properties["name"] = {"const": name}
        place = f"{root}/anyOf/{i}/properties/{key}"
        properties[key] = move_references(arguments, place)
        call = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        calls.append(call)
    schema: dict[str, Any] = {"anyOf": calls}
    if form.forces_list:
        schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
    return json.dumps(schema)


_MAX_SCHEMA_STEPS = 20_000
"""Parts of the tools' schemas that one answer may read.

A tool with 50 arguments takes some 200.
"""
_MAX_CHARS_AGAIN = 1024 * 1024
"""Characters that are read again in one answer.

A call that is cut short is read twice.
"""
_MAX_EXTRA_BRACKETS = 3

ToolDelta = str | ToolCallDelta  # Text of the answer, or a part of a call.

_Place = Literal["start", "text", "object", "body", "after"]
"""Where the next character is.

`start` is the beginning of an answer whose calls have no mark, `after` is behind a
call.
"""


class _DeltaList:
    """Collects text and parts of calls; texts in a row are joined."""

    def __init__(self) -> None:
        self._deltas: list[ToolDelta] = []
        self._texts: list[str] = []

    def add_text(self, *texts: str) -> None:
        self._texts += texts

    def add_call(self, delta: ToolCallDelta) -> None:
        self._end_text()
        self._deltas.append(delta)

    def close(self) -> list[ToolDelta]:
        """Return the deltas. The list is not used afterwards."""
        self._end_text()
        return self._deltas

    def _end_text(self) -> None:
        text = "".join(self._texts)
        if text:
            self._deltas.append(text)
        self._texts = []


class ToolCallParser:
    """Splits one answer, as it comes, into text and calls of the offered tools.

    Text that may begin a call is held back until more of it, or the end, decides.
    Arguments are JSON, whatever the model writes. Raises nothing and loses no text.

    A body that turns out to be no call is read again from behind its mark, as a call
    may follow. A long text of marks would be read once for each of them, so there is a
    limit on what is read again (`_MAX_CHARS_AGAIN`); after it, such a body is text.
    """

    def __init__(
        self,
        format_name: str,
        parameters: Mapping[str, Any],
        *,
        reads_unknown: bool = False,
    ) -> None:
        """`parameters`: the JSON Schema of each tool's arguments, by its name.

        If it is empty, any tool may be called. `reads_unknown`: calls of tools that are
        not offered are read, too, unless the format has no mark that tells them from
        text.
        """
        self._format = TOOL_FORMATS[format_name]
        has_marks = not self._format.begins_bare
        self._parameters = _ToolSchemas(
            parameters, reads_unknown=reads_unknown and has_marks
        )
        self._again = WorkBudget(_MAX_CHARS_AGAIN)
        self._scanner = TextScanner()
        self._place: _Place = "start" if self._format.begins_bare else "text"
        self._held: list[str] = []
        """Space, and behind a call brackets: dropped if a call follows or preceded."""
        self._n_brackets = 0
        self._call: _CallObject | _CallBody | None = None
        self._in_list = False
        self._has_comma = False
        self._is_closed = False
        self._waits_for_closer = False
        self.n_calls = 0
        self.is_last_cut = False
        """Whether the answer was cut within the last of the calls."""

    def begin_another(self) -> ToolCallParser:
        """A parser for another part of the same answer.

        Both share the limits of work.
        """
        parser = ToolCallParser(self._format.name, {})
        parser._parameters = self._parameters
        parser._again = self._again
        return parser

    @property
    def is_in_call(self) -> bool:
        """Whether the text ends within a call, or in what may become one.

        A call whose arguments are complete is one up to its closing mark.
        """
        if self._call is not None or self._scanner.unread:
            return True
        return self._place == "after" and self._waits_for_closer

    def feed(self, text: str) -> list[ToolDelta]:
        """The text, and the parts of calls, that are certain so far."""
        deltas = _DeltaList()
        self._scanner.feed(text, partial(self._read, deltas))
        return deltas.close()

    def finish(self, *, is_cut: bool = True) -> list[ToolDelta]:
        """What was held back.

        A call that is not complete stays so if the answer is cut.
        """
        deltas = _DeltaList()
        read = partial(self._read, deltas)
        rest = self._scanner.finish(read)
        while isinstance(self._call, _CallBody):
            self._end_body(deltas, self._call)
            rest = self._scanner.finish(read)
        if isinstance(self._call, _CallObject):
            self._end_object(deltas, self._call, rest, is_cut=is_cut)
            rest = ""
        if rest or not self.n_calls:
            deltas.add_text(*self._held, rest)
        self._held = []
        return deltas.close()

    # --- steps: each returns the index that it reached, or where it began if more text
    # decides

    def _read(self, deltas: _DeltaList, text: str, start: int) -> int:
        if isinstance(self._call, _CallObject):
            return self._read_object(deltas, self._call, text, start)
        if isinstance(self._call, _CallBody):
            return self._read_body(deltas, self._call, text, start)
        if self._place == "after":
            return self._read_after(deltas, text, start)
        return self._read_text(deltas, text, start)

    def _read_text(self, deltas: _DeltaList, text: str, start: int) -> int:
        if self._place == "start":
            if text[start].isspace():
                return self._hold(text, start, _end_of_space(text, start))
            if text[start] == "{":
                return self._begin_object(deltas, text, start)
            self._place = "text"

        mark = self._format.any_mark.search(text, start)
        if mark is None:
            end = len(text) - self._n_begun_chars(text, start)
            self._add_text(deltas, text[start:end])
            return end
        if mark.start() > start:
            self._add_text(deltas, text[start : mark.start()])
            return mark.start()

        begun = self._match_head(text, start)
        if begun is not None:
            return self._begin_call(deltas, *begun, mark[0])
        is_long = len(text) - start >= MAX_HEAD
        if not is_long and not self._scanner.is_at_end:
            return start
        self._add_text(deltas, mark[0])
        return mark.end()

    def _n_begun_chars(self, text: str, start: int) -> int:
        """How many characters at the end of the text may begin a mark."""
        if self._scanner.is_at_end:
            return 0
        tail = text[max(start, len(text) - MAX_HEAD) :]
        return max(partial_length(tail, mark) for mark in self._format.marks)

    def _add_text(self, deltas: _DeltaList, text: str) -> None:
        """Add a text of the answer; the space at its end waits for what follows."""
        certain = text.rstrip()
        if certain:
            deltas.add_text(*self._held, certain)
            self._held = []
        space = text[len(certain) :]
        if space:
            self._held.append(space)

    def _hold(self, text: str, start: int, end: int) -> int:
        self._held.append(text[start:end])
        return end

    def _match_head(
        self, text: str, start: int
    ) -> tuple[CallReader, re.Match[str], str] | None:
        """How a call begins at a mark, and its name, empty if an object has it.

        None if none begins, or not yet.
        """
        for reader in self._format.readers:
            head = reader.head.match(text, start, start + MAX_HEAD)
            if head is None:
                continue
            written = head.groupdict().get("name")
            if written is None:
                return reader, head, ""
            name = self._parameters.find_name(written, self._format.glued_type)
            if name is not None:
                return reader, head, name
        return None

    def _begin_call(
        self,
        deltas: _DeltaList,
        reader: CallReader,
        head: re.Match[str],
        name: str,
        mark: str,
    ) -> int:
        before = "".join(self._held)
        self._held = []
        if reader.body is not None:
            self._call = _CallBody(
                reader.body, name, f"{before}{mark}", head[0][len(mark) :]
            )
            return head.end()
        if name:
            self._add_call(deltas, name)
        self._in_list = head[0].endswith("[") or head[0].rstrip().endswith("[")
        self._call = _CallObject(
            self._parameters,
            name,
            f"{before}{head[0]}",
            is_keyed=reader.is_keyed,
        )
        return head.end()

    def _begin_object(self, deltas: _DeltaList, text: str, start: int) -> int:
        """Begin a call without a mark, or a further one behind a mark."""
        self._call = _CallObject(
            self._parameters,
            "",
            "".join(self._held),
            is_keyed=self._format.is_keyed,
        )
        self._held = []
        return self._read_object(deltas, self._call, text, start)

    def _read_object(
        self, deltas: _DeltaList, call: _CallObject, text: str, start: int
    ) -> int:
        had_name = bool(call.name)
        arguments, rest = call.feed(text[start:])
        if call.name and not had_name:
            self._add_call(deltas, call.name)
        if arguments:
            deltas.add_call(ToolCallDelta(self.n_calls - 1, "", arguments))
        if call.is_complete:
            self._end_object(deltas, call, "", is_cut=False)
        return len(text) - len(rest)

    def _end_object(
        self, deltas: _DeltaList, call: _CallObject, rest: str, *, is_cut: bool
    ) -> None:
        """End a call; one that is not complete is closed, unless the answer is cut."""
        self._call = None
        self._place = "after"
        self._n_brackets = 0
        self._has_comma = False
        self._is_closed = False
        if call.name:
            self.is_last_cut = is_cut and not call.is_complete
            if not call.is_complete and not is_cut:
                closing = call.close()
                if closing:
                    deltas.add_call(ToolCallDelta(self.n_calls - 1, "", closing))
            return
        found = call.parse() if call.is_complete else None
        if found is not None:
            self._add_call(deltas, *found)
            return
        self._place = "text"
        self._add_text(deltas, call.text + rest)

    def _read_body(
        self, deltas: _DeltaList, call: _CallBody, text: str, start: int
    ) -> int:
        end = call.style.end
        at = text.find(end, start)
        if at < 0:
            n_begun = 0
            if not self._scanner.is_at_end:
                n_begun = partial_length(text[-len(end) :], end)
            at = max(start, len(text) - n_begun)
        if at > start:
            call.body.add(text[start:at])
            return at
        if not text.startswith(end, start):
            return start

        after = start + len(end)
        following = text[after : after + MAX_LOOKAHEAD]
        is_end = call.style.is_end(call.body, following, at_end=self._scanner.is_at_end)
        if is_end is None:
            return start
        if not is_end:
            call.body.add(end)
            return after
        calls = call.parse(call.body.join(), self._parameters)
        if calls is None:
            self._read_again(deltas, call, end)
        else:
            self._add_calls(deltas, calls)
        return after

    def _end_body(self, deltas: _DeltaList, call: _CallBody) -> None:
        """End the body of a call with which the answer ends."""
        whole = call.body.join()
        end = call.style.find_last_end(whole)
        calls = None
        if end is not None:
            calls = call.parse(whole[:end], self._parameters)
        if end is None or calls is None:
            self._read_again(deltas, call, "")
            return
        self._add_calls(deltas, calls)
        rest = whole[end:].removeprefix(call.style.end)
        if rest and not self._scanner.read_again(rest, self._again):
            self._place = "text"
            self._add_text(deltas, rest)

    def _read_again(self, deltas: _DeltaList, call: _CallBody, end: str) -> None:
        """The mark of a call that is none is text; what follows it is read again."""
        self._call = None
        self._place = "text"
        body = call.head + call.body.join() + end
        if self._scanner.read_again(body, self._again):
            self._add_text(deltas, call.mark)
        else:
            self._add_text(deltas, call.mark + body)

    def _add_calls(self, deltas: _DeltaList, calls: list[ParsedCall]) -> None:
        for name, arguments in calls:
            self._add_call(deltas, name, arguments)
        self._call = None
        self._in_list = False
        self._place = "after"
        self._n_brackets = 0
        self._has_comma = False
        # The end of its body has closed it.
        self._is_closed = True

    def _add_call(self, deltas: _DeltaList, name: str, arguments: str = "") -> None:
        self._waits_for_closer = bool(self._format.closers)
        deltas.add_call(ToolCallDelta(self.n_calls, name))
        if arguments:
            deltas.add_call(ToolCallDelta(self.n_calls, "", arguments))
        self.n_calls += 1

    def _read_after(self, deltas: _DeltaList, text: str, start: int) -> int:
        """Behind a call: what closes it, or another one in the same list."""
        character = text[start]
        if character.isspace():
            return self._hold(text, start, _end_of_space(text, start))
        for closer in self._format.closers:
            if text.startswith(closer, start):
                return self._close_call(start, closer)

        is_list = self._in_list or self._format.is_section
        if not self._is_closed:
            if character == "}" and self._n_brackets < _MAX_EXTRA_BRACKETS:
                self._n_brackets += 1
                return self._hold(text, start, start + 1)
            if character == "]" and self._in_list:
                self._in_list = False
                return self._close_call(start, "]")
            if character == "," and is_list and not self._has_comma:
                self._has_comma = True
                return self._hold(text, start, start + 1)
            if character == "{" and is_list:
                return self._begin_object(deltas, text, start)

        rest = text[start : start + MAX_HEAD]
        tags = (*self._format.closers, *self._format.marks)
        is_begun = any(tag.startswith(rest) for tag in tags)
        if is_begun and rest not in self._format.marks and not self._scanner.is_at_end:
            return start
        self._in_list = False
        self._place = "text"
        return self._read_text(deltas, text, start)

    def _close_call(self, start: int, closer: str) -> int:
        self._held = []
        self._is_closed = True
        self._waits_for_closer = False
        if closer == self._format.restart:
            self._place = "start"
        return start + len(closer)


_SPACE_RUN = re.compile(r"\s*")


def _end_of_space(text: str, start: int) -> int:
    found = _SPACE_RUN.match(text, start)
    assert found is not None
    return found.end()


class _ToolSchemas:
    """JSON Schemas of arguments by name; without any, whatever has a name is a tool."""

    def __init__(
        self, schemas: Mapping[str, Any], *, reads_unknown: bool = False
    ) -> None:
        self._schemas = schemas
        self._has_any_name = reads_unknown or not schemas
        self._types: dict[str, ArgumentTypes] = {}
        self._budget = WorkBudget(_MAX_SCHEMA_STEPS)

    def __contains__(self, name: object) -> bool:
        if self._has_any_name:
            return bool(name)
        return name in self._schemas

    def find_name(self, written: str, glued_type: str) -> str | None:
        """The offered tool of a name, also where a type is glued to it."""
        shorter = written.removesuffix(glued_type)
        if glued_type and written not in self._schemas and shorter in self._schemas:
            return shorter
        return written if written in self else None

    def types_of(self, name: str) -> ArgumentTypes:
        """What is known of a tool's arguments.

        Each is read once, and all within one budget.
        """
        if name not in self._types:
            schema = self._schemas.get(name, {})
            self._types[name] = ArgumentTypes(schema, self._budget)
        return self._types[name]


class _CallBody:
    """A call whose arguments are no JSON, as it comes."""

    def __init__(self, style: BodyStyle, name: str, mark: str, head: str) -> None:
        """`mark` is text if it is no call; `head`, behind it, may be read again."""
        self.style = style
        self.mark = mark
        self.head = head
        self.body = BodyText()
        self._name = name

    def parse(self, body: str, tools: _ToolSchemas) -> list[ParsedCall] | None:
        """The calls of offered tools; None if it is none."""
        calls = self.style.parse(self._name, body, tools.types_of)
        if calls is None or any(name not in tools for name, _ in calls):
            return None
        return calls


class _CallObject:
    """A call as a JSON object, as it comes: its name, and its arguments as valid JSON.

    With `name` the object is the arguments. Until it has a name, `text` may be no call.
    """

    _HEADER = re.compile(
        r'\s*\{\s*(?:"(?:id|tool_call_id)"\s*:\s*"[^"\\]*"\s*,\s*)?'
        r'"(?:tool_)?name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
    )
    _KEYED_HEADER = re.compile(r'\s*\{\s*"([^"\\]*)"\s*:\s*(?=\{)')

    def __init__(
        self, parameters: _ToolSchemas, name: str, before: str, *, is_keyed: bool
    ) -> None:
        """`before` is what was read of the call so far: text, if it is none."""
        self._parameters = parameters
        self.name = name
        self._before = before
        self._is_keyed = is_keyed
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
        """All that was read, with what came before."""
        return "".join([self._before, *self._written])

    def feed(self, text: str) -> tuple[str, str]:
        """Further arguments, and the text after the object."""
        valid, rest = self._whole.feed(text)
        written = text[: len(text) - len(rest)]
        if self._arguments is self._whole:
            return valid, rest
        if self._arguments is not None:
            return self._arguments.feed(written)[0], rest

        self._written.append(written)
        self._valid.append(valid)
        if len(self._begin) >= MAX_HEAD:
            return "", rest
        self._begin = (self._begin + written)[:MAX_HEAD]
        pattern = self._KEYED_HEADER if self._is_keyed else self._HEADER
        header = pattern.match(self._begin)
        if header is None or header[1] not in self._parameters:
            return "", rest
        self.name = header[1]
        self._arguments = JsonRepairer()
        begun = "".join(self._written)[header.end() :]
        return self._arguments.feed(begun)[0], rest

    def close(self) -> str:
        """What is missing to the arguments."""
        return self._arguments.close() if self._arguments else ""

    def parse(self) -> ParsedCall | None:
        """Name and arguments of an object in any order; None if it is no call."""
        try:
            call = json.loads("".join(self._valid))
            given = call.get("arguments", call.get("parameters"))
            arguments = json.loads(given) if isinstance(given, str) else given or {}
        except (ValueError, RecursionError, AttributeError):
            return None
        name = call.get("name", call.get("tool_name"))
        has_arguments = (
            "arguments" in call or "parameters" in call or self._before.strip()
        )
        written = to_json(arguments)
        if not has_arguments or not isinstance(arguments, dict) or written is None:
            return None
        if not isinstance(name, str) or name not in self._parameters:
            return None
        return name, written


class ThinkingCallFinder:
    """Finds calls with which an answer ends inside its thinking.

    Some models call a tool without closing their thinking.
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

        Only a complete answer ends with calls.
        """
        deltas = []
        if not is_cut:
            deltas = [*self._deltas, *self._parser.finish(is_cut=False)]
        calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
        texts = "".join(delta for delta in deltas if isinstance(delta, str))
        held = self.close()
        if texts.strip() or not calls:
            return held, []
        return "", calls
