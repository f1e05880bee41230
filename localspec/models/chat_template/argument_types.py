"""The types that the JSON Schema of a tool allows for its arguments.

Between tags a model writes `3`, and only the schema says whether that is a number.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from localspec.models.chat_template.schema_references import (
    BudgetExceededError,
    SchemaReferences,
    WorkBudget,
)

_JSON_WORDS = {"True": "true", "False": "false", "None": "null"}
"""What models write as in Python."""


class ArgumentTypes:
    """The types that the JSON Schema of a tool allows for its arguments."""

    def __init__(self, schema: Any, budget: WorkBudget) -> None:
        properties = schema.get("properties") if isinstance(schema, dict) else None
        self.names: dict[str, Any] = properties if isinstance(properties, dict) else {}
        self._references = SchemaReferences(schema)
        self._budget = budget
        self._types: dict[str, frozenset[str]] = {}

    @classmethod
    def unknown(cls, _name: str) -> ArgumentTypes:
        """The types of a tool of which nothing is known."""
        return cls({}, WorkBudget(0))

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


def to_value(text: str, allowed: frozenset[str]) -> Any:
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
        return _read_python_value(text, allowed)
    return value if not allowed or _type_names(value) & allowed else text


_MAX_PYTHON_VALUE = 100_000


def _read_python_value(text: str, allowed: frozenset[str]) -> Any:
    """An object or a list that some templates write as Python does: `{'a': True}`."""
    is_wanted = bool(allowed & {"object", "array"}) and len(text) < _MAX_PYTHON_VALUE
    if not is_wanted or text.lstrip()[:1] not in ("{", "["):
        return text
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if _type_names(value) & allowed else text


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
