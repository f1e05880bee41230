"""A model's shape as a catalogue has it: numbers by name, and where they were taken from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from localspec.models.blueprint import needs
from localspec.models.blueprint.shape import Shape
from localspec.models.catalogue import table, values
from localspec.models.catalogue.node import Damaged, Node

_MOST_LAYERS = 512
_MOST_EXPERTS = 1024
_MOST = 10**9


def read(node: Node, architecture: str | None) -> tuple[Shape, str]:
    """The shape and its source.  Raises Damaged: a number is wrong, or they make no model."""
    found = table.fields(node, _READERS, {"layers", "embd", "vocab", "source"})
    if architecture is None:
        raise Damaged("it needs the key architecture", node.line)
    source = found.pop("source")
    shape = Shape(architecture=architecture, **found)
    try:
        needs.check(shape)
    except ValueError as error:
        raise Damaged(str(error), node.line) from None
    return shape, source


def _flag(node: Node) -> bool:
    return values.one_of(("true", "false"))(node) == "true"


def _layers(node: Node) -> tuple[int, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    found = tuple(values.whole(0, _MOST_LAYERS - 1)(item) for item in items)
    if list(found) != sorted(set(found)):
        raise Damaged("the layers do not rise", node.line)
    return found


def _reader(name: str, kind: object) -> Callable[[Node], Any]:
    if kind == "bool":
        return _flag
    if kind == "tuple[int, ...]":
        return _layers
    if name.startswith("experts"):
        return values.whole(1, _MOST_EXPERTS)
    return values.whole(1, _MOST_LAYERS if name.endswith("layers") else _MOST)


_READERS: dict[str, Callable[[Node], Any]] = {
    "source": values.text,
    **{
        field.name: _reader(field.name, field.type)
        for field in dataclasses.fields(Shape)
        if field.name != "architecture"
    },
}
