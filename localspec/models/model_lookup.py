"""Resolves a typed reference to catalogue entries, repository files and local files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from localspec import paths
from localspec.errors import LocalspecError, NotFoundError
from localspec.models import catalog, model_names, reference
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.models.local_files import inventory
from localspec.models.local_files.local_model import ORIGIN_TITLES, LocalModel
from localspec.models.reference import HubReference, NameReference
from localspec.sanitize import sanitize
from localspec.units import gb, join_first


class NotDownloadedError(NotFoundError):
    """A model that is not downloaded."""

    def __init__(self, title: str, pull_reference: str) -> None:
        """`pull_reference` is the argument for `localspec pull`."""
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
        """The absolute path if the source is a path.

        It is absolute because the engine has another working directory.
        """
        if isinstance(self.source, HubReference):
            return None
        return Path(os.path.abspath(os.path.expanduser(self.source)))

    def find_local(self) -> LocalModel | None:
        """The downloaded model, with all its splits.

        None for a path, or if it is incomplete.
        """
        source = self.source
        if isinstance(source, Path):
            return None
        return inventory.find(
            source.repo, tag=source.tag, file=source.file, revision=source.revision
        )

    def find_path(self) -> Path | None:
        """The file to open, or None if it must be downloaded.

        A typed path may not exist.
        """
        local = self.find_local()
        return local.path if local else self.path

    def require_path(self) -> Path:
        """`find_path`, or NotDownloadedError."""
        path = self.find_path()
        if path is None:
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
        """Whether it names a pair without a draft, so that no head is used."""
        return self.pair is not None and self.pair.draft_kind == "lookup"


def resolve(text: str) -> ModelRequest:
    """The catalogue entry, repository file or local file that `text` refers to.

    Needs no network.

    Raises UsageError if it is not a reference, NotFoundError if it is unknown or
    ambiguous.
    """
    is_file = "\0" not in text and os.path.isfile(os.path.expanduser(text))
    has_folder = bool(os.path.dirname(text))
    if is_file and has_folder:
        # It is no id of the catalogue, which takes 50 ms to read.
        return _from_source(text, Path(text))
    catalogue = catalog.load()
    entry = catalogue.find_exact(text)
    if entry is not None:
        return _from_entry(entry)
    if is_file:
        return _from_source(text, Path(text))
    parsed = reference.parse(text)
    if isinstance(parsed, NameReference):
        return _resolve_name(catalogue, parsed, text)
    if isinstance(parsed, Path) and not has_folder:
        # It may be the name of a listed file that contains spaces.
        local = _find_by_name(catalogue, text, inventory.list_models())
        if local is not None:
            return _from_source(text, local.path)
    return _from_source(text, parsed)


def is_lookup_pair(reference_text: str) -> bool:
    """Whether it is the id of a pair of the catalogue that drafts by prompt lookup."""
    catalogue, _ = catalog.load_valid()
    pair = catalogue.pairs.get(catalog.own_id(reference_text))
    return pair is not None and pair.draft_kind == "lookup"


def default_pair_id(catalogue: Catalog | None = None) -> str:
    """The first pair whose target is in an installed Python package, else the demo."""
    packaged = {(model.repo, model.file) for model in inventory.list_packaged()}
    catalogue = catalogue or catalog.load()
    for pair in catalogue.pairs.values():
        has_draft_here = pair.draft is None or pair.draft.repo is None
        if has_draft_here and (pair.target.repo, pair.target.file) in packaged:
            return pair.id
    return "demo"


def from_catalog(model: CatalogModel) -> ResolvedModel:
    if model.repo is None:
        assert model.path is not None
        return ResolvedModel(model.id, model.path, model)
    if model.file:
        source = HubReference(model.repo, file=model.file, revision=model.revision)
    else:
        source = HubReference(model.repo, tag=model.type, revision=model.revision)
    return ResolvedModel(model.id, source, model)


def portable_ref(text: str) -> str:
    """A reference that means the same file later and from any folder.

    That is an absolute path, or an id: a name may fit another file tomorrow.
    """
    path = os.path.abspath(text)
    is_bundled = Path(path).is_relative_to(paths.package_data_dir())
    if os.path.dirname(text) and not is_bundled:
        return path if os.path.isfile(text) else text
    catalogue = catalog.load()
    if text in catalogue.pairs or text in catalogue.models:
        return text
    if not os.path.isfile(text):
        return _identity_of_name(catalogue, text)
    for model in catalogue.models.values():
        if str(model.path) == path:
            return model.id
    return path


def _identity_of_name(catalogue: Catalog, text: str) -> str:
    """The path, or the id, of what a name means today; the text itself if nothing."""
    if catalog.own_id(text) in catalogue.models or "/" in text:
        return text
    try:
        request = resolve(text)
    except LocalspecError:
        return text
    source = request.target.source
    if request.pair is not None or request.target.catalog_model is not None:
        return request.name
    if isinstance(source, HubReference):
        return text
    for model in inventory.list_models():
        if model.path == source and model.origin == "ollama":
            return model.own_name
    return str(source)


def ready_pairs(
    local_models: Sequence[LocalModel], catalogue: Catalog | None = None
) -> list[CatalogPair]:
    """The catalogue pairs whose files are all among `local_models` or bundled."""
    catalogue = catalogue or catalog.load()
    pairs = []
    for pair in catalogue.pairs.values():
        if pair.draft is not None and not _is_available(pair.draft, local_models):
            continue
        for target in (pair.target, *pair.target.files):
            if _is_available(target, local_models):
                pairs.append(pair.with_target(target))
    return pairs


def _is_available(model: CatalogModel, local_models: Sequence[LocalModel]) -> bool:
    if model.repo is None:
        return True
    return any(model.is_file(local.repo, local.file) for local in local_models)


def leave_out_spare_lookup(pairs: Sequence[CatalogPair]) -> list[CatalogPair]:
    """Without the pairs with prompt lookup whose target has a pair with a draft, too.

    It is the same model: `--spec` chooses how it drafts.
    """
    drafted = {
        catalog.own_id(pair.target.id) for pair in pairs if pair.draft_kind != "lookup"
    }
    return [
        pair
        for pair in pairs
        if pair.draft_kind != "lookup" or catalog.own_id(pair.target.id) not in drafted
    ]


def is_spare_copy(local: LocalModel, local_models: Iterable[LocalModel]) -> bool:
    """Whether it is a converted copy of a model here, loaded in its place.

    Such copies are named by that model: SmolLM2-135M-Q8_0 of SmolLM2-135M.Q4_K_M.
    """
    if local.origin != "converted":
        return False
    name = _name_without_type(local)
    others = [each for each in local_models if each.origin != "converted"]
    return any(_name_without_type(other) == name for other in others)


def _name_without_type(local: LocalModel) -> str:
    name = reference.parse_file_name(local.path.name)
    return name.stem.removesuffix(name.tag or "").rstrip("-._")


def list_installed() -> list[tuple[str, str]]:
    """References that open without a download, with titles; each model once.

    First the pairs, then the models that are in none of them, without heads.
    """
    models = inventory.list_models()
    pairs = leave_out_spare_lookup(ready_pairs(models))
    listed = []
    for pair in pairs:
        listed.append((pair.name, sanitize(pair.title, multiline=False)))
    for model in _models_without_pair(models, pairs):
        listed.append((shortest_reference(model, models), _describe_origin(model)))
    return listed


class InstalledModel(Struct, frozen=True):
    """A model that can be opened now."""

    reference: str
    name: str
    about: str


def list_models_to_open() -> list[InstalledModel]:
    """Each model once, with the first of its drafts: `/draft` chooses another one."""
    models = inventory.list_models()
    listed: dict[str, InstalledModel] = {}
    pairs = leave_out_spare_lookup(ready_pairs(models))
    for pair in pairs:
        names = model_names.name_catalog_pair(pair)
        about = f"guesses: {names.draft}" if names.draft else ""
        model = InstalledModel(pair.name, names.target, about)
        listed.setdefault(pair.target.id, model)
    others = list(_models_without_pair(models, pairs))
    shown = model_names.name_files(model.path for model in others)
    for local in others:
        ref = shortest_reference(local, models)
        name = local.own_name if local.origin == "ollama" else shown[local.path]
        listed[ref] = InstalledModel(ref, name, _describe_origin(local))
    return list(listed.values())


def _describe_origin(model: LocalModel) -> str:
    return f"{gb(model.size)}, {ORIGIN_TITLES[model.origin]}"


def _models_without_pair(
    models: Sequence[LocalModel], pairs: Sequence[CatalogPair]
) -> Iterator[LocalModel]:
    for model in models:
        if is_spare_copy(model, models) or _is_in_pair(model, pairs):
            continue
        if reference.is_model(model.path.name):
            yield model


def _is_in_pair(local: LocalModel, pairs: Iterable[CatalogPair]) -> bool:
    for pair in pairs:
        for model in (pair.target, pair.draft):
            if model is not None and model.is_file(local.repo, local.file):
                return True
    return False


def find_listed(opened_by: str, target: Path) -> str:
    """The reference of `list_models_to_open` for an open pair; empty if none means it.

    `opened_by` is a reference, `target` the file.
    """
    models = inventory.list_models()
    pairs = leave_out_spare_lookup(ready_pairs(models))
    first: dict[str, str] = {}  # By the id of the target.
    for pair in pairs:
        first.setdefault(pair.target.id, pair.name)
    for pair in pairs:
        if opened_by in (pair.id, pair.name):
            return first[pair.target.id]
    for model in models:
        if model.path != target:
            continue
        for pair in pairs:
            if pair.target.is_file(model.repo, model.file):
                return first[pair.target.id]
        return shortest_reference(model, models)
    return ""


def shortest_reference(
    local_model: LocalModel, local_models: Sequence[LocalModel]
) -> str:
    """The shortest reference that resolves to this file, and to no other.

    That is an id, `user/repo:QUANT`, an hf:// address, the file's name, or else its
    path.
    """
    catalogue = catalog.load()
    repo = local_model.repo
    if repo is None:
        name = local_model.own_name
        if _resolves_as_name(catalogue, local_model, local_models):
            return name
        return str(local_model.path)

    candidates: list[tuple[str, HubReference]] = []
    for entry in catalogue.models.values():
        for model in (entry, *entry.files):
            source = from_catalog(model).source
            if model.is_file(repo, local_model.file) and not isinstance(source, Path):
                candidates.append((model.id, source))
    file = local_model.file
    tag = reference.parse_file_name(file).tag
    if tag:
        candidates.append((f"{repo}:{tag}", HubReference(repo, tag=tag)))
    candidates.append((f"hf://{repo}/{file}", HubReference(repo, file=file)))
    revision = local_model.revision
    if revision:
        address = f"hf://{repo}@{revision}/{file}"
        in_commit = HubReference(repo, file=file, revision=revision)
        candidates.append((address, in_commit))
    for text, source in candidates:
        found = inventory.find_among(
            local_models,
            source.repo,
            source.tag,
            file=source.file,
            revision=source.revision,
        )
        if found is local_model:
            return text
    return str(local_model.path)


def _resolves_as_name(
    catalogue: Catalog, local_model: LocalModel, local_models: Sequence[LocalModel]
) -> bool:
    """Whether the name of a file without a repository is enough for `resolve`."""
    name = local_model.own_name
    if os.path.dirname(name) or name.startswith("-"):  # a path, an option
        return False
    parsed = reference.parse(name)
    if isinstance(parsed, NameReference) and parsed.tag is not None:
        is_ollama = local_model.origin == "ollama"
        if not is_ollama or parsed.name in catalogue.models:
            return False
    elif isinstance(parsed, HubReference):
        return False
    return _find_by_name(catalogue, name, local_models) is local_model


def _from_source(text: str, source: Path | HubReference) -> ModelRequest:
    return ModelRequest(text, ResolvedModel(text, source))


def _from_entry(
    entry: CatalogModel | CatalogPair, model: CatalogModel | None = None
) -> ModelRequest:
    """`model` is the quantisation of the entry's model, or of its target.

    Without it, one that is here, else the catalogue's first.
    """
    if isinstance(entry, CatalogModel):
        model = model or _prefer_installed(entry)
        return ModelRequest(model.id, from_catalog(model))
    model = model or _prefer_installed(entry.target)
    pair = entry.with_target(model)
    draft = from_catalog(pair.draft) if pair.draft else None
    return ModelRequest(pair.id, from_catalog(model), draft=draft, pair=pair)


def unknown_type_error(model: CatalogModel, name: str) -> NotFoundError:
    message = f"{model.id} has no quantisation {sanitize(name, multiline=False)}."
    types = ", ".join(each.quantization for each in (model, *model.files))
    hint = f"It has: {types}." if types else "See: localspec pair list"
    return NotFoundError(message, hint)


def _prefer_installed(model: CatalogModel) -> CatalogModel:
    """The first quantisation that is here, else the catalogue's first."""
    if not model.files:  # without listing the disk
        return model
    local_models = inventory.list_models()
    for each in (model, *model.files):
        if any(each.is_file(local.repo, local.file) for local in local_models):
            return each
    return model


def _resolve_name(
    catalogue: Catalog, name_reference: NameReference, text: str
) -> ModelRequest:
    """By a local file's name, else by a part of a catalogue id or of a file's name."""
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
    tag = name_reference.tag
    if tag is None:
        return _from_entry(entry)

    converted = inventory.converted_folder() / f"{entry.id}-{tag.upper()}.gguf"
    if converted.is_file():
        return _from_source(text, converted)
    model = entry if isinstance(entry, CatalogModel) else entry.target
    quantized = model.find_type(tag)
    if quantized is not None:
        return _from_entry(entry, quantized)
    if isinstance(entry, CatalogPair) or entry.repo is None:
        raise unknown_type_error(model, tag)
    return _from_source(text, HubReference(entry.repo, tag=tag))


def _find_by_name(
    catalogue: Catalog, name: str, local_models: Sequence[LocalModel]
) -> LocalModel | None:
    """The only file without a repository of this name, unless the name is an id."""
    if name in catalogue.models or name in catalogue.pairs:
        return None
    matches = [model for model in local_models if model.own_name == name]
    if len(matches) != 1 or matches[0].repo is not None:
        return None
    return matches[0]


def _resolve_local_name(
    name: NameReference, text: str, not_found: NotFoundError
) -> ModelRequest:
    """Raises `not_found` if no file's name contains the name and its tag."""
    part = name.name.lower()
    tag = (name.tag or "").lower()
    models = inventory.list_models()
    # If a repository had several versions of a file, the first one counts: list_models
    # puts main's there.
    matches: dict[tuple[str | None, str], LocalModel] = {}
    for model in models:
        full_name = f"{model.repo or ''}/{model.file}".lower()
        if part in full_name and tag in model.file.lower():
            file = model.file if model.repo else str(model.path)
            matches.setdefault((model.repo, file), model)
    if not matches:
        raise not_found
    found = list(matches.values())
    # A projector has the name of its model, or of its repository.
    models_alone = [
        model for model in found if not reference.is_projector(model.path.name)
    ]
    found = models_alone or found
    if len(found) > 1:
        names = [shortest_reference(model, models) for model in found]
        message = f"{sanitize(name.name, multiline=False)} matches several files."
        hint = f"Choose one: {sanitize(join_first(names, 8), multiline=False)}."
        raise NotFoundError(message, hint)
    return _from_source(text, found[0].path)
