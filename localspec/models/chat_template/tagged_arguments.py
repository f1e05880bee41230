"""Arguments of a tool call that are written between tags, as Qwen Coder and GLM do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from localspec.lazy_dataclass import dataclass

_MAX_SPACE = 64  # Characters, the tag after it included.
_MAX_DEPTH = 16  # Of references and alternatives in a schema.


@dataclass(frozen=True, slots=True)
class TaggedStyle:
    """Arguments between tags. A value may hold the same tags: an end is one only where one fits."""

    parameter: re.Pattern[str]  # The tag before a value, with its name.
    value_end: str
    end: str
    followers: tuple[str, ...]  # What follows the end; empty: anything.
    has_line_feeds: bool  # Around each value.

    def find_end(self, text: str, start: int, begin: int) -> tuple[int | None, int]:
        """Where the arguments from `start` on end, if that is certain, and where to search on.

        `begin` is where the last search ended.
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
        return next(
            (end for end in ends if self._is_followed(text, end + len(self.end)) is not False), None
        )

    def _is_followed(self, text: str, start: int) -> bool | None:
        """Whether what may follow an end does; None if more text decides."""
        rest = text[start : start + _MAX_SPACE].lstrip()
        if not self.followers or rest.startswith(self.followers):
            return True
        is_begun = any(tag.startswith(rest) for tag in self.followers)
        return None if is_begun and len(text) < start + _MAX_SPACE else False

    def _is_closed(self, text: str, start: int, end: int) -> bool:
        """Whether the last value is."""
        while end > start and text[end - 1].isspace():
            end -= 1
        return end == start or text.endswith(self.value_end, start, end)

    def parse(self, body: str, schema: dict[str, Any]) -> str | None:
        """The arguments as JSON; None if something else is between them."""
        properties = schema.get("properties")
        properties = properties if isinstance(properties, dict) else {}
        arguments: dict[str, Any] = {}
        at = 0
        while found := self.parameter.match(body, at):
            end, at = self._find_value_end(body, found.end(), properties)
            value = body[found.end() : end]
            if self.has_line_feeds:
                value = value.removeprefix("\n").removesuffix("\n")
            name = found[1].strip()
            arguments[name] = value
            if name in properties:
                arguments[name] = _to_value(value, properties[name], schema)
        if body[at:].strip():
            return None
        return json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace").decode()

    def _find_value_end(
        self, body: str, start: int, properties: Mapping[str, Any]
    ) -> tuple[int, int]:
        """Of a value, and of its closing tag."""
        at = body.find(self.value_end, start)
        while at >= 0:
            end = at + len(self.value_end)
            if self.parameter.match(body, end) or not body[end:].strip():
                break
            at = body.find(self.value_end, at + 1)
        else:
            at = end = len(body)
        value = body[start:at]
        tags = list(self.parameter.finditer(value))
        if len(tags) > value.count(self.value_end):  # the closing tag is missing
            for tag in tags:
                if tag[1].strip() in properties:
                    return start + tag.start(), start + tag.start()
        return at, end


FUNCTION = TaggedStyle(
    re.compile(r"\s*<parameter=([^<>\n]+)>"),
    "</parameter>",
    "</function>",
    ("</tool_call>", "<tool_call>", "<function="),
    has_line_feeds=True,
)
KEYED = TaggedStyle(
    re.compile(r"\s*<arg_key>(.*?)</arg_key>\s*<arg_value>", re.DOTALL),
    "</arg_value>",
    "</tool_call>",
    (),
    has_line_feeds=False,
)


def _to_value(text: str, schema: Any, root: Mapping[str, Any]) -> Any:
    """A value that is written without quotes, in a type that its schema allows."""
    allowed = _find_types(schema, root)
    word = text.strip()
    if "string" in allowed:
        return None if word == "null" and "null" in allowed else text
    try:
        value = json.loads({"True": "true", "False": "false", "None": "null"}.get(word, word))
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value if not allowed or _type_names(value) & allowed else text


def _find_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The types that a JSON Schema allows; empty if it does not say."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return frozenset()
    if isinstance(ref := schema.get("$ref"), str):
        target: Any = root
        for part in ref.removeprefix("#").split("/")[1:]:
            target = target.get(part) if isinstance(target, dict) else None
        return _find_types(target, root, depth + 1)
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    given = schema.get("type", [])
    if isinstance(values, list) and values:
        return frozenset().union(*map(_type_names, values))
    if given:
        return frozenset(map(str, given if isinstance(given, list) else [given]))
    parts = schema.get("anyOf") or schema.get("oneOf")
    parts = parts if isinstance(parts, list) else []
    found = [_find_types(part, root, depth + 1) for part in parts]
    return frozenset().union(*found) if all(found) else frozenset()


def _type_names(value: Any) -> frozenset[str]:
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    names = {float: "number", str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset({names[type(value)]})
