"""Catalogue files: parsing one file, and merging several by id.

The YAML is data only: texts, lists and tables.  Aliases, anchors and tags are rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from localspec.errors import UsageError
from localspec.models.catalog import entries
from localspec.models.catalog.entries import CatalogModel, CatalogPair
from localspec.models.catalog.yaml_values import InvalidCatalogError, YamlNode
from localspec.sanitize import sanitize

_SCHEMA = "1"
_MAX_ENTRIES = 5000
_SECTIONS = ("models", "pairs")
_MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class CatalogFile:
    """The unparsed entries of a file by id; None hides an entry of an earlier file."""

    path: Path
    models: dict[str, YamlNode | None]
    pairs: dict[str, YamlNode | None]


def parse_catalog(path: Path, text: str) -> CatalogFile:
    """Raises UsageError if the file is damaged."""
    try:
        root = parse_yaml(text)
        if not isinstance(root.value, dict):
            raise InvalidCatalogError(
                "it must be a table with `schema`, `models` and `pairs`", root.line
            )
        for key, value in root.value.items():
            if key not in ("schema", *_SECTIONS):
                raise InvalidCatalogError(f"unknown section {key!r}", value.line)
        schema = root.value.get("schema")
        if schema is not None and schema.value != _SCHEMA:
            raise InvalidCatalogError(
                "its schema is newer than this localspec supports", schema.line
            )
        return CatalogFile(path, *(_read_section(root.value.get(name)) for name in _SECTIONS))
    except InvalidCatalogError as error:
        raise _damaged_file_error(path, error) from error


def merge_files(
    files: Sequence[CatalogFile],
) -> tuple[dict[str, CatalogModel], dict[str, CatalogPair]]:
    """A later file's entry replaces or hides an earlier one of the same id.

    Hiding a model removes its pairs.  Raises UsageError for an invalid entry.
    """
    models: dict[str, CatalogModel] = {}
    pairs: dict[str, tuple[Path, YamlNode]] = {}
    for file in files:
        for id_, node in file.models.items():
            if node is None:
                models.pop(id_, None)
                pairs = {k: (p, n) for k, (p, n) in pairs.items() if id_ not in _referenced_ids(n)}
            else:
                models[id_] = _read_model(file.path, node)
        for id_, node in file.pairs.items():
            if node is None:
                pairs.pop(id_, None)
            elif id_ in models:
                raise _damaged_file_error(
                    file.path, InvalidCatalogError(f"key id: {id_} is a model", node.line)
                )
            else:
                pairs[id_] = file.path, node
    return models, {id_: _read_pair(path, node, models) for id_, (path, node) in pairs.items()}


def _referenced_ids(node: YamlNode) -> set[str]:
    values = node.value if isinstance(node.value, dict) else {}
    return {str(values[key].value) for key in ("target", "draft") if key in values}


def _read_model(path: Path, node: YamlNode) -> CatalogModel:
    try:
        return entries.read_model(node)
    except InvalidCatalogError as error:
        raise _damaged_file_error(path, error) from error


def _read_pair(path: Path, node: YamlNode, models: Mapping[str, CatalogModel]) -> CatalogPair:
    try:
        return entries.read_pair(node, models)
    except InvalidCatalogError as error:
        raise _damaged_file_error(path, error) from error


def _read_section(node: YamlNode | None) -> dict[str, YamlNode | None]:
    if node is None or node.value == "":
        return {}
    if not isinstance(node.value, list):
        raise InvalidCatalogError("it must be a list of entries", node.line)
    if len(node.value) > _MAX_ENTRIES:
        raise InvalidCatalogError(f"it has more than {_MAX_ENTRIES} entries", node.line)
    section: dict[str, YamlNode | None] = {}
    for item in node.value:
        id_ = entries.entry_id(item)
        if id_ in section:
            raise InvalidCatalogError(f"key id: {id_} is duplicated", item.line)
        section[id_] = None if entries.is_hide_entry(item) else item
    return section


def _damaged_file_error(path: Path, error: InvalidCatalogError) -> UsageError:
    where = f"line {error.line}: " if error.line else ""
    message = sanitize(f"The catalogue {path} is damaged: {where}{error.reason}.", multiline=False)
    return UsageError(message, "Fix or remove the entry.")


def parse_yaml(text: str) -> YamlNode:
    """The document's root; an empty text for an empty document.  Raises InvalidCatalogError."""
    builder = _YamlTreeBuilder()
    parser = None
    try:
        # libyaml's parser, if PyYAML has it, is eight times as fast.
        parser = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(text)
        while parser.check_event():
            builder.handle_event(parser.get_event())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise InvalidCatalogError(
            error.problem or "it is not YAML", mark.line + 1 if mark else None
        ) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidCatalogError(" ".join(str(error).split())) from None
    finally:
        if parser is not None:
            parser.dispose()
    return builder.root or YamlNode("", 1)


class _YamlTreeBuilder:
    """Builds nodes from the parser's events; the open lists and tables form a stack."""

    def __init__(self) -> None:
        self.root: YamlNode | None = None
        self._open_nodes: list[YamlNode] = []
        self._pending_keys: list[str | None] = []
        """For each open node, the key whose value comes next."""

    def handle_event(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise InvalidCatalogError("aliases are not allowed", line)
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
            if event.anchor:
                raise InvalidCatalogError("anchors are not allowed", line)
            if event.tag not in (None, "!"):
                raise InvalidCatalogError(f"the tag {event.tag} is not allowed", line)
            self._open_node(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open_nodes.pop()
            self._pending_keys.pop()

    def _open_node(self, event: Any, line: int) -> None:
        if isinstance(event, yaml.ScalarEvent):
            if (
                self._open_nodes
                and isinstance(self._open_nodes[-1].value, dict)
                and self._pending_keys[-1] is None
            ):
                self._set_key(event.value, line)
            else:
                self._add_value(YamlNode(event.value, line))
            return
        node = YamlNode([] if isinstance(event, yaml.SequenceStartEvent) else {}, line)
        self._add_value(node)
        self._open_nodes.append(node)
        self._pending_keys.append(None)
        if len(self._open_nodes) > _MAX_DEPTH:
            raise InvalidCatalogError("it is nested too deeply", line)

    def _set_key(self, key: str, line: int) -> None:
        if key in self._open_nodes[-1].value:
            raise InvalidCatalogError(f"the key {key!r} is duplicated", line)
        self._pending_keys[-1] = key

    def _add_value(self, node: YamlNode) -> None:
        if not self._open_nodes:
            if self.root is not None:
                raise InvalidCatalogError("it has a second document", node.line)
            self.root = node
            return
        parent = self._open_nodes[-1].value
        if isinstance(parent, list):
            parent.append(node)
        elif isinstance(parent, dict):
            key = self._pending_keys[-1]
            if key is None:
                raise InvalidCatalogError("a key must be a word", node.line)
            parent[key] = node
            self._pending_keys[-1] = None
