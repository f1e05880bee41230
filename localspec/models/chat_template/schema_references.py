"""Follows the references in a JSON Schema that a client sent, within a limit of work.

References multiply: ten definitions of which each names the next one ten times are a
schema of a few kilobytes, and ten thousand million ways through it. So each walk along
them spends from a budget, and gives up when that is used up.
"""

from __future__ import annotations

from typing import Any

_MAX_REFERENCE_CHARS = 4096
"""A longer reference is not followed; programs write some 50 characters."""


def require_object(schema: Any) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments, which are an object.

    Clients send none at all, `true`, or one without a type: `{"properties": {…}}`
    allows 3, too, and what would be written then is no call.
    """
    if not isinstance(schema, dict):
        return {"type": "object"}
    if "$ref" in schema:
        return schema
    return {**schema, "type": "object"}


class BudgetExceededError(Exception):
    """A walk has used up its budget: what it has found so far is not the whole."""


class WorkBudget:
    """Steps that are left to all walks that share the budget."""

    def __init__(self, n_steps: int) -> None:
        self._n_left = n_steps

    def spend(self, n_steps: int) -> None:
        """Call it before the steps are done.

        Raises BudgetExceededError if fewer are left.
        """
        if n_steps > self._n_left:
            raise BudgetExceededError
        self._n_left -= n_steps


class SchemaReferences:
    """Finds what references name in one schema.

    Each is looked up once, however often it occurs.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self._targets: dict[str, Any] = {}

    def find(self, reference: str) -> Any:
        """The part that `#/a/b` names; None if there is none."""
        if len(reference) > _MAX_REFERENCE_CHARS:
            return None
        if reference not in self._targets:
            self._targets[reference] = self._look_up(reference)
        return self._targets[reference]

    def _look_up(self, reference: str) -> Any:
        names = reference.removeprefix("#").split("/")[1:]
        part = self._root
        for name in names:
            if not isinstance(part, dict):
                return None
            part = part.get(name)
        return part


_VALUE_KEYWORDS = frozenset({"const", "enum", "default", "examples"})


def move_references(schema: Any, place: str) -> Any:
    """The schema as it is at `place` in another one, such as `#/items/0`.

    A reference begins at the root: `#/$defs/City` becomes `#/items/0/$defs/City`.
    """
    if isinstance(schema, list):
        return [move_references(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[key] = place + value.removeprefix("#")
        elif key in _VALUE_KEYWORDS and not isinstance(value, dict):
            moved[key] = value  # A value of the data is no schema.
        else:
            moved[key] = move_references(value, place)
    return moved
