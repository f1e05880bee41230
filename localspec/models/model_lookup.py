"""Resolves a typed reference to catalogue entries, repository files and downloaded
files.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from localspec import paths
from localspec.errors import NotFoundError
from localspec.models import catalog, reference
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.models.local_files import inventory
from localspec.models.local_files.local_model import ORIGIN_TITLES, LocalModel
from localspec.models.reference import HubReference, NameReference, RepoFile
from localspec.sanitize import sanitize
from localspec.units import gb, join_first


class NotDownloadedError(NotFoundError):
    """A model that is not downloaded; `pull_reference` is the argument for `localspec
    pull`.
    """

    def __init__(self, title: str, pull_reference: str) -> None:
        shown = sanitize(title, multiline=False)
        argument = sanitize(shlex.quote(pull_reference), multiline=False)
        super().__init__(
            f"{shown} is not downloaded.", f"Get it: localspec pull {argument}"
        )
        self.pull_reference = pull_reference


class ResolvedModel(Struct, frozen=True):
    name: str  # A reference that resolves to it.
    source: Path | HubReference
    catalog_model: CatalogModel | None = None

    @property
    def title(self) -> str:
        return self.catalog_model.title if self.catalog_model else self.name

    @property
    def path(self) -> Path | None:
        """The absolute path if the source is a path: the worker has another working
        directory.
        """
        if isinstance(self.source, HubReference):
            return None
        return Path(os.path.abspath(os.path.expanduser(self.source)))

    def find_local(self) -> LocalModel | None:
        """The downloaded model, with all its splits; None for a path or if it is
        incomplete.
        """
        source = self.source
        if isinstance(source, Path):
            return None
        return inventory.find(source.repo, source.tag, source.file, source.revision)

    def find_path(self) -> Path | None:
        """The file to open, or None if it must be downloaded; a typed path may not
        exist.
        """
        local = self.find_local()
        return local.path if local else self.path

    def require_path(self) -> Path:
        """`find_path`, or NotDownloadedError."""
        if (path := self.find_path()) is None:
            raise NotDownloadedError(self.title, self.name)
        return path


class ModelRequest(Struct, frozen=True):
    """A resolved reference: a model, or a pair of the catalogue."""

    name: str
    target: ResolvedModel
    draft: ResolvedModel | None = None
    pair: CatalogPair | None = None

    @property
    def models(self) -> tuple[ResolvedModel, ...]:
        return (self.target, self.draft) if self.draft else (self.target,)

    @property
    def is_lookup_pair(self) -> bool:
        """Whether it names a pair without any draft; else a head that is found is used."""
        return self.pair is not None and self.pair.draft_kind == "lookup"


def resolve(text: str) -> ModelRequest:
    """The catalogue entry, repository file or local file that `text` refers to.  Needs no network.

    Raises UsageError if it is not a reference, NotFoundError if it is unknown or
    ambiguous.
    """
    is_file = "\0" not in text and os.path.isfile(os.path.expanduser(text))
    # no id of the catalogue, which takes 50 ms to read
    if is_file and os.path.dirname(text):
        return _from_source(text, Path(text))
    catalogue = catalog.load()
    entry = catalogue.pairs.get(text) or catalogue.models.get(text)
    if entry is not None:
        return _from_entry(entry)
    if is_file:
        return _from_source(text, Path(text))
    parsed = reference.parse(text)
    if isinstance(parsed, NameReference):
        return _resolve_name(catalogue, parsed, text)
    local = None
    # a name with spaces, say
    if isinstance(parsed, Path) and not os.path.dirname(text):
        local = _find_by_name(catalogue, text, inventory.list_models())
    return _from_source(text, local.path if local else parsed)


def default_pair_id(catalogue: Catalog | None = None) -> str:
    """The first pair whose target is in an installed Python package, else the demo."""
    packaged = {(model.repo, model.file) for model in inventory.list_packaged()}
    for pair in (catalogue or catalog.load()).pairs.values():
        has_draft_here = pair.draft is None or pair.draft.repo is None
        if has_draft_here and (pair.target.repo, pair.target.file) in packaged:
            return pair.id
    return "demo"


def from_catalog(model: CatalogModel) -> ResolvedModel:
    if model.repo is None:
        assert model.path is not None
        return ResolvedModel(model.id, model.path, model)
    name = {"file": model.file} if model.file else {"tag": model.type}
    source = HubReference(model.repo, revision=model.revision, **name)
    return ResolvedModel(model.id, source, model)


def portable_ref(text: str) -> str:
    """A reference that works from any folder: an absolute path, or the id of a bundled
    file.
    """
    path = os.path.abspath(text)
    if os.path.dirname(text) and not Path(path).is_relative_to(
        paths.package_data_dir()
    ):
        return path if os.path.isfile(text) else text
    catalogue = catalog.load()
    if text in catalogue.pairs or text in catalogue.models or not os.path.isfile(text):
        return text
    bundled = (
        model.id for model in catalogue.models.values() if str(model.path) == path
    )
    return next(bundled, path)


def ready_pairs(
    local_models: Sequence[LocalModel], catalogue: Catalog | None = None
) -> list[CatalogPair]:
    """The catalogue pairs whose files are all among `local_models` or bundled."""
    files = [(model.repo, model.file) for model in local_models]

    def is_available(model: CatalogModel) -> bool:
        return model.repo is None or any(model.is_file(*file) for file in files)

    return [
        pair.with_target(target)
        for pair in (catalogue or catalog.load()).pairs.values()
        for target in (pair.target, *pair.target.files)
        if is_available(target) and (pair.draft is None or is_available(pair.draft))
    ]


def list_installed() -> list[tuple[str, str]]:
    """References that open without a download, with titles: pairs, then models without
    heads.
    """
    models = inventory.list_models()
    pairs = [
        (pair.id, sanitize(pair.title, multiline=False)) for pair in ready_pairs(models)
    ]
    return pairs + [
        (
            shortest_reference(model, models),
            f"{gb(model.size)}, {ORIGIN_TITLES[model.origin]}",
        )
        for model in models
        if reference.is_model(model.path.name)
    ]


def shortest_reference(
    local_model: LocalModel, local_models: Sequence[LocalModel]
) -> str:
    """An id, `user/repo:QUANT`, an hf:// address, or else the file's name or path."""
    catalogue = catalog.load()
    for entry in catalogue.models.values():
        for model in (entry, *entry.files):
            if model.is_file(local_model.repo, local_model.file):
                return model.id
    if local_model.repo is None:
        name = local_model.own_name
        is_name = not os.path.dirname(name)
        is_name = is_name and not isinstance(reference.parse(name), HubReference)
        named = _find_by_name(catalogue, name, local_models) if is_name else None
        return name if named is local_model else str(local_model.path)
    tag = reference.parse_file_name(local_model.file).tag
    files = [
        RepoFile(m.file, m.size) for m in local_models if m.repo == local_model.repo
    ]
    single = [file for file in files if reference.parse_file_name(file.path).count == 1]
    with suppress(NotFoundError):
        if tag and reference.choose_files(single, tag)[0].path == local_model.file:
            return f"{local_model.repo}:{tag}"
    return f"hf://{local_model.repo}/{local_model.file}"


def _from_source(text: str, source: Path | HubReference) -> ModelRequest:
    return ModelRequest(text, ResolvedModel(text, source))


def _from_entry(
    entry: CatalogModel | CatalogPair, model: CatalogModel | None = None
) -> ModelRequest:
    """`model`: the quantisation.

    Without it, one that is here, else the catalogue's first.
    """
    pair = entry if isinstance(entry, CatalogPair) else None
    model = model or _prefer_installed(
        entry.target if isinstance(entry, CatalogPair) else entry
    )
    if pair is None:
        return ModelRequest(model.id, from_catalog(model))
    pair = pair.with_target(model)
    draft = from_catalog(pair.draft) if pair.draft else None
    return ModelRequest(pair.id, from_catalog(model), draft, pair)


def unknown_type_error(model: CatalogModel, name: str) -> NotFoundError:
    what = f"{model.id} has no quantisation {sanitize(name, multiline=False)}."
    types = ", ".join(each.quantization for each in (model, *model.files))
    return NotFoundError(
        what, f"It has: {types}." if types else "See: localspec pair list"
    )


def _prefer_installed(model: CatalogModel) -> CatalogModel:
    if not model.files:  # without listing the disk
        return model
    files = [(local.repo, local.file) for local in inventory.list_models()]
    here = (
        each
        for each in (model, *model.files)
        if any(each.is_file(*file) for file in files)
    )
    return next(here, model)


def _resolve_name(
    catalogue: Catalog, name_reference: NameReference, text: str
) -> ModelRequest:
    """By a local file's name, else by a part of a catalogue id, else by a part of a
    file's name.
    """
    name = name_reference.name
    local = None
    if name_reference.tag is None:
        local = _find_by_name(catalogue, name, inventory.list_models())
    elif name not in catalogue.models:
        local = inventory.find_ollama(text)
    if local is not None:
        return _from_source(text, local.path)
    try:
        entry = catalog.find(catalogue, name)
    except NotFoundError as not_found:
        return _resolve_local_name(name_reference, text, not_found)
    if (tag := name_reference.tag) is None:
        return _from_entry(entry)
    copy = inventory.converted_folder() / f"{entry.id}-{tag.upper()}.gguf"
    if copy.is_file():
        return _from_source(text, copy)
    model = entry if isinstance(entry, CatalogModel) else entry.target
    if found := model.find_type(tag):
        return _from_entry(entry, found)
    if isinstance(entry, CatalogPair) or entry.repo is None:
        raise unknown_type_error(model, tag)
    return _from_source(text, HubReference(entry.repo, tag=tag))


def _find_by_name(
    catalogue: Catalog, name: str, local_models: Sequence[LocalModel]
) -> LocalModel | None:
    """The only file without a repository of this name, unless the name is an id."""
    if name in catalogue.models or name in catalogue.pairs:
        return None
    matches = [m for m in local_models if m.own_name == name]
    return matches[0] if len(matches) == 1 and matches[0].repo is None else None


def _resolve_local_name(
    name: NameReference, text: str, not_found: NotFoundError
) -> ModelRequest:
    """Raises `not_found` if no file's name contains the name and its tag."""
    part, tag = name.name.lower(), (name.tag or "").lower()
    models = inventory.list_models()
    found = [
        m
        for m in models
        if part in f"{m.repo or ''}/{m.file}".lower() and tag in m.file.lower()
    ]
    if not found:
        raise not_found
    # Of the versions that a repository had of a file, the first: list_models puts
    # main's there.
    matches: dict[object, LocalModel] = {}
    for model in found:
        matches.setdefault(
            (model.repo, (model.repo and model.file) or model.path), model
        )
    if len(matches) > 1:
        names = [shortest_reference(model, models) for model in matches.values()]
        message = f"{sanitize(name.name, multiline=False)} matches several files."
        hint = f"Choose one: {sanitize(join_first(names, 8), multiline=False)}."
        raise NotFoundError(message, hint)
    return _from_source(text, found[0].path)
