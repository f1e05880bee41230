"""What is to be priced: the headers of a target and its draft, wherever they come from."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from localspec.errors import LocalspecError, NotFoundError
from localspec.models import blueprint, header, heads, pairing
from localspec.models.catalog import Model, Pair
from localspec.models.header import Header
from localspec.models.wanted import Asked, Wanted

if TYPE_CHECKING:
    from localspec.models.plan import Planner

Source = Literal["file", "hub", "shape"]
"""A file here; a file of the hub, of which only the header was fetched; the catalogue's numbers."""


@dataclass(frozen=True, slots=True)
class Part:
    """One model's header."""

    name: str
    header: Header
    source: Source
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A pair, or a target alone."""

    target: Part
    draft: Part | None = None

    @property
    def name(self) -> str:
        return f"{self.target.name} + {self.draft.name}" if self.draft else self.target.name

    def check(self) -> None:
        """Raise IncompatiblePairError where its draft is a head that cannot be run beside it."""
        target, draft = self.headers
        if draft is None or heads.drafting(target, draft) == "model" or heads.own(target, draft):
            return
        if (verdict := heads.misfit(heads.of(target), draft)) is not None:
            raise pairing.refusal(verdict, self.target.name, self.draft.name if self.draft else "")

    def with_head(self) -> Subject:
        """With the head that the target brings, or that lies beside it: `run` would use it."""
        target = self.target
        if self.draft is not None:
            return self
        if heads.predicts(target.header):
            return replace(self, draft=target)
        found = target.path and heads.beside(target.path, target.header)
        if not found:
            return self
        return replace(self, draft=Part(found.name, of_file(found), "file", found))

    @property
    def headers(self) -> tuple[Header, Header | None]:
        return self.target.header, self.draft.header if self.draft else None


def look(asked: Asked, draft: Wanted | None, planner: Planner | None) -> Subject:
    """By what is here; else by the hub's files, where a planner may ask it; else by shapes.

    Raises NotFoundError where nothing is known, and what the hub refuses.
    """
    second = draft or asked.draft
    return Subject(_part(asked.target, planner), _part(second, planner) if second else None)


def of_pair(pair: Pair) -> Subject | None:
    """By the catalogue alone; None where a shape is unknown, or a head drafts."""
    if pair.kind not in ("model", "lookup"):
        return None
    target = _drawn(pair.target)
    draft = _drawn(pair.draft) if pair.draft else None
    if target is None or (pair.draft is not None and draft is None):
        return None
    return Subject(target, draft)


def of_file(path: Path) -> Header:
    """A local file's, with all its parts.  Raises as `header.read`."""
    first = header.read(path)
    if first.split is None:
        return first
    ending = f"-{1:05d}-of-{first.split.count:05d}.gguf"
    stem = path.name.removesuffix(ending)
    others = [
        header.read(path.with_name(f"{stem}-{n:05d}-of-{first.split.count:05d}.gguf"))
        for n in range(2, first.split.count + 1)
    ]
    return blueprint.joined([first, *others])


def _part(wanted: Wanted, planner: Planner | None) -> Part:
    stored = wanted.stored()
    if (path := stored.path if stored else wanted.path) is not None:
        return Part(wanted.name, of_file(path), "file", path)
    drawn = _drawn(wanted.model) if wanted.model else None
    if planner is not None:
        try:
            return Part(wanted.name, planner.whole(planner.item(wanted)), "hub")
        except LocalspecError:
            if drawn is None:
                raise
    if drawn is None:
        what = f"Nothing is known of {wanted.title} but its name."
        raise NotFoundError(what, "Connect, and its header is read; or give a file that is here.")
    return drawn


@functools.lru_cache(maxsize=256)
def _drawn(model: Model) -> Part | None:
    if model.path is not None:
        return Part(model.id, header.read(model.path), "file", model.path)
    if model.shape is None or not model.quantisation:
        return None
    try:
        return Part(model.id, blueprint.header(model.shape, model.quantisation, model.id), "shape")
    except ValueError:
        return None
