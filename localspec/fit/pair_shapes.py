"""Shapes of a pair: from headers of local files or of files on the hub, or from the catalogue."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.errors import LocalspecError, ModelFileError, NotFoundError
from localspec.fit import catalog_shape, shape
from localspec.fit.shape import ModelShape
from localspec.lazy_dataclass import dataclass
from localspec.models import draft_heads, pair_compatibility
from localspec.models.catalog import CatalogModel, CatalogPair
from localspec.models.gguf import reader
from localspec.models.gguf.header import Header
from localspec.models.model_lookup import ModelRequest, ResolvedModel

if TYPE_CHECKING:
    from localspec.models.pull_plan import PullPlanner

ShapeSource = Literal["file", "hub", "shape"]
"""A local file; a hub file of which only the header was fetched; the catalogue."""


@dataclass(frozen=True, slots=True)
class PairMember:
    name: str
    source: ShapeSource
    shape: ModelShape
    header: Header | None = None  # None: the shape is from the catalogue.
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class PairShapes:
    """A pair, or a target without a draft."""

    target: PairMember
    draft: PairMember | None = None

    @property
    def name(self) -> str:
        return f"{self.target.name} + {self.draft.name}" if self.draft else self.target.name

    @property
    def shapes(self) -> tuple[ModelShape, ModelShape | None]:
        return self.target.shape, self.draft.shape if self.draft else None

    @property
    def headers(self) -> tuple[Header, Header | None] | None:
        """None if a shape is from the catalogue."""
        target, draft = self.target.header, self.draft.header if self.draft else None
        is_known = target is not None and (draft is not None or self.draft is None)
        return (target, draft) if target and is_known else None

    def check_head(self) -> None:
        """Raises IncompatiblePairError if the draft is a head that does not fit the target."""
        if self.headers and self.draft:
            verdict = pair_compatibility.find_head_mismatch(*self.headers)
            if verdict is not None:
                raise pair_compatibility.incompatible_pair_error(
                    verdict, self.target.name, self.draft.name
                )

    def add_found_head(self) -> PairShapes:
        """Adds the MTP layer of the target or a head file next to it, as `run` does."""
        target = self.target
        if self.draft is not None or target.header is None:
            return self
        if draft_heads.has_own_mtp_layer(target.header):
            return join(target, target)
        path = target.path and pair_compatibility.find_sidecar(target.path, target.header)
        if not path:
            return self
        return join(target, member(path.name, "file", reader.read_model(path), path))


def from_headers(target: Header, draft: Header | None) -> PairShapes:
    """Raises ModelFileError if the numbers in them are inconsistent."""
    drafting = member("draft", "file", draft) if draft else None
    return join(member("target", "file", target), drafting)


def resolve_shapes(
    request: ModelRequest, draft: ResolvedModel | None, planner: PullPlanner | None
) -> PairShapes:
    """From local files, else from the hub if a planner is given, else from the catalogue.

    Raises NotFoundError if none has the model, and hub errors.
    """
    resolved_draft = draft or request.draft
    return join(
        _resolve_member(request.target, planner),
        _resolve_member(resolved_draft, planner) if resolved_draft else None,
    )


def from_catalog(pair: CatalogPair) -> PairShapes | None:
    """From the catalogue alone; None for unknown shapes and for heads."""
    if pair.draft_kind not in ("model", "lookup"):
        return None
    target = _catalog_member(pair.target)
    draft = _catalog_member(pair.draft) if pair.draft else None
    return PairShapes(target, draft) if target and (draft or not pair.draft) else None


def join(target: PairMember, draft: PairMember | None) -> PairShapes:
    """With the draft as the head that it is for this target."""
    if draft is not None and target.header and draft.header:
        kind = shape.for_target(draft.shape, target.header, draft.header)
        draft = replace(draft, shape=kind)
    return PairShapes(target, draft)


def member(name: str, source: ShapeSource, found: Header, path: Path | None = None) -> PairMember:
    try:
        return PairMember(name, source, shape.from_header(found), found, path)
    except (ArithmeticError, LookupError, ValueError) as error:
        what = "The sizes in the model file are inconsistent."
        raise ModelFileError(what, "Download it again, or try another file.") from error


def _resolve_member(request: ResolvedModel, planner: PullPlanner | None) -> PairMember:
    if (path := request.find_path()) is not None:
        return member(request.name, "file", reader.read_model(path), path)
    known = _catalog_member(request.catalog_model) if request.catalog_model else None
    if planner is not None:
        try:
            found = planner.full_header(planner.plan_model(request))
            return member(request.name, "hub", found)
        except LocalspecError:
            if known is None:
                raise
    if known is None:
        what = f"The size of {request.title} is unknown."
        raise NotFoundError(what, "Go online to read its header, or give a local file.")
    return known


def _catalog_member(model: CatalogModel) -> PairMember | None:
    if model.path is not None:
        return member(model.id, "file", reader.read(model.path), model.path)
    known = catalog_shape.from_catalog(model)
    return PairMember(model.id, "shape", known) if known else None
