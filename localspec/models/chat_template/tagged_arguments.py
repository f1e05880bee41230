"""Arguments of a tool call that are written between tags, as Qwen Coder and GLM do.

The server reads them in its event loop, where everybody waits. The text is the model's
and the schema the client's, so the work may grow with the length of the text, but not
with its square, and the schema is read within a budget.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from localspec.models.chat_template.schema_references import (
    BudgetExceededError,
    SchemaReferences,
    WorkBudget,
)

_MAX_SPACE = 64  # Characters, the tag after it included.
_SPACE = re.compile(r"\s*")
_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""What models write as in Python."""


class TaggedStyle(Struct, frozen=True):
    """Arguments between tags.

    A value may hold the same tags: an end is one only where one fits.
    """

    parameter: re.Pattern[str]
    """The tag before a value, with its name.

    It never matches the beginning of another tag.
    """
    value_end: str
    """The tag after a value."""
    end: str
    """The tag after all arguments."""
    followers: tuple[str, ...]
    """What may follow `end`; empty: anything."""
    has_line_feeds: bool
    """Whether a line feed is before and after each value."""

    def find_end(self, text: str, start: int, begin: int) -> tuple[int | None, int]:
        """Where the arguments end, and where to search on.

        The end is None while it is not certain. The arguments begin at `start`; `begin`
        is where the last search ended.
        """
        at = text.find(self.end, begin)
        while at >= 0:
            is_followed = self._is_followed(text, at + len(self.end))
            if is_followed is not False and self._is_closed(text, start, at):
                return at if is_followed else None, at
            at = text.find(self.end, at + 1)
        return None, max(begin, len(text) - len(self.end))

    def find_last_end(self, text: str, start: int) -> int | None:
        """As `find_end` when no more text comes: a tag may be missing."""
        ends = [start + found.start() for found in re.finditer(self.end, text[start:])]
        next_call = text.find("<function=", start)
        closed = [end for end in ends if self._is_closed(text, start, end)]
        own = [end for end in closed if next_call < 0 or end < next_call]
        if closed:
            return own[-1] if own else closed[0]
        for end in ends:
            if self._is_followed(text, end + len(self.end)) is not False:
                return end
        return None

    def _is_followed(self, text: str, start: int) -> bool | None:
        """Whether what may follow an end does; None if more text decides."""
        rest = text[start : start + _MAX_SPACE].lstrip()
        if not self.followers or rest.startswith(self.followers):
            return True
        is_begun = any(tag.startswith(rest) for tag in self.followers)
        return None if is_begun and len(text) < start + _MAX_SPACE else False

    def _is_closed(self, text: str, start: int, end: int) -> bool:
        """Whether the value before `end` has its closing tag, or there is no value."""
        while end > start and text[end - 1].isspace():
            end -= 1
        return end == start or text.endswith(self.value_end, start, end)

    def parse(self, body: str, types: ArgumentTypes) -> str | None:
        """The arguments as JSON; None if something else is between them."""
        if not body.strip():
            return "{}"
        if self.parameter.match(body, _skip_space(body, 0)) is None:
            return None
        tags = _TagPositions(self, body, types.names)
        arguments: dict[str, Any] = {}
        at = 0
        while (opening := tags.find_opening(at)) is not None:
            start = opening.end()
            end, at = tags.find_value_end(start)
            value = body[start:end]
            if self.has_line_feeds:
                value = value.removeprefix("\n").removesuffix("\n")
            name = opening[1].strip()
            arguments[name] = value
            if name in types.names:
                arguments[name] = _to_value(value, types.find(name))
        if body[at:].strip():
            return None
        return (
            json.dumps(arguments, ensure_ascii=False)
            .encode("utf-8", "replace")
            .decode()
        )


FUNCTION = TaggedStyle(
    re.compile(r"<parameter=([^<>\n]+)>"),
    "</parameter>",
    "</function>",
    ("</tool_call>", "<tool_call>", "<function="),
    has_line_feeds=True,
)
KEYED = TaggedStyle(
    re.compile(r"<arg_key>((?:[^<]|<(?!/?arg_key>)){0,1024})</arg_key>\s*<arg_value>"),
    "</arg_value>",
    "</tool_call>",
    (),
    has_line_feeds=False,
)


class _TagPositions:
    """Where the tags of one call's arguments are.

    All are found in one pass. An answer can have ten thousand tags without an end; if
    each value searched the rest of the text for its own end, these would be a hundred
    million.
    """

    def __init__(self, style: TaggedStyle, body: str, names: Collection[str]) -> None:
        """`names`: the arguments that the tool has."""
        self._body = body
        self._openings = list(style.parameter.finditer(body))
        self._opening_starts = [opening.start() for opening in self._openings]
        self._opening_ends = [opening.end() for opening in self._openings]
        self._known = [
            opening for opening in self._openings if opening[1].strip() in names
        ]
        self._known_starts = [opening.start() for opening in self._known]
        self._n_closing_chars = len(style.value_end)
        self._closings = [found.start() for found in re.finditer(style.value_end, body)]
        self._final_closings = [at for at in self._closings if self._is_final(at)]

    def find_opening(self, at: int) -> re.Match[str] | None:
        """The opening tag that stands at an index, or after space there."""
        at = _skip_space(self._body, at)
        i = bisect_left(self._opening_starts, at)
        if i < len(self._openings) and self._opening_starts[i] == at:
            return self._openings[i]
        return None

    def find_value_end(self, start: int) -> tuple[int, int]:
        """The end of the value that begins at `start`, and the end of its closing tag."""
        at, end = self._find_closing(start)
        # A value that opens more than it closes has lost its closing tag: the next
        # argument that the tool has ends it.
        first_opening = bisect_left(self._opening_starts, start)
        first_closing = bisect_left(self._closings, start)
        n_openings = bisect_right(self._opening_ends, at) - first_opening
        n_closings = bisect_left(self._closings, at) - first_closing
        if n_openings > n_closings:
            i = bisect_left(self._known_starts, start)
            if i < len(self._known) and self._known[i].end() <= at:
                value = self._body[start : self._known_starts[i]]
                end_of_value = start + len(value.rstrip())
                return end_of_value, end_of_value
        return at, end

    def _find_closing(self, start: int) -> tuple[int, int]:
        i = bisect_left(self._final_closings, start)
        if i == len(self._final_closings):
            return len(self._body), len(self._body)
        at = self._final_closings[i]
        return at, at + self._n_closing_chars

    def _is_final(self, closing: int) -> bool:
        """Whether another argument, or nothing, follows a closing tag.

        Others are in a value.
        """
        following = closing + self._n_closing_chars
        if self.find_opening(following) is not None:
            return True
        return _skip_space(self._body, following) == len(self._body)


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


class ArgumentTypes:
    """The types that the JSON Schema of a tool allows for its arguments."""

    def __init__(self, schema: Any, budget: WorkBudget) -> None:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        self.names: dict[str, Any] = properties if isinstance(properties, dict) else {}
        self._references = SchemaReferences(schema)
        self._budget = budget
        self._types: dict[str, frozenset[str]] = {}

    def find(self, name: str) -> frozenset[str]:
        """The types of one argument.

        Empty if its schema allows any type, or is too long to read.
        """
        if name not in self._types:
            try:
                types = self._read_types(self.names[name])
            except BudgetExceededError:
                types = frozenset()
            self._types[name] = types
        return self._types[name]

    def _read_types(self, schema: Any) -> frozenset[str]:
        """Each part is read once.

        A reference that leads back to one allows no further type.
        """
        types: set[str] = set()
        seen: set[int] = set()
        pending = [schema]
        while pending:
            part = pending.pop()
            if id(part) in seen:
                continue
            seen.add(id(part))
            own_types, alternatives = self._read_part(part)
            if not own_types and not alternatives:
                # Among the alternatives is one that allows any type.
                return frozenset()
            types |= own_types
            pending += alternatives
        return frozenset(types)

    def _read_part(self, schema: Any) -> tuple[set[str], list[Any]]:
        """The types that a part allows by itself, and its alternatives.

        The alternatives are further parts, each of which allows some types. One of the
        two is empty; if both are, any type is allowed.
        """
        self._budget.spend(1)
        if not isinstance(schema, dict):
            return set(), []
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return set(), [self._references.find(reference)]
        values = schema.get("enum", [])
        if "const" in schema and "enum" not in schema:
            values = [schema["const"]]
        if isinstance(values, list) and values:
            self._budget.spend(len(values))
            return set().union(*map(_type_names, values)), []
        given = schema.get("type", [])
        if given:
            names = given if isinstance(given, list) else [given]
            self._budget.spend(len(names))
            return {name for name in names if isinstance(name, str)}, []
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(alternatives, list):
            return set(), []
        self._budget.spend(len(alternatives))
        return set(), alternatives


def _to_value(text: str, allowed: frozenset[str]) -> Any:
    """A value that is written without quotes, in one of the allowed types.

    If `allowed` is empty, any type is. What has none of the types stays text.
    """
    word = text.strip()
    if "string" in allowed:
        return None if word == "null" and "null" in allowed else text
    try:
        value = json.loads(_JSON_WORDS.get(word, word))
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value if not allowed or _type_names(value) & allowed else text


def _type_names(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    names = {
        float: "number",
        str: "string",
        list: "array",
        dict: "object",
        type(None): "null",
    }
    return frozenset({names[type(value)]})
