"""Finds schemas that no finite value satisfies.

    {"$ref": "#"}
    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}

The first one refers to nothing but itself, and a value of the second one has itself
inside. llguidance compiles both, and fails when an answer reaches them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from localspec.models.chat_template.schema_references import (
    BudgetExceededError,
    SchemaReferences,
    WorkBudget,
)

_MAX_STEPS = 100_000
"""More work is not done: then all parts are taken to have values."""
_MULTIPLE = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties")


def has_finite_value(schema: Any) -> bool:
    """Whether a finite value satisfies the schema."""
    parts = _FiniteParts(schema)
    return parts.is_finite(schema)


def have_all_finite_values(schema: Any) -> bool:
    """Whether a finite value satisfies each part that the schema uses, and the schema."""
    parts = _FiniteParts(schema)
    return all(map(parts.is_finite, parts.all))


class _FiniteParts:
    """The parts of a schema, and which of them have finite values.

    A part has one if those parts have one that its values contain. That is known of
    texts and numbers first, and then of more and more parts. Those that are left have
    none.
    """

    def __init__(self, root: Any) -> None:
        self._references = SchemaReferences(root if isinstance(root, dict) else {})
        self._finite: set[int] = set()
        self._budget = WorkBudget(_MAX_STEPS)
        self.all: list[dict[str, Any]] = []
        """All parts; each one stands behind a part that leads to it."""
        self._is_complete = True
        try:
            self._collect(root)
            self._mark()
        except BudgetExceededError:
            self._is_complete = False

    def is_finite(self, part: Any) -> bool:
        """Whether a finite value satisfies a part.

        What is no schema counts as satisfied: it is refused elsewhere.
        """
        if not self._is_complete or not isinstance(part, dict):
            return True
        return id(part) in self._finite

    def _collect(self, root: Any) -> None:
        known: set[int] = set()
        waiting = [root]
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict) or id(part) in known:
                continue
            known.add(id(part))
            self.all.append(part)
            inner = self._list_inner(part)
            self._budget.spend(1 + len(inner))
            waiting += inner

    def _list_inner(self, part: dict[str, Any]) -> list[Any]:
        inner = [part.get(key) for key in _SINGLE]
        for key in _MULTIPLE:
            inner += _read_list(part, key)
        properties = part.get("properties")
        if isinstance(properties, Mapping):
            inner += properties.values()
        if "$ref" in part:
            inner.append(self._find_target(part))
        return inner

    def _find_target(self, part: dict[str, Any]) -> Any:
        reference = part["$ref"]
        if not isinstance(reference, str):
            return None
        return self._references.find(reference)

    def _mark(self) -> None:
        """Inner parts come last, so a chain of them is marked in one pass from the end."""
        is_changed = True
        while is_changed:
            is_changed = False
            for part in reversed(self.all):
                self._budget.spend(1)
                if id(part) not in self._finite and self._has_finite_value(part):
                    self._finite.add(id(part))
                    is_changed = True

    def _has_finite_value(self, part: dict[str, Any]) -> bool:
        """Whether a finite value satisfies a part, by the parts that are marked so far.

        A list of itself has one, the empty list, unless `minItems` asks for an item.
        """
        if "enum" in part or "const" in part:
            return True
        if "$ref" in part and not self.is_finite(self._find_target(part)):
            return False
        for key in ("anyOf", "oneOf"):
            alternatives = _read_list(part, key)
            if alternatives and not any(map(self.is_finite, alternatives)):
                return False
        return all(map(self.is_finite, self._list_contained(part)))

    def _list_contained(self, part: dict[str, Any]) -> list[Any]:
        """The parts that each value satisfies or contains."""
        contained = list(_read_list(part, "allOf"))
        if part.get("type") == "object":
            properties = part.get("properties")
            if isinstance(properties, Mapping):
                for name in _read_list(part, "required"):
                    if isinstance(name, str):
                        contained.append(properties.get(name))
        if part.get("type") == "array" and part.get("minItems"):
            contained.append(part.get("items"))
        return contained


def _read_list(part: dict[str, Any], key: str) -> list[Any]:
    """The list under a key; empty if there is none."""
    value = part.get(key)
    if not isinstance(value, list):
        return []
    return value
