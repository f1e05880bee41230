"""Whether the alternatives of each `oneOf` in a JSON Schema exclude each other.

llguidance compiles `oneOf` as `anyOf`, which is the same if no value satisfies two
alternatives. It can tell that they differ in type or in a required property, but it
follows no `$ref` for that. So it gets an outline of each alternative: a schema without
references that all values of the alternative satisfy. If the outlines exclude each
other, the alternatives do. Example: with the alternative {"$ref": "#/$defs/Cat"} and

    Cat: {"type": "object", "title": "A cat", "required": ["kind"],
          "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}}

the outline is {"type": "object", "required": ["kind"], "properties": {"kind": {"const":
"cat"}}}. It excludes that of a Dog by the constant.

Outlines repeat what references name. A schema of 5 KB can have 100 alternatives, each
an object of 8 properties that are objects of 8 properties, which all name one list of
500 values: that would be three million values. So all outlines together are written
within a limit of characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from localspec.errors import GrammarError
from localspec.models.chat_template.schema_references import (
    SchemaReferences,
    WorkBudget,
)

_MAX_CHARS = 1024 * 1024
"""The length of all outlines of one schema: some 10 MB of memory.

A schema of 400 models has outlines of 100,000 characters.
"""
_NODE_CHARS = 16  # What an outline costs beside its text.
_MAX_ALTERNATIVES = 256
_MAX_REFERENCES = 8  # An outline follows so many references one after another.
_MAX_DEPTH = 2  # An outline describes objects within objects so deep.
_MAX_NAMES = 8  # An outline describes so many properties of an object.
_OUTLINED = ("type", "const", "enum", "required")  # What tells alternatives apart.


def outline_alternatives(one_ofs: list[list[Any]], root: Any) -> list[str]:
    """The outline of each `oneOf` of the schema `root`, as a JSON Schema.

    Equal ones are outlined once. A `oneOf` of constants that differ needs none. Raises
    BudgetExceededError if the outlines are too long, and GrammarError for a `oneOf` with
    too many alternatives.
    """
    writer = _OutlineWriter(root, WorkBudget(_MAX_CHARS))
    different = {json.dumps(one_of): one_of for one_of in one_ofs}
    outlines: list[str] = []
    for one_of in different.values():
        # The alternative `false` allows no value, so it overlaps with none.
        alternatives = [part for part in one_of if part is not False]
        if len(alternatives) > _MAX_ALTERNATIVES:
            raise overlap_error()
        parts = [writer.write(part) for part in alternatives]
        if not _are_different_constants(parts):
            outlines.append(json.dumps({"oneOf": parts}))
    return outlines


def check_outlines(outlines: Iterable[str], options: Mapping[str, Any]) -> None:
    """Raise GrammarError if alternatives overlap, as far as llguidance knows.

    `options` are those with which it compiles schemas.
    """
    import llguidance  # noqa: PLC0415  optional

    # Then llguidance refuses a `oneOf` whose alternatives it cannot tell apart.
    strict = {**options, "coerce_one_of": False}
    for outline in outlines:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            outline, overrides=strict
        )
        if llguidance.LLMatcher.validate_grammar(grammar):
            raise overlap_error()


def overlap_error() -> GrammarError:
    return GrammarError(
        "The JSON Schema cannot be used: alternatives of oneOf overlap.",
        "Use anyOf, or alternatives that differ in type or in a required property.",
    )


class _OutlineWriter:
    """Writes outlines of parts of one schema.

    The length of what it writes is spent from the budget first.
    """

    def __init__(self, root: Any, budget: WorkBudget) -> None:
        self._references = SchemaReferences(root)
        self._budget = budget
        self._n_chars: dict[int, int] = {}
        """By a part's id: the length of what it adds to an outline, as a part that many
        references name is written many times.
        """

    def write(self, schema: Any, depth: int = 0) -> dict[str, Any]:
        """Raises BudgetExceededError."""
        schema = self._follow(schema)
        if not isinstance(schema, dict) or "$ref" in schema:
            self._budget.spend(_NODE_CHARS)
            return {}
        outline = {key: schema[key] for key in _OUTLINED if key in schema}
        self._budget.spend(_NODE_CHARS + self._count_chars(schema, outline))
        required = schema.get("required")
        properties = schema.get("properties")
        if not isinstance(required, list) or not isinstance(properties, dict):
            return outline
        if depth < _MAX_DEPTH:
            described: dict[str, Any] = {}
            for name in required[:_MAX_NAMES]:
                if isinstance(name, str) and name in properties:
                    described[name] = self.write(properties[name], depth + 1)
            outline["properties"] = described
        return outline

    def _follow(self, schema: Any) -> Any:
        for _ in range(_MAX_REFERENCES):
            if not isinstance(schema, dict):
                break
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                break
            schema = self._references.find(reference)
        return schema

    def _count_chars(self, schema: dict[str, Any], outline: dict[str, Any]) -> int:
        if id(schema) not in self._n_chars:
            self._n_chars[id(schema)] = len(json.dumps(outline))
        return self._n_chars[id(schema)]


def _are_different_constants(parts: list[dict[str, Any]]) -> bool:
    """Whether each part is one or several constants that no other part has."""
    values: list[str] = []
    for part in parts:
        constants = part.get("enum", [])
        if "const" in part and "enum" not in part:
            constants = [part["const"]]
        if not isinstance(constants, list) or not constants:
            return False
        values += [json.dumps(constant, sort_keys=True) for constant in constants]
    return len(set(values)) == len(values)
