"""Catalogue files: parsing, validating every value, and merging several by id.

The YAML is data only: texts, lists and tables.  Aliases, anchors and tags are rejected.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import yaml

from localspec.errors import UsageError
from localspec.lazy_dataclass import dataclass
from localspec.models import safe_names
from localspec.models.catalog_entries import (
    MEMORY_KINDS,
    USE_CASES,
    CatalogModel,
    CatalogPair,
    ModelKind,
    PairSettings,
    PairStatus,
)
from localspec.models.catalog_shape import CatalogShape
from localspec.models.gguf.validation import MAX_EXPERTS, MAX_LAYERS
from localspec.models.reference import is_safe_gguf_path
from localspec.sanitize import sanitize
from localspec.speculation_methods import SPECS

_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9._+-]{0,95}\Z")
_PACKAGE_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}==[0-9][0-9.]{0,31}\Z")
_MAX_NUMBER = 10**9
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
                if not is_hide_entry(node):
                    models[id_] = read_model(node)
                    continue
                models.pop(id_, None)
                for pair_id, (_, pair) in tuple(pairs.items()):
                    named = (pair.table.get(key) for key in ("target", "draft"))
                    if id_ in [node.value for node in named if node is not None]:
                        del pairs[pair_id]
            for id_, node in pair_nodes.items():
                if is_hide_entry(node):
                    pairs.pop(id_, None)
                elif id_ in models:
                    raise InvalidCatalogError(f"key id: {id_} is a model", node.line)
                else:
                    pairs[id_] = path, node
    read_pairs: dict[str, CatalogPair] = {}
    for id_, (path, node) in pairs.items():
        with _damage_named(path):
            read_pairs[id_] = read_pair(node, models)
    return models, read_pairs


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
        id_ = entry_id(item)
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


# --- values

_COUNT = re.compile(r"([0-9]{1,15})\Z|([0-9]{1,4}(?:\.[0-9]{1,3})?)([BM])\Z")
_ROUNDED = re.compile(r"([0-9]{1,4})(?:\.([0-9]{1,3}))? (GiB|MiB)\Z")
_MAX_TEXT_LENGTH = 300


@dataclass(frozen=True, slots=True)
class YamlNode:
    """A value and the line where it begins."""

    value: str | list[YamlNode] | dict[str, YamlNode]
    line: int

    @property
    def table(self) -> dict[str, YamlNode]:
        """Raises InvalidCatalogError for another value."""
        if not isinstance(self.value, dict):
            raise InvalidCatalogError("an entry must be a table of keys and values", self.line)
        return self.value

    @property
    def items(self) -> list[YamlNode]:
        """Of a list; a single value is a list of one."""
        return self.value if isinstance(self.value, list) else [self]


class InvalidCatalogError(Exception):
    """The reason, and the line if it is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


def read_text(node: YamlNode) -> str:
    if not isinstance(node.value, str):
        raise InvalidCatalogError("it must be text", node.line)
    if not node.value.strip():
        raise InvalidCatalogError("it is empty", node.line)
    if len(node.value) > _MAX_TEXT_LENGTH:
        raise InvalidCatalogError(f"it is longer than {_MAX_TEXT_LENGTH} characters", node.line)
    if sanitize(node.value, multiline=False) != node.value:
        raise InvalidCatalogError("it contains control characters", node.line)
    return node.value


def invalid_value(node: YamlNode, expected: str) -> InvalidCatalogError:
    return InvalidCatalogError(f"{quote(str(node.value))} is not {expected}", node.line)


def text_matching(test: Callable[[str], bool], expected: str) -> Callable[[YamlNode], str]:
    """A reader of texts that pass `test`; `expected` describes them in errors."""

    def read(node: YamlNode) -> str:
        text = read_text(node)
        if not test(text):
            raise invalid_value(node, expected)
        return text

    return read


def one_of(values: Collection[str]) -> Callable[[YamlNode], str]:
    return text_matching(values.__contains__, f"one of {', '.join(values)}")


def hex_digits(digits: int) -> Callable[[YamlNode], str]:
    pattern = re.compile(f"[0-9a-f]{{{digits}}}\\Z")
    return text_matching(lambda text: bool(pattern.match(text)), f"{digits} hex digits")


def integer_between(low: int, high: int) -> Callable[[YamlNode], int]:
    def read(node: YamlNode) -> int:
        text = read_text(node)
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise invalid_value(node, "a whole number")
        if not low <= int(text) <= high:
            raise invalid_value(node, f"between {low} and {high}")
        return int(text)

    return read


def read_count(node: YamlNode) -> int:
    """8190735360, 8.19B or 135M."""
    count = _COUNT.match(read_text(node))
    if not count:
        raise invalid_value(node, "a number like 8190735360, 8.19B or 135M")
    if count[1]:
        return int(count[1])
    return round(float(count[2]) * (10**9 if count[3] == "B" else 10**6))


def read_rounded_size(node: YamlNode) -> int:
    """The largest size in bytes that rounds to the text: 4.4 GiB is at most 4.45 GiB."""
    size = _ROUNDED.match(read_text(node))
    if not size:
        raise invalid_value(node, "a rounded size like 4.4 GiB or 378.3 MiB")
    digits = size[2] or ""
    upper_bound = int(size[1] + digits) + 0.5
    return int(upper_bound / 10 ** len(digits) * (2**30 if size[3] == "GiB" else 2**20))


def read_temperature(node: YamlNode) -> float:
    text = read_text(node)
    if not re.fullmatch(r"[0-2](\.[0-9]{1,3})?", text) or float(text) > 2:
        raise invalid_value(node, "a number from 0 to 2")
    return float(text)


def quote(text: str) -> str:
    shown = sanitize(text, multiline=False)
    return repr(shown if len(shown) <= 60 else shown[:59] + "…")


def read_fields(
    node: YamlNode, readers: Mapping[str, Callable[[YamlNode], Any]], required: Collection[str]
) -> dict[str, Any]:
    """The values of a table by key.  Raises InvalidCatalogError with line, key and reason."""
    table = node.table
    fields: dict[str, Any] = {}
    for key, value in table.items():
        if key not in readers:
            raise InvalidCatalogError(f"unknown key {quote(key)}", value.line)
        try:
            fields[key] = readers[key](value)
        except InvalidCatalogError as error:
            raise InvalidCatalogError(f"key {key}: {error.reason}", error.line) from None
    for key in required:
        if key not in table:
            raise InvalidCatalogError(f"key {key} is missing", node.line)
    return fields


# --- entries


def entry_id(node: YamlNode) -> str:
    """The entry's `id`, else one made of its target and draft.  Raises InvalidCatalogError."""
    keys = node.table
    if "id" in keys:
        return _read_id(keys["id"])
    if "target" not in keys:
        raise InvalidCatalogError("key id is missing", node.line)
    draft = _read_id(keys["draft"]) if "draft" in keys else "lookup"
    return f"{_read_id(keys['target'])}+{draft}"


def is_hide_entry(node: YamlNode) -> bool:
    """Whether an entry only hides another one: `id` and `hide: true`."""
    keys = node.table
    if "hide" not in keys:
        return False
    if read_text(keys["hide"]) != "true" or set(keys) != {"id", "hide"}:
        raise InvalidCatalogError(
            "key hide: it must be `true`, beside `id` only", keys["hide"].line
        )
    return True


def read_model(node: YamlNode) -> CatalogModel:
    """Raises InvalidCatalogError with line, key and reason."""
    fields = read_fields(node, _MODEL_READERS, {"id", "title"})
    if "shape" in fields:
        fields["shape_source"] = fields["shape"].pop("source")
        shape = CatalogShape(architecture=fields.get("architecture", ""), **fields["shape"])
        fields["shape"] = shape
        try:
            shape.check()
        except ValueError as error:
            raise InvalidCatalogError(f"key shape: {error}", node.table["shape"].line) from None
    bundled = fields.pop("bundled", None)
    if bundled is not None:
        if fields.keys() & {"repo", "file", "revision", "package"}:
            raise InvalidCatalogError(
                "key bundled excludes repo, file, revision and package", node.line
            )
        return CatalogModel(file=bundled, **fields)
    for key in ("repo", "file"):
        if key not in fields:
            raise InvalidCatalogError(f"key {key} is missing", node.line)
    if ("sha256" in fields) != ("revision" in fields):
        raise InvalidCatalogError("keys sha256 and revision need each other", node.line)
    if "package" in fields and not fields.keys() >= {"bytes", "sha256"}:
        raise InvalidCatalogError("key package needs bytes and sha256", node.line)
    if "bytes" in fields and "about" in fields:
        raise InvalidCatalogError("keys bytes and about exclude each other", node.line)
    return CatalogModel(**fields)


def read_pair(node: YamlNode, models: Mapping[str, CatalogModel]) -> CatalogPair:
    """Raises InvalidCatalogError with line, key and reason."""
    fields = read_fields(node, _PAIR_READERS, {"target"})
    keys = node.table
    for key in ("target", "draft"):
        if key in fields and fields[key] not in models:
            raise InvalidCatalogError(f"key {key}: there is no model {fields[key]}", keys[key].line)
    target = models[fields.pop("target")]
    draft = models[fields.pop("draft")] if "draft" in fields else None
    if target.kind != "model":
        raise InvalidCatalogError("key target: a head cannot be a target", keys["target"].line)
    if fields.get("status") == "reported" and "source" not in fields:
        raise InvalidCatalogError("key source is missing: `reported` needs it", node.line)
    method = draft.title if draft else "prompt lookup"
    defaults = {"id": entry_id(node), "title": f"{target.title} with {method}", "use": target.use}
    return CatalogPair(target=target, draft=draft, **(defaults | fields))


def _read_use_cases(node: YamlNode) -> tuple[str, ...]:
    return tuple(map(one_of(USE_CASES), node.items))


def _read_shape(node: YamlNode) -> dict[str, Any]:
    return read_fields(node, _SHAPE_READERS, {"layers", "embd", "vocab", "source"})


def _read_settings(node: YamlNode) -> PairSettings:
    return PairSettings(**read_fields(node, _SETTINGS_READERS, ()))


_read_id = text_matching(
    lambda text: bool(_ID_PATTERN.match(text)), "an id: lower-case letters, digits and . _ - +"
)

_SETTINGS_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "draft_max": integer_between(1, 64),
    "ctx": integer_between(256, 10**7),
    "temperature": read_temperature,
}
_MODEL_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "id": _read_id,
    "title": read_text,
    "repo": text_matching(safe_names.is_repo_id, "a repository like user/name"),
    "file": text_matching(is_safe_gguf_path, "a safe .gguf file name"),
    "bundled": text_matching(
        lambda text: "/" not in text and is_safe_gguf_path(text), "a plain file name"
    ),
    "bytes": integer_between(1, 10**13),
    "about": read_rounded_size,
    "sha256": hex_digits(64),
    "revision": hex_digits(40),
    "package": text_matching(
        lambda text: bool(_PACKAGE_PATTERN.match(text)), "a package like name==1.0"
    ),
    "licence": read_text,
    "family": read_text,
    "architecture": read_text,
    "memory": one_of(MEMORY_KINDS),
    "parameters": read_count,
    "active": read_count,
    "context": integer_between(1, 10**9),
    "shape": _read_shape,
    "kind": one_of(get_args(ModelKind)),
    "use": _read_use_cases,
    "note": read_text,
}
_PAIR_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "id": _read_id,
    "title": read_text,
    "target": _read_id,
    "draft": _read_id,
    "spec": one_of(SPECS),
    "why": read_text,
    "use": _read_use_cases,
    "status": one_of(get_args(PairStatus)),
    "source": read_text,
    "note": read_text,
    "settings": _read_settings,
}


def _read_layers(node: YamlNode) -> tuple[int, ...]:
    layers = tuple(map(integer_between(0, MAX_LAYERS - 1), node.items))
    if list(layers) != sorted(set(layers)):
        raise InvalidCatalogError("the layers are not in ascending order", node.line)
    return layers


def _shape_value_reader(name: str, kind: object) -> Callable[[YamlNode], Any]:
    if kind == "bool":
        return lambda node: one_of(("true", "false"))(node) == "true"
    if kind == "tuple[int, ...]":
        return _read_layers
    if name.startswith("experts"):
        return integer_between(1, MAX_EXPERTS)
    return integer_between(1, MAX_LAYERS if name.endswith("layers") else _MAX_NUMBER)


_SHAPE_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "source": read_text,
    **{
        field.name: _shape_value_reader(field.name, field.type)
        for field in dataclasses.fields(CatalogShape)
        if field.name != "architecture"
    },
}
