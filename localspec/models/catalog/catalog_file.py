"""Catalogue files: parsing, and merging several by id.

The YAML is data only: texts, lists and tables.  Aliases, anchors and tags are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
_TOO_DEEP = "it is nested too deeply"


def read_files(
    files: Iterable[tuple[Path, str]],
) -> tuple[dict[str, CatalogModel], dict[str, CatalogPair]]:
    """Models and pairs by id, from paths and texts.

    A later file's entry replaces or hides an earlier one of the same id; hiding a model removes
    its pairs.  Raises UsageError for a damaged file.
    """
    models: dict[str, CatalogModel] = {}
    pairs: dict[str, tuple[Path, YamlNode]] = {}
    for path, text in files:
        with _damage_named(path):
            model_nodes, pair_nodes = _read_sections(parse_yaml(text))
            for id_, node in model_nodes.items():
                if not entries.is_hide_entry(node):
                    models[id_] = entries.read_model(node)
                    continue
                models.pop(id_, None)
                for pair_id, (_, pair) in tuple(pairs.items()):
                    if id_ in entries.referenced_ids(pair):
                        del pairs[pair_id]
            for id_, node in pair_nodes.items():
                if entries.is_hide_entry(node):
                    pairs.pop(id_, None)
                elif id_ in models:
                    raise InvalidCatalogError(f"key id: {id_} is a model", node.line)
                else:
                    pairs[id_] = path, node
    return models, dict(_read_pairs(pairs, models))


def _read_pairs(
    pairs: dict[str, tuple[Path, YamlNode]], models: dict[str, CatalogModel]
) -> Iterator[tuple[str, CatalogPair]]:
    for id_, (path, node) in pairs.items():
        with _damage_named(path):
            yield id_, entries.read_pair(node, models)


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except InvalidCatalogError as error:
        where = f"line {error.line}: " if error.line else ""
        message = f"The catalogue {path} is damaged: {where}{error.reason}."
        raise UsageError(sanitize(message, multiline=False), "Fix or remove the entry.") from error


def _read_sections(root: YamlNode) -> tuple[dict[str, YamlNode], dict[str, YamlNode]]:
    if not isinstance(root.value, dict):
        raise InvalidCatalogError(
            "it must be a table with `schema`, `models` and `pairs`", root.line
        )
    for key, value in root.value.items():
        if key not in ("schema", *_SECTIONS):
            raise InvalidCatalogError(f"unknown section {key!r}", value.line)
    schema = root.value.get("schema")
    if schema is not None and schema.value != _SCHEMA:
        raise InvalidCatalogError("its schema is newer than this localspec supports", schema.line)
    models, pairs = (_read_section(root.value.get(name)) for name in _SECTIONS)
    return models, pairs


def _read_section(node: YamlNode | None) -> dict[str, YamlNode]:
    if node is None or node.value == "":
        return {}
    if not isinstance(node.value, list):
        raise InvalidCatalogError("it must be a list of entries", node.line)
    if len(node.value) > _MAX_ENTRIES:
        raise InvalidCatalogError(f"it has more than {_MAX_ENTRIES} entries", node.line)
    section: dict[str, YamlNode] = {}
    for item in node.value:
        id_ = entries.entry_id(item)
        if id_ in section:
            raise InvalidCatalogError(f"key id: {id_} is duplicated", item.line)
        section[id_] = item
    return section


def parse_yaml(text: str) -> YamlNode:
    """The document's root; an empty text for an empty document.  Raises InvalidCatalogError."""
    # libyaml's parser, if PyYAML has it, is eight times as fast.
    parser = getattr(yaml, "CBaseLoader", yaml.BaseLoader)(text)
    try:
        parser.get_event()  # the stream starts
        if parser.check_event(yaml.StreamEndEvent):
            return YamlNode("", 1)
        parser.get_event()  # the document starts
        root = _read_node(parser, 0)
        parser.get_event()
        if not parser.check_event(yaml.StreamEndEvent):
            line = parser.peek_event().start_mark.line + 1
            raise InvalidCatalogError("it has a second document", line)
        return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        # libyaml scans ahead, so its own limit may be reached before _MAX_DEPTH.
        deep = "nesting depth" in (error.problem or "")
        reason = _TOO_DEEP if deep else error.problem or "it is not YAML"
        raise InvalidCatalogError(reason, mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidCatalogError(" ".join(str(error).split())) from None
    finally:
        parser.dispose()


def _read_node(parser: Any, depth: int) -> YamlNode:
    event = parser.get_event()
    line = event.start_mark.line + 1
    if isinstance(event, yaml.AliasEvent):
        raise InvalidCatalogError("aliases are not allowed", line)
    if event.anchor:
        raise InvalidCatalogError("anchors are not allowed", line)
    if event.tag not in (None, "!"):
        raise InvalidCatalogError(f"the tag {event.tag} is not allowed", line)
    if isinstance(event, yaml.ScalarEvent):
        return YamlNode(event.value, line)
    if depth == _MAX_DEPTH:
        raise InvalidCatalogError(_TOO_DEEP, line)
    if isinstance(event, yaml.MappingStartEvent):
        return YamlNode(_read_table(parser, depth), line)
    items: list[YamlNode] = []
    while not parser.check_event(yaml.SequenceEndEvent):
        items.append(_read_node(parser, depth + 1))
    parser.get_event()
    return YamlNode(items, line)


def _read_table(parser: Any, depth: int) -> dict[str, YamlNode]:
    table: dict[str, YamlNode] = {}
    while not parser.check_event(yaml.MappingEndEvent):
        key = _read_node(parser, depth + 1)
        if not isinstance(key.value, str):
            raise InvalidCatalogError("a key must be a word", key.line)
        if key.value in table:
            raise InvalidCatalogError(f"the key {key.value!r} is duplicated", key.line)
        table[key.value] = _read_node(parser, depth + 1)
    parser.get_event()
    return table
