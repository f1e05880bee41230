"""One entry of a catalogue, a model or a pair, read from YAML with every value checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from localspec import paths
from localspec.models import names
from localspec.models.catalogue import table, values
from localspec.models.catalogue.node import Damaged, Node
from localspec.models.reference import is_safe, part
from localspec.speculation import SPECS

if TYPE_CHECKING:
    from localspec.models.blueprint.shape import Shape

Use = Literal["chat", "code", "writing", "documents"]
Kind = Literal["model", "eagle3", "mtp", "dflash", "dspark"]
Status = Literal["verified", "reported", "untested"]

USES = ("chat", "code", "writing", "documents")
KINDS = ("model", "eagle3", "mtp", "dflash", "dspark")
STATES = ("verified", "reported", "untested")
MEMORIES = ("attention", "swa", "hybrid-rollback", "hybrid-checkpoint")

_ID = re.compile(r"[a-z0-9][a-z0-9._+-]{0,95}\Z")


@dataclass(frozen=True, slots=True)
class Model:
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
    shape: Shape | None = None
    """What `blueprint.header` draws the file from."""
    shape_source: str = ""
    kind: Kind = "model"
    use: tuple[Use, ...] = ()
    note: str = ""

    @property
    def size(self) -> int | None:
        """Bytes: exact where they are known, else at most."""
        return self.bytes if self.bytes is not None else self.about

    @property
    def quantisation(self) -> str:
        """As the file's name has it: Q4_K_M; empty where it says none."""
        return part(self.file).tag

    @property
    def path(self) -> Path | None:
        """Where a bundled file lies; None for one of a repository."""
        return paths.data() / "demo" / self.file if self.repo is None else None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a pair suggests; None leaves it to the program."""

    draft_max: int | None = None
    ctx: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A target, its draft, and how to run them."""

    id: str
    title: str
    target: Model
    draft: Model | None = None
    spec: str = "auto"
    why: str = ""
    use: tuple[Use, ...] = ()
    status: Status = "untested"
    source: str = ""
    note: str = ""
    settings: Settings = field(default=Settings())

    @property
    def kind(self) -> str:
        """What drafts: `model`, `lookup`, or the head that reads the target's hidden states."""
        return self.draft.kind if self.draft else "lookup"

    @property
    def size(self) -> int | None:
        """Bytes of both files; None where one is unknown."""
        sizes = [model.size for model in (self.target, self.draft) if model]
        return None if None in sizes else sum(size for size in sizes if size)


def entry_id(node: Node) -> str:
    """The id an entry has, or gets from its target and draft.  Raises Damaged."""
    keys = table.entries(node)
    if "id" in keys:
        return _id(keys["id"])
    if "target" not in keys:
        raise Damaged("key id: it is missing", node.line)
    draft = _id(keys["draft"]) if "draft" in keys else "lookup"
    return f"{_id(keys['target'])}+{draft}"


def is_hidden(node: Node) -> bool:
    """Whether an entry only takes another away."""
    keys = table.entries(node)
    if "hide" not in keys:
        return False
    if values.text(keys["hide"]) != "true" or set(keys) != {"id", "hide"}:
        raise Damaged("key hide: it is `true` and stands with `id` alone", keys["hide"].line)
    return True


def model(node: Node) -> Model:
    """Raises Damaged with line, key and reason."""
    known = table.fields(node, _MODEL, {"id", "title"})
    if "shape" in known:
        known["shape"], known["shape_source"] = _shape(known, table.entries(node)["shape"])
    bundled = known.pop("bundled", None)
    if bundled is not None:
        if known.keys() & {"repo", "file", "revision"}:
            raise Damaged("key bundled: it stands with repo or file", node.line)
        return Model(file=bundled, **known)
    for key in ("repo", "file"):
        if key not in known:
            raise Damaged(f"key {key}: it is missing", node.line)
    if ("sha256" in known) != ("revision" in known):
        raise Damaged("key sha256: it and revision stand together or not at all", node.line)
    if "bytes" in known and "about" in known:
        raise Damaged("key about: bytes says it exactly", node.line)
    return Model(**known)


def pair(node: Node, models: Mapping[str, Model]) -> Pair:
    """Raises Damaged with line, key and reason."""
    known = table.fields(node, _PAIR, {"target"})
    keys = table.entries(node)
    for key in ("target", "draft"):
        if key in known and known[key] not in models:
            raise Damaged(f"key {key}: there is no model {known[key]}", keys[key].line)
    target = models[known.pop("target")]
    draft = models[known.pop("draft")] if "draft" in known else None
    if target.kind != "model":
        raise Damaged("key target: a head is no target", keys["target"].line)
    if known.get("status") == "reported" and "source" not in known:
        raise Damaged("key source: what is reported needs one", node.line)
    beside = draft.title if draft else "copying from the text"
    defaults = {"id": entry_id(node), "title": f"{target.title} with {beside}", "use": target.use}
    return Pair(target=target, draft=draft, **(defaults | known))


def _uses(node: Node) -> tuple[Use, ...]:
    items = node.value if isinstance(node.value, list) else [node]
    return cast(tuple[Use, ...], tuple(values.one_of(USES)(item) for item in items))


def _shape(known: Mapping[str, Any], node: Node) -> tuple[Shape, str]:
    from localspec.models.catalogue import shapes  # noqa: PLC0415  not before a catalogue is read

    try:
        return shapes.read(node, known.get("architecture"))
    except Damaged as error:
        raise Damaged(f"key shape: {error.why}", error.line) from None


def _settings(node: Node) -> Settings:
    return Settings(**table.fields(node, _SETTINGS, ()))


def _is_plain(name: str) -> bool:
    return "/" not in name and is_safe(name)


_id = values.matching(
    lambda text: bool(_ID.match(text)), "an id: small letters, digits and . _ - +"
)

_SETTINGS: dict[str, Callable[[Node], Any]] = {
    "draft_max": values.whole(1, 64),
    "ctx": values.whole(256, 10**7),
    "temperature": values.temperature,
}
_MODEL: dict[str, Callable[[Node], Any]] = {
    "id": _id,
    "title": values.text,
    "repo": values.matching(names.is_repo, "a repository like user/name"),
    "file": values.matching(is_safe, "a safe name of a .gguf file"),
    "bundled": values.matching(_is_plain, "a plain file name"),
    "bytes": values.whole(1, 10**13),
    "about": values.rounded,
    "sha256": values.hexadecimal(64),
    "revision": values.hexadecimal(40),
    "licence": values.text,
    "family": values.text,
    "architecture": values.text,
    "memory": values.one_of(MEMORIES),
    "parameters": values.count,
    "active": values.count,
    "context": values.whole(1, 10**9),
    "shape": lambda node: node,
    "kind": values.one_of(KINDS),
    "use": _uses,
    "note": values.text,
}
_PAIR: dict[str, Callable[[Node], Any]] = {
    "id": _id,
    "title": values.text,
    "target": _id,
    "draft": _id,
    "spec": values.one_of(SPECS),
    "why": values.text,
    "use": _uses,
    "status": values.one_of(STATES),
    "source": values.text,
    "note": values.text,
    "settings": _settings,
}
