"""Catalogue entries (models and pairs), read from YAML with every value validated."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, cast, get_args

from localspec import paths
from localspec.lazy_dataclass import dataclass
from localspec.models import safe_names
from localspec.models.catalog import yaml_values
from localspec.models.catalog.shape import CatalogShape
from localspec.models.catalog.yaml_values import InvalidCatalogError, YamlNode
from localspec.models.gguf.validation import MAX_EXPERTS, MAX_LAYERS
from localspec.models.reference import is_safe_gguf_path, parse_file_name
from localspec.speculation_methods import SPECS

UseCase = Literal["chat", "code", "writing", "documents"]
ModelKind = Literal["model", "eagle3", "mtp", "dflash", "dspark"]
PairStatus = Literal["verified", "reported", "untested"]

USE_CASES: tuple[UseCase, ...] = get_args(UseCase)
MEMORY_KINDS = ("attention", "swa", "hybrid-rollback", "hybrid-checkpoint")

_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9._+-]{0,95}\Z")
_PACKAGE_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,63}==[0-9][0-9.]{0,31}\Z")
_MAX_NUMBER = 10**9


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model file of a repository, or a bundled one; None is unknown."""

    id: str
    title: str
    repo: str | None = None
    file: str = ""
    bytes: int | None = None
    about: int | None = None
    """Upper bound of the size, from a published, rounded one."""
    sha256: str | None = None
    revision: str | None = None
    package: str | None = None
    """`name==version` of a Python package that contains the same file."""
    licence: str | None = None
    family: str = ""
    architecture: str | None = None
    memory: str | None = None
    parameters: int | None = None
    active: int | None = None
    """Parameters read for one token, for a mixture of experts."""
    context: int | None = None
    shape: CatalogShape | None = None
    shape_source: str = ""
    kind: ModelKind = "model"
    use: tuple[UseCase, ...] = ()
    note: str = ""

    @property
    def size(self) -> int | None:
        """The exact size in bytes, else the upper bound."""
        return self.bytes if self.bytes is not None else self.about

    @property
    def quantization(self) -> str:
        """From the file's name, as Q4_K_M; may be empty."""
        return parse_file_name(self.file).tag

    @property
    def path(self) -> Path | None:
        """The path of a bundled file; None for a file of a repository."""
        return paths.find_bundled(self.file) if self.repo is None else None


@dataclass(frozen=True, slots=True)
class PairSettings:
    """A pair's recommended settings; None means the program's default."""

    draft_max: int | None = None
    ctx: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class CatalogPair:
    id: str
    title: str
    target: CatalogModel
    draft: CatalogModel | None = None
    spec: str = "auto"
    why: str = ""
    use: tuple[UseCase, ...] = ()
    status: PairStatus = "untested"
    source: str = ""
    note: str = ""
    settings: PairSettings = field(default=PairSettings())

    @property
    def draft_kind(self) -> str:
        """`model`, `lookup` without a draft, or the kind of head."""
        return self.draft.kind if self.draft else "lookup"

    @property
    def size(self) -> int | None:
        """Bytes of both files; None if one is unknown."""
        sizes = [model.size for model in (self.target, self.draft) if model]
        return None if None in sizes else sum(size for size in sizes if size)


def entry_id(node: YamlNode) -> str:
    """The entry's `id`, else one made of its target and draft.  Raises InvalidCatalogError."""
    keys = yaml_values.read_table(node)
    if "id" in keys:
        return _read_id(keys["id"])
    if "target" not in keys:
        raise InvalidCatalogError("key id is missing", node.line)
    draft = _read_id(keys["draft"]) if "draft" in keys else "lookup"
    return f"{_read_id(keys['target'])}+{draft}"


def referenced_ids(node: YamlNode) -> set[str]:
    keys = yaml_values.read_table(node)
    return {str(keys[key].value) for key in ("target", "draft") if key in keys}


def is_hide_entry(node: YamlNode) -> bool:
    """Whether an entry only hides another one: `id` and `hide: true`."""
    keys = yaml_values.read_table(node)
    if "hide" not in keys:
        return False
    if yaml_values.read_text(keys["hide"]) != "true" or set(keys) != {"id", "hide"}:
        raise InvalidCatalogError(
            "key hide: it must be `true`, beside `id` only", keys["hide"].line
        )
    return True


def read_model(node: YamlNode) -> CatalogModel:
    """Raises InvalidCatalogError with line, key and reason."""
    fields = yaml_values.read_fields(node, _MODEL_READERS, {"id", "title"})
    if "shape" in fields:
        fields["shape_source"] = fields["shape"].pop("source")
        try:
            fields["shape"] = _make_shape(fields.get("architecture"), fields["shape"])
        except ValueError as error:
            line = yaml_values.read_table(node)["shape"].line
            raise InvalidCatalogError(f"key shape: {error}", line) from None
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
    fields = yaml_values.read_fields(node, _PAIR_READERS, {"target"})
    keys = yaml_values.read_table(node)
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


def _read_use_cases(node: YamlNode) -> tuple[UseCase, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    return cast(tuple[UseCase, ...], tuple(yaml_values.one_of(USE_CASES)(item) for item in items))


def _read_shape(node: YamlNode) -> dict[str, Any]:
    return yaml_values.read_fields(node, _SHAPE_READERS, {"layers", "embd", "vocab", "source"})


def _make_shape(architecture: str | None, values: Mapping[str, Any]) -> CatalogShape:
    """Raises ValueError if the shape is invalid."""
    if architecture is None:
        raise ValueError("it needs the key architecture")
    shape = CatalogShape(architecture=architecture, **values)
    shape.check()
    return shape


def _read_settings(node: YamlNode) -> PairSettings:
    return PairSettings(**yaml_values.read_fields(node, _SETTINGS_READERS, ()))


def _is_plain_file_name(name: str) -> bool:
    return "/" not in name and is_safe_gguf_path(name)


_read_id = yaml_values.text_matching(
    lambda text: bool(_ID_PATTERN.match(text)), "an id: lower-case letters, digits and . _ - +"
)

_SETTINGS_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "draft_max": yaml_values.integer_between(1, 64),
    "ctx": yaml_values.integer_between(256, 10**7),
    "temperature": yaml_values.read_temperature,
}
_MODEL_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "id": _read_id,
    "title": yaml_values.read_text,
    "repo": yaml_values.text_matching(safe_names.is_repo_id, "a repository like user/name"),
    "file": yaml_values.text_matching(is_safe_gguf_path, "a safe .gguf file name"),
    "bundled": yaml_values.text_matching(_is_plain_file_name, "a plain file name"),
    "bytes": yaml_values.integer_between(1, 10**13),
    "about": yaml_values.read_rounded_size,
    "sha256": yaml_values.hex_digits(64),
    "revision": yaml_values.hex_digits(40),
    "package": yaml_values.text_matching(
        lambda text: bool(_PACKAGE_PATTERN.match(text)), "a package like name==1.0"
    ),
    "licence": yaml_values.read_text,
    "family": yaml_values.read_text,
    "architecture": yaml_values.read_text,
    "memory": yaml_values.one_of(MEMORY_KINDS),
    "parameters": yaml_values.read_count,
    "active": yaml_values.read_count,
    "context": yaml_values.integer_between(1, 10**9),
    "shape": _read_shape,
    "kind": yaml_values.one_of(get_args(ModelKind)),
    "use": _read_use_cases,
    "note": yaml_values.read_text,
}
_PAIR_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "id": _read_id,
    "title": yaml_values.read_text,
    "target": _read_id,
    "draft": _read_id,
    "spec": yaml_values.one_of(SPECS),
    "why": yaml_values.read_text,
    "use": _read_use_cases,
    "status": yaml_values.one_of(get_args(PairStatus)),
    "source": yaml_values.read_text,
    "note": yaml_values.read_text,
    "settings": _read_settings,
}


def _read_flag(node: YamlNode) -> bool:
    return yaml_values.one_of(("true", "false"))(node) == "true"


def _read_layers(node: YamlNode) -> tuple[int, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    layers = tuple(yaml_values.integer_between(0, MAX_LAYERS - 1)(item) for item in items)
    if list(layers) != sorted(set(layers)):
        raise InvalidCatalogError("the layers are not in ascending order", node.line)
    return layers


def _shape_value_reader(name: str, kind: object) -> Callable[[YamlNode], Any]:
    if kind == "bool":
        return _read_flag
    if kind == "tuple[int, ...]":
        return _read_layers
    if name.startswith("experts"):
        return yaml_values.integer_between(1, MAX_EXPERTS)
    return yaml_values.integer_between(1, MAX_LAYERS if name.endswith("layers") else _MAX_NUMBER)


_SHAPE_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "source": yaml_values.read_text,
    **{
        field.name: _shape_value_reader(field.name, field.type)
        for field in dataclasses.fields(CatalogShape)
        if field.name != "architecture"
    },
}
