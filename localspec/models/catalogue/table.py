"""A table of keys and values, each read by what its key wants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from localspec.models.catalogue import values
from localspec.models.catalogue.node import Damaged, Node


def entries(node: Node) -> dict[str, Node]:
    """Raises Damaged: the node is no table."""
    if not isinstance(node.value, dict):
        raise Damaged("an entry must be a table of keys and values", node.line)
    return node.value


def fields(
    node: Node, readers: Mapping[str, Callable[[Node], Any]], required: Collection[str]
) -> dict[str, Any]:
    """The values by key.  Raises Damaged with line, key and reason."""
    table = entries(node)
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in readers:
            raise Damaged(f"key {values.shown(key)}: there is no such key", value.line)
        try:
            found[key] = readers[key](value)
        except Damaged as error:
            raise Damaged(f"key {key}: {error.why}", error.line) from None
    for key in required:
        if key not in table:
            raise Damaged(f"key {key}: it is missing", node.line)
    return found
