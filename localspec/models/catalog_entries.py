"""Catalogue entries: models and pairs."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal, get_args

from localspec import paths
from localspec.lazy_dataclass import dataclass
from localspec.models.catalog_shape import CatalogShape
from localspec.models.reference import parse_file_name

UseCase = Literal["chat", "code", "writing", "documents"]
ModelKind = Literal["model", "eagle3", "mtp", "dflash", "dspark"]
PairStatus = Literal["verified", "reported", "untested"]

USE_CASES: tuple[UseCase, ...] = get_args(UseCase)
MEMORY_KINDS = ("attention", "swa", "hybrid-rollback", "hybrid-checkpoint")


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A model file of a repository, or a bundled one; None is unknown."""

    id: str
    title: str
    repo: str | None = None
    file: str = ""
    bytes: int | None = None
    about: int | None = None  # Upper bound of the size, from a published, rounded one.
    sha256: str | None = None
    revision: str | None = None
    package: str | None = None  # `name==version` of a Python package that contains the same file.
    licence: str | None = None
    family: str = ""
    architecture: str | None = None
    memory: str | None = None
    parameters: int | None = None
    active: int | None = None  # Parameters read for one token, for a mixture of experts.
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
