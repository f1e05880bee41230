"""GGUF headers of a pair, from local files, from the hub, or built from the catalog."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.errors import LocalspecError, NotFoundError
from localspec.lazy_dataclass import dataclass
from localspec.models import draft_heads, pair_compatibility, synthetic_header
from localspec.models.catalog import CatalogModel, CatalogPair
from localspec.models.gguf import header
from localspec.models.gguf.header import Header
from localspec.models.resolver import ModelRequest, ResolvedModel

if TYPE_CHECKING:
    from localspec.models.pull_plan import PullPlanner

HeaderSource = Literal["file", "hub", "shape"]
"""A local file; a hub file of which only the header was fetched; a shape from the catalog."""


@dataclass(frozen=True, slots=True)
class PairMember:
    name: str
    header: Header
    source: HeaderSource
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class PairHeaders:
    """A pair, or a target without a draft."""

    target: PairMember
    draft: PairMember | None = None

    @property
    def name(self) -> str:
        return f"{self.target.name} + {self.draft.name}" if self.draft else self.target.name

    def check_head(self) -> None:
        """Raises IncompatiblePairError if the draft is a head that does not fit the target."""
        if (verdict := pair_compatibility.find_head_mismatch(*self.headers)) is not None:
            raise pair_compatibility.incompatible_pair_error(
                verdict, self.target.name, self.draft.name if self.draft else ""
            )

    def add_found_head(self) -> PairHeaders:
        """Adds the MTP layer of the target or a head file next to it, as `run` does."""
        target = self.target
        if self.draft is not None:
            return self
        if draft_heads.has_own_mtp_layer(target.header):
            return replace(self, draft=target)
        path = target.path and pair_compatibility.find_sidecar(target.path, target.header)
        if not path:
            return self
        return replace(self, draft=PairMember(path.name, header.read_model(path), "file", path))

    @property
    def headers(self) -> tuple[Header, Header | None]:
        return self.target.header, self.draft.header if self.draft else None


def resolve_headers(
    request: ModelRequest, draft: ResolvedModel | None, planner: PullPlanner | None
) -> PairHeaders:
    """Headers from local files, else from the hub if a planner is given, else from the catalog.

    Raises NotFoundError if none has the model, and hub errors.
    """
    resolved_draft = draft or request.draft
    return PairHeaders(
        _resolve_member(request.target, planner),
        _resolve_member(resolved_draft, planner) if resolved_draft else None,
    )


def from_catalog(pair: CatalogPair) -> PairHeaders | None:
    """Headers from the catalog alone; None for unknown shapes and for heads."""
    if pair.draft_kind not in ("model", "lookup"):
        return None
    target = _synthetic_member(pair.target)
    draft = _synthetic_member(pair.draft) if pair.draft else None
    if target is None or (pair.draft is not None and draft is None):
        return None
    return PairHeaders(target, draft)


def _resolve_member(request: ResolvedModel, planner: PullPlanner | None) -> PairMember:
    if (path := request.find_path()) is not None:
        return PairMember(request.name, header.read_model(path), "file", path)
    synthetic = _synthetic_member(request.catalog_model) if request.catalog_model else None
    if planner is not None:
        try:
            return PairMember(request.name, planner.full_header(planner.plan_model(request)), "hub")
        except LocalspecError:
            if synthetic is None:
                raise
    if synthetic is None:
        what = f"The size of {request.title} is unknown."
        raise NotFoundError(what, "Go online to read its header, or give a local file.")
    return synthetic


@functools.lru_cache(maxsize=256)
def _synthetic_member(model: CatalogModel) -> PairMember | None:
    if model.path is not None:
        return PairMember(model.id, header.read(model.path), "file", model.path)
    if model.shape is None or not model.quantization:
        return None
    try:
        return PairMember(
            model.id, synthetic_header.build(model.shape, model.quantization, model.id), "shape"
        )
    except ValueError:
        return None
