"""One entry of a catalogue, a model or a pair, read from YAML with every value checked."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from localspec import paths
from localspec.models import safe_names, synthetic_header
from localspec.models.catalog import yaml_values
from localspec.models.catalog.yaml_values import InvalidCatalogError, YamlNode
from localspec.models.reference import is_safe_gguf_path, parse_file_name
from localspec.models.synthetic_header.model_shape import ModelShape
from localspec.speculation import SPECS

if TYPE_CHECKING:
    from localspec.models.synthetic_header.model_shape import ModelShape

UseCase = Literal["chat", "code", "writing", "documents"]
ModelKind = Literal["model", "eagle3", "mtp", "dflash", "dspark"]
PairStatus = Literal["verified", "reported", "untested"]

USE_CASES = ("chat", "code", "writing", "documents")
MODEL_KINDS = ("model", "eagle3", "mtp", "dflash", "dspark")
PAIR_STATUSES = ("verified", "reported", "untested")
MEMORY_KINDS = ("attention", "swa", "hybrid-rollback", "hybrid-checkpoint")

_ID_PATTERN = re.compile(r"[a-z0-9][a-z0-9._+-]{0,95}\Z")


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A file of a repository, or a bundled one, and what is known of it; None is unknown."""

    id: str
    title: str
    repo: str | None = None
    file: str = ""
    bytes: int | None = None
    """Exactly."""
    about: int | None = None
    """At most these bytes, from a size that was published rounded."""
    sha256: str | None = None
    revision: str | None = None
    licence: str | None = None
    family: str = ""
    architecture: str | None = None
    memory: str | None = None
    parameters: int | None = None
    active: int | None = None
    """Parameters read for one token, where that is not all of them."""
    context: int | None = None
    shape: ModelShape | None = None
    """What `blueprint.header` draws the file from."""
    shape_source: str = ""
    kind: ModelKind = "model"
    use: tuple[UseCase, ...] = ()
    note: str = ""

    @property
    def size(self) -> int | None:
        """Bytes: exact where they are known, else at most."""
        return self.bytes if self.bytes is not None else self.about

    @property
    def quantization(self) -> str:
        """As the file's name has it: Q4_K_M; empty where it says none."""
        return parse_file_name(self.file).tag

    @property
    def path(self) -> Path | None:
        """Where a bundled file lies; None for one of a repository."""
        return paths.package_data_dir() / "demo" / self.file if self.repo is None else None


@dataclass(frozen=True, slots=True)
class PairSettings:
    """What a pair suggests; None leaves it to the program."""

    draft_max: int | None = None
    ctx: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class CatalogPair:
    """A target, its draft, and how to run them."""

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
        """What drafts: `model`, `lookup`, or the head that reads the target's hidden states."""
        return self.draft.kind if self.draft else "lookup"

    @property
    def size(self) -> int | None:
        """Bytes of both files; None where one is unknown."""
        sizes = [model.size for model in (self.target, self.draft) if model]
        return None if None in sizes else sum(size for size in sizes if size)


def entry_id(node: YamlNode) -> str:
    """The id an entry has, or gets from its target and draft.  Raises Damaged."""
    keys = yaml_values.read_table(node)
    if "id" in keys:
        return _read_id(keys["id"])
    if "target" not in keys:
        raise InvalidCatalogError("key id: it is missing", node.line)
    draft = _read_id(keys["draft"]) if "draft" in keys else "lookup"
    return f"{_read_id(keys['target'])}+{draft}"


def is_hide_entry(node: YamlNode) -> bool:
    """Whether an entry only takes another away."""
    keys = yaml_values.read_table(node)
    if "hide" not in keys:
        return False
    if yaml_values.read_text(keys["hide"]) != "true" or set(keys) != {"id", "hide"}:
        raise InvalidCatalogError(
            "key hide: it is `true` and stands with `id` alone", keys["hide"].line
        )
    return True


def read_model(node: YamlNode) -> CatalogModel:
    """Raises Damaged with line, key and reason."""
    known = yaml_values.read_fields(node, _MODEL_READERS, {"id", "title"})
    if "shape" in known:
        known["shape"], known["shape_source"] = _read_shape_key(
            known, yaml_values.read_table(node)["shape"]
        )
    bundled = known.pop("bundled", None)
    if bundled is not None:
        if known.keys() & {"repo", "file", "revision"}:
            raise InvalidCatalogError("key bundled: it stands with repo or file", node.line)
        return CatalogModel(file=bundled, **known)
    for key in ("repo", "file"):
        if key not in known:
            raise InvalidCatalogError(f"key {key}: it is missing", node.line)
    if ("sha256" in known) != ("revision" in known):
        raise InvalidCatalogError(
            "key sha256: it and revision stand together or not at all", node.line
        )
    if "bytes" in known and "about" in known:
        raise InvalidCatalogError("key about: bytes says it exactly", node.line)
    return CatalogModel(**known)


def read_pair(node: YamlNode, models: Mapping[str, CatalogModel]) -> CatalogPair:
    """Raises Damaged with line, key and reason."""
    known = yaml_values.read_fields(node, _PAIR_READERS, {"target"})
    keys = yaml_values.read_table(node)
    for key in ("target", "draft"):
        if key in known and known[key] not in models:
            raise InvalidCatalogError(f"key {key}: there is no model {known[key]}", keys[key].line)
    target = models[known.pop("target")]
    draft = models[known.pop("draft")] if "draft" in known else None
    if target.kind != "model":
        raise InvalidCatalogError("key target: a head is no target", keys["target"].line)
    if known.get("status") == "reported" and "source" not in known:
        raise InvalidCatalogError("key source: what is reported needs one", node.line)
    beside = draft.title if draft else "copying from the text"
    defaults = {"id": entry_id(node), "title": f"{target.title} with {beside}", "use": target.use}
    return CatalogPair(target=target, draft=draft, **(defaults | known))


def _read_use_cases(node: YamlNode) -> tuple[UseCase, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    return cast(tuple[UseCase, ...], tuple(yaml_values.one_of(USE_CASES)(item) for item in items))


def _read_shape_key(known: Mapping[str, Any], node: YamlNode) -> tuple[ModelShape, str]:

    try:
        return read_shape(node, known.get("architecture"))
    except InvalidCatalogError as error:
        raise InvalidCatalogError(f"key shape: {error.reason}", error.line) from None


def _read_settings(node: YamlNode) -> PairSettings:
    return PairSettings(**yaml_values.read_fields(node, _SETTINGS_READERS, ()))


def _is_plain_file_name(name: str) -> bool:
    return "/" not in name and is_safe_gguf_path(name)


_read_id = yaml_values.text_matching(
    lambda text: bool(_ID_PATTERN.match(text)), "an id: small letters, digits and . _ - +"
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
    "file": yaml_values.text_matching(is_safe_gguf_path, "a safe name of a .gguf file"),
    "bundled": yaml_values.text_matching(_is_plain_file_name, "a plain file name"),
    "bytes": yaml_values.integer_between(1, 10**13),
    "about": yaml_values.read_rounded_size,
    "sha256": yaml_values.hex_digits(64),
    "revision": yaml_values.hex_digits(40),
    "licence": yaml_values.read_text,
    "family": yaml_values.read_text,
    "architecture": yaml_values.read_text,
    "memory": yaml_values.one_of(MEMORY_KINDS),
    "parameters": yaml_values.read_count,
    "active": yaml_values.read_count,
    "context": yaml_values.integer_between(1, 10**9),
    "shape": lambda node: node,
    "kind": yaml_values.one_of(MODEL_KINDS),
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
    "status": yaml_values.one_of(PAIR_STATUSES),
    "source": yaml_values.read_text,
    "note": yaml_values.read_text,
    "settings": _read_settings,
}


# --- A model's shape as a catalogue has it: numbers by name, and where they were taken from.

_MAX_LAYERS = 512
_MAX_EXPERTS = 1024
_MAX_NUMBER = 10**9


def read_shape(node: YamlNode, architecture: str | None) -> tuple[ModelShape, str]:
    """The shape and its source.  Raises Damaged: a number is wrong, or they make no model."""
    found = yaml_values.read_fields(node, _SHAPE_READERS, {"layers", "embd", "vocab", "source"})
    if architecture is None:
        raise InvalidCatalogError("it needs the key architecture", node.line)
    source = found.pop("source")
    shape = ModelShape(architecture=architecture, **found)
    try:
        synthetic_header.check_shape(shape)
    except ValueError as error:
        raise InvalidCatalogError(str(error), node.line) from None
    return shape, source


def _read_flag(node: YamlNode) -> bool:
    return yaml_values.one_of(("true", "false"))(node) == "true"


def _read_layers(node: YamlNode) -> tuple[int, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    found = tuple(yaml_values.integer_between(0, _MAX_LAYERS - 1)(item) for item in items)
    if list(found) != sorted(set(found)):
        raise InvalidCatalogError("the layers do not rise", node.line)
    return found


def _shape_value_reader(name: str, kind: object) -> Callable[[YamlNode], Any]:
    if kind == "bool":
        return _read_flag
    if kind == "tuple[int, ...]":
        return _read_layers
    if name.startswith("experts"):
        return yaml_values.integer_between(1, _MAX_EXPERTS)
    return yaml_values.integer_between(1, _MAX_LAYERS if name.endswith("layers") else _MAX_NUMBER)


_SHAPE_READERS: dict[str, Callable[[YamlNode], Any]] = {
    "source": yaml_values.read_text,
    **{
        field.name: _shape_value_reader(field.name, field.type)
        for field in dataclasses.fields(ModelShape)
        if field.name != "architecture"
    },
}
