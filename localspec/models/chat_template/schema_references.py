"""Follows the references in a JSON Schema that a client sent, within a limit of work.

References multiply: ten definitions of which each names the next one ten times are a
schema of a few kilobytes, and ten thousand million ways through it. So each walk along
them spends from a budget, and gives up when that is used up.
"""

from __future__ import annotations

from typing import Any

_MAX_REFERENCE_CHARS = 4096
"""A longer reference is not followed; programs write some 50 characters."""


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
