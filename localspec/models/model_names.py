"""The names of models that people read: a model has the same one on every screen.

What one types is an id such as `qwen3-8b`, a reference or a path. What one reads is a
name such as `Qwen3 8B`: the title of the catalogue's model that a file is, else the
name of the file. A history keeps the names of files, from which the shown names are
made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple, TypeVar

from localspec import draft_kinds
from localspec.models import catalog, short_names
from localspec.models.catalog import Catalog, CatalogModel, CatalogPair
from localspec.models.catalog_entries import split_quantization
from localspec.models.reference import parse_file_name
from localspec.sanitize import sanitize

OWN_MTP_LAYER = "its MTP layer"
"""What drafts in a target that has the layer in its own file."""

_PathT = TypeVar("_PathT", bound=PurePath)


class PairNames(NamedTuple):
    target: str
    draft: str = ""  # Empty without a draft: prompt lookup is no second model.

    @property
    def text(self) -> str:
        """Both names, and which of them guesses."""
        if not self.draft:
            return self.target
        return f"{self.target} (guesses: {self.draft})"


def name_model(model: CatalogModel) -> str:
    """Its title; of another quantisation than its first, with that behind the title.

    qwen3-8b is `Qwen3 8B`, and qwen3-8b:Q8_0 is `Qwen3 8B Q8_0`.
    """
    is_first = ":" not in model.id
    return _join_type(model, "" if is_first else model.type)


def name_catalog_pair(pair: CatalogPair) -> PairNames:
    draft = ""
    if pair.draft is not None:
        draft = _name_catalog_draft(pair.draft)
    elif pair.draft_kind != "lookup":
        draft = OWN_MTP_LAYER
    return PairNames(name_model(pair.target), draft)


def _name_catalog_draft(draft: CatalogModel) -> str:
    """A head works with its target only, which is named before it."""
    head = draft_kinds.head_title(draft.kind)
    return f"{head} head" if head else name_model(draft)


def name_files(
    paths: Iterable[_PathT], catalogue: Catalog | None = None
) -> dict[_PathT, str]:
    """The name of each model file, told apart from the other ones.

    Files of one name differ by their quantisation, by the part of a split model that they
    are, or by their folder.
    """
    catalogue = catalogue or _load()

    def list_titles(path: PurePath) -> Sequence[str]:
        name = parse_file_name(path.name)
        titles = [*_list_titles(path, catalogue)] or [name.stem]
        if name.count > 1:
            titles.append(f"{titles[0]}, part {name.index} of {name.count}")
        return titles

    return short_names.shorten(paths, list_titles)


def name_pair_files(
    target: PurePath, draft: PurePath | None, others: Iterable[PurePath] = ()
) -> PairNames:
    """The names of a pair's files, told apart from those of `others`."""
    files = [target, *others]
    if draft is None:
        return PairNames(name_files(files)[target])
    by_file = name_files([draft, *files])
    listed = _find_entry(draft, _load())
    if listed is not None and draft_kinds.head_title(listed.kind):
        return PairNames(by_file[target], _name_catalog_draft(listed))
    return PairNames(by_file[target], by_file[draft])


def name_recorded(
    recorded: Iterable[str], catalogue: Catalog | None = None
) -> dict[str, str]:
    """The names of models whose files' names are recorded, such as `Qwen3-8B-Q4_K_M`.

    One is shown as it is unless it is that of a model of the catalogue. A folder may
    precede it: `bartowski/Qwen3-8B-Q4_K_M`.
    """
    catalogue = catalogue or _load()
    shown: dict[str, str] = {}
    listed: dict[str, PurePath] = {}
    for name in recorded:
        path = PurePath(name)
        if _list_titles(path, catalogue):
            listed[name] = path
        else:
            shown[name] = sanitize(name, multiline=False)
    by_file = name_files(listed.values(), catalogue)
    for name, path in listed.items():
        shown[name] = by_file[path]
    return shown


def find_referenced(reference: str, catalogue: Catalog) -> CatalogModel | None:
    """The model, or the target of the pair, whose id a reference is."""
    entry = catalogue.find_exact(catalog.own_id(reference))
    if entry is None:
        return None
    model = entry if isinstance(entry, CatalogModel) else entry.target
    _, _, type_ = reference.partition(":")
    return model.find_type(type_) if type_ else model


# --- the catalogue's model that a file is
# ----------------------------------------------------------------------------------


def _load() -> Catalog:
    catalogue, _ = catalog.load_valid()  # others report an invalid file
    return catalogue


def _list_titles(path: PurePath, catalogue: Catalog) -> Sequence[str]:
    """A title, and one with the quantisation; none of a file that is not listed.

    Of a packaged model localspec itself makes a copy in another quantisation, which
    answers in its place under the same name.
    """
    model = _find_in_repo(path, catalogue)
    if model is not None:
        return name_model(model), _join_type(model, model.quantization)
    found = _find_by_name(path, catalogue)
    if found is None:
        return ()
    _, type_ = split_quantization(path.name)
    full_title = _join_type(found, type_)
    if found.package is not None or type_ == found.quantization.upper():
        return name_model(found), full_title
    return (full_title,)


def _find_entry(path: PurePath, catalogue: Catalog) -> CatalogModel | None:
    return _find_in_repo(path, catalogue) or _find_by_name(path, catalogue)


def _find_in_repo(path: PurePath, catalogue: Catalog) -> CatalogModel | None:
    """The listed file of the repository in whose folder the path is."""
    for repo, file in _repositories(path):
        for model in catalogue.models_by_repo.get(repo, ()):
            if model.is_file(repo, file):
                return model
    return None


def _repositories(path: PurePath) -> Iterator[tuple[str, str]]:
    """OWNER/REPO and the file's path there, which may be in a folder of its own."""
    folders = short_names.list_folders(path)
    for n_inner in (0, 1):
        inner = folders[len(folders) - n_inner :]
        outer = folders[: len(folders) - n_inner]
        if len(outer) >= 2:
            yield "/".join(outer[-2:]), "/".join([*inner, path.name])


def _find_by_name(path: PurePath, catalogue: Catalog) -> CatalogModel | None:
    """A model whose file has the same name, but for the quantisation.

    Copies of a file lie in any folder, and a history has no more than its name.
    """
    base, type_ = split_quantization(path.name)
    listed = catalogue.models_by_base.get(base, ())
    for model in listed:
        if model.quantization.upper() == type_:
            return model
    if listed and type_:
        return listed[0]
    return None


def _join_type(model: CatalogModel, type_: str) -> str:
    """An entry of its own for a quantisation has that in its title: Qwen3 8B Q8_0."""
    title = model.title
    if not title.endswith(f" {type_}"):
        title = f"{title} {type_}".rstrip()
    return sanitize(title, multiline=False)
