"""The entries of one catalogue file, and several files laid over each other by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.clean import clean
from localspec.errors import UsageError
from localspec.models.catalogue import entry, plainyaml
from localspec.models.catalogue.entry import Model, Pair
from localspec.models.catalogue.plainyaml import Damaged, Node

_SCHEMA = "1"
_MOST = 5000
_SECTIONS = ("models", "pairs")


@dataclass(frozen=True, slots=True)
class Shelf:
    """The entries of a file by id, still unread; what hides another has None."""

    path: Path
    models: dict[str, Node | None]
    pairs: dict[str, Node | None]


def read(path: Path, text: str) -> Shelf:
    """Raises UsageError where the file is damaged."""
    try:
        root = plainyaml.read(text)
        if not isinstance(root.value, dict):
            raise Damaged("it must begin with `schema`, `models` and `pairs`", root.line)
        for key, value in root.value.items():
            if key not in ("schema", *_SECTIONS):
                raise Damaged(f"there is no such section: {key!r}", value.line)
        schema = root.value.get("schema")
        if schema is not None and schema.value != _SCHEMA:
            raise Damaged("it has a newer schema than this localspec reads", schema.line)
        return Shelf(path, *(_section(root.value.get(name)) for name in _SECTIONS))
    except Damaged as error:
        raise _refusal(path, error) from error


def merged(shelves: Sequence[Shelf]) -> tuple[dict[str, Model], dict[str, Pair]]:
    """A later file's entry replaces an earlier one's of the same id, or takes it away.

    Raises UsageError for an entry that is wrong.
    """
    models: dict[str, Model] = {}
    pairs: dict[str, tuple[Path, Node]] = {}
    for shelf in shelves:
        for id_, node in shelf.models.items():
            if node is None:
                models.pop(id_, None)
                pairs = {k: (p, n) for k, (p, n) in pairs.items() if id_ not in _ids(n)}
            else:
                models[id_] = _model(shelf.path, node)
        for id_, node in shelf.pairs.items():
            if node is None:
                pairs.pop(id_, None)
            elif id_ in models:
                raise _refusal(shelf.path, Damaged(f"key id: {id_} is a model", node.line))
            else:
                pairs[id_] = shelf.path, node
    return models, {id_: _pair(path, node, models) for id_, (path, node) in pairs.items()}


def _ids(node: Node) -> set[str]:
    values = node.value if isinstance(node.value, dict) else {}
    return {str(values[key].value) for key in ("target", "draft") if key in values}


def _model(path: Path, node: Node) -> Model:
    try:
        return entry.model(node)
    except Damaged as error:
        raise _refusal(path, error) from error


def _pair(path: Path, node: Node, models: Mapping[str, Model]) -> Pair:
    try:
        return entry.pair(node, models)
    except Damaged as error:
        raise _refusal(path, error) from error


def _section(node: Node | None) -> dict[str, Node | None]:
    if node is None or node.value == "":
        return {}
    if not isinstance(node.value, list):
        raise Damaged("it must be a list of entries", node.line)
    if len(node.value) > _MOST:
        raise Damaged(f"it has more than {_MOST} entries", node.line)
    found: dict[str, Node | None] = {}
    for item in node.value:
        id_ = entry.entry_id(item)
        if id_ in found:
            raise Damaged(f"key id: {id_} stands there twice", item.line)
        found[id_] = None if entry.is_hidden(item) else item
    return found


def _refusal(path: Path, error: Damaged) -> UsageError:
    where = f"line {error.line}: " if error.line else ""
    what = clean(f"The catalogue {path} is damaged: {where}{error.why}.", multiline=False)
    return UsageError(what, "Mend it there, or remove the entry.")
