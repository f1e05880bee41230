"""What a person asked for by a reference: which files, of which repositories, and what is here."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import NotFoundError, UsageError
from localspec.models import catalog, local_files, reference
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.models.local_files.local_model import LocalModel
from localspec.models.reference import HubReference, NameReference, PathReference, RepoFile
from localspec.sanitize import sanitize


class NotDownloadedError(NotFoundError):
    """A model that could be downloaded; `asked` is what to pull."""

    def __init__(self, title: str, pull_reference: str) -> None:
        shown = sanitize(title, multiline=False)
        words = sanitize(shlex.quote(pull_reference), multiline=False)
        super().__init__(f"{shown} is not here.", f"Get it: localspec pull {words}")
        self.pull_reference = pull_reference


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """One model, and where it is to be had."""

    name: str
    """What to type for it."""
    source: PathReference | HubReference
    catalog_model: CatalogModel | None = None
    """What the catalogue knows of it."""

    @property
    def title(self) -> str:
        return self.catalog_model.title if self.catalog_model else self.name

    @property
    def path(self) -> Path | None:
        """Of a file that was named by its path; absolute: the engine has a folder of its own."""
        if isinstance(self.source, HubReference):
            return None
        return Path(os.path.abspath(os.path.expanduser(self.source.path)))

    def find_local(self) -> LocalModel | None:
        """A model of a repository that is on this computer, with all its parts."""
        source = self.source
        if isinstance(source, PathReference):
            return None
        if source.file is None:
            found = local_files.find_model(source.repo, source.tag)
            file = found.file if found else None
        else:
            file = source.file
        known = local_files.find(source.repo, file, source.revision) if file else None
        if known is None:
            return None
        wholes = (one for one in local_files.list_models() if known.path in (one.path, *one.parts))
        return next(wholes, None)

    def require_path(self) -> Path:
        """The file to open, which may still be missing where a path was given.

        Raises NotHere where it must be downloaded first.
        """
        if (path := self.path) is not None:
            return path
        stored = self.find_local()
        if stored is None:
            raise NotDownloadedError(self.title, self.name)
        return stored.path


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What one reference means: a model, or a pair of the catalogue."""

    name: str
    target: ResolvedModel
    draft: ResolvedModel | None = None
    pair: CatalogPair | None = None

    @property
    def models(self) -> tuple[ResolvedModel, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)


def resolve(text: str) -> ModelRequest:
    """The catalogue's entry, the repository's or the computer's file that `text` means.

    Raises UsageError where it can mean nothing, NotFoundError where it is unknown or could be
    several.  Asks nobody.
    """
    known = catalog.load()
    exact = known.pairs.get(text) or known.models.get(text)
    if exact is not None:
        return _from_entry(exact)
    if text and "\0" not in text and os.path.isfile(os.path.expanduser(text)):
        return ModelRequest(text, ResolvedModel(text, PathReference(text)))
    found = reference.parse(text)
    if not isinstance(found, NameReference):
        return ModelRequest(text, ResolvedModel(text, found))
    return _resolve_name(known, found, text)


def from_catalog(model: CatalogModel) -> ResolvedModel:
    """A model of the catalogue."""
    if model.repo is None:
        return ResolvedModel(model.id, PathReference(str(model.path)), model)
    source = HubReference(model.repo, file=model.file, revision=model.revision)
    return ResolvedModel(model.id, source, model)


def portable_ref(text: str) -> str:
    """The same from any folder; the id of a file that comes along, wherever that is installed."""
    known = catalog.load()
    if text in known.pairs or text in known.models or not os.path.isfile(text):
        return text
    path = os.path.abspath(text)
    ours = (model.id for model in known.models.values() if str(model.path) == path)
    return next(ours, path)


def ready_pairs(local_models: Sequence[LocalModel]) -> list[CatalogPair]:
    """The catalogue's pairs of which both files are among these, or come with localspec."""
    here = {(one.repo, one.file) for one in local_models}

    def has(model: CatalogModel | None) -> bool:
        return model is None or model.repo is None or (model.repo, model.file) in here

    pairs = catalog.load().pairs.values()
    return [pair for pair in pairs if has(pair.target) and has(pair.draft)]


def shortest_reference(local_model: LocalModel, local_models: Sequence[LocalModel]) -> str:
    """The shortest reference that means a file: an id, `user/repo:QUANT`, or its address."""
    for model in catalog.load().models.values():
        if (model.repo, model.file) == (local_model.repo, local_model.file) and model.repo:
            return model.id
    if local_model.repo is None:
        return str(local_model.path)
    tag = reference.parse_file_name(local_model.file).tag
    own = [RepoFile(one.file, one.size) for one in local_models if one.repo == local_model.repo]
    if tag and _first_by_tag(own, tag) == local_model.file:
        return f"{local_model.repo}:{tag}"
    return f"hf://{local_model.repo}/{local_model.file}"


def _first_by_tag(files: Sequence[RepoFile], tag: str) -> str | None:
    single = [one for one in files if reference.parse_file_name(one.path).count == 1]
    try:
        return reference.choose_files(single, tag)[0].path
    except NotFoundError:
        return None


def _from_entry(entry: CatalogModel | CatalogPair) -> ModelRequest:
    if isinstance(entry, CatalogModel):
        return ModelRequest(entry.id, from_catalog(entry))
    return ModelRequest(
        entry.id,
        from_catalog(entry.target),
        from_catalog(entry.draft) if entry.draft else None,
        entry,
    )


def _resolve_name(known: Catalog, name_reference: NameReference, text: str) -> ModelRequest:
    """By a part of an id; else by a part of the name of a file that is here."""
    try:
        entry = catalog.find(known, name_reference.name)
    except NotFoundError as unknown:
        return _resolve_local_name(name_reference.name, text, unknown)
    if name_reference.tag is None:
        return _from_entry(entry)
    if isinstance(entry, CatalogPair) or entry.repo is None:
        raise UsageError(
            f"{entry.id} has no other quantisations.", "Name its model: localspec pair list"
        )
    return ModelRequest(text, ResolvedModel(text, HubReference(entry.repo, tag=name_reference.tag)))


def _resolve_local_name(name: str, text: str, unknown: NotFoundError) -> ModelRequest:
    """Raises `unknown` where no file's name holds it."""
    part = name.lower()
    listing = local_files.list_models()
    found = [one for one in listing if part in f"{one.repo or ''}/{one.file}".lower()]
    if not found:
        raise unknown
    if len(found) > 1:
        names = [sanitize(shortest_reference(one, listing), multiline=False) for one in found[:8]]
        what = f"{sanitize(name, multiline=False)} could be several files."
        raise NotFoundError(what, f"Say which: {', '.join(names)}.")
    return ModelRequest(text, ResolvedModel(text, PathReference(str(found[0].path))))
