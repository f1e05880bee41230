"""Projectors (mmproj files): what they are made for, and which one belongs to a model.

A projector turns a picture or a sound into rows that a model reads in place of tokens.
It is a GGUF of its own, and llama.cpp takes any whose width is the model's: one of
another kind loads, and the answers are nonsense. So its kind must be the model's, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from localspec.errors import LocalspecError
from localspec.models import catalog, projector_shape, reference
from localspec.models.catalog_entries import CatalogModel, split_quantization
from localspec.models.gguf import architectures, reader
from localspec.models.gguf.header import Header
from localspec.models.local_files import inventory
from localspec.models.local_files.local_model import LocalModel, scan_folder
from localspec.models.model_lookup import ResolvedModel
from localspec.models.projector_kinds import find_kind
from localspec.models.projector_shape import ProjectorShape
from localspec.models.reference import RepoFile

_TYPES_BY_RANK = ("F16", "BF16", "Q8_0", "F32")
"""The best first: Q8_0 rounds, and F32 has twice the bytes for nothing."""
_SNAPSHOTS = "snapshots"


class Senses(Struct, frozen=True):
    """What a projector is made for."""

    sees: bool = False
    hears: bool = False

    @property
    def word(self) -> str:
        """Where there is little room: `sees`, or `sees, hears`; empty for neither."""
        words = []
        if self.sees:
            words.append("sees")
        if self.hears:
            words.append("hears")
        return ", ".join(words)


def read_senses(projector: Header) -> Senses:
    return Senses(
        sees=projector.keys.get("clip.has_vision_encoder") is True,
        hears=projector.keys.get("clip.has_audio_encoder") is True,
    )


def is_projector_file(header: Header) -> bool:
    return header.architecture in architectures.IMAGE_PARTS


def fits_model(projector: Header, model: Header) -> bool:
    """Whether it is a projector of the model's width and kind, by both headers."""
    if not is_projector_file(projector):
        return False
    width = projector.keys.get("clip.vision.projection_dim")
    if width is None:
        width = projector.keys.get("clip.audio.projection_dim")
    if width != model.n_embd:
        return False
    beginnings = find_kind(projector).architectures
    return not beginnings or model.architecture.startswith(beginnings)


# --- here


def find_projector(model: Path) -> Path | None:
    """The best projector on this computer for a model's file; None if there is none.

    Those beside the model come first: in its folder, or in any commit of its repository
    in the hub's cache. Then the one that the catalogue names. Of several, one that is
    named after the model wins, then the one with the better type.
    """
    beside = list(_iter_beside(model))
    found = _choose(beside, model)
    if found is not None:
        return found
    listed = _find_listed(model)
    if listed is None:
        return None
    return _choose([listed], model)


def find_shape(model: ResolvedModel) -> ProjectorShape | None:
    """Of the projector that is here, else of the catalogue's.

    None for a model without one, and if its size is not known.
    """
    path = model.find_path()
    projector = find_projector(path) if path is not None else None
    if projector is not None:
        with suppress(LocalspecError, ArithmeticError, ValueError):
            return projector_shape.from_header(reader.read(projector))
    entry = model.catalog_model
    listed = entry.projector if entry is not None else None
    if listed is None or listed.bytes is None:
        return None
    return projector_shape.from_size(listed.bytes)


def find_senses(model: ResolvedModel) -> Senses:
    """By the projector that is here, else by the catalogue."""
    path = model.find_path()
    projector = find_projector(path) if path is not None else None
    if projector is not None:
        with suppress(LocalspecError, OSError):
            return read_senses(reader.read(projector))
    entry = model.catalog_model
    return listed_senses(entry) if entry is not None else Senses()


def listed_senses(entry: CatalogModel) -> Senses:
    """What the catalogue says of a model."""
    return Senses(sees=bool(entry.sees), hears=entry.hears)


def map_projectors(models: Iterable[LocalModel]) -> dict[Path, Path]:
    """The projector of each model that has one, by the model's file."""
    found: dict[Path, Path] = {}
    for model in models:
        if not reference.is_model(model.path.name):
            continue
        projector = find_projector(model.path)
        if projector is not None:
            found[model.path] = projector
    return found


def _choose(candidates: Sequence[Path], model: Path) -> Path | None:
    """The best of those that fit the model.

    A file that cannot be read is no candidate: a broken projector beside a model must
    not keep the model from being listed or loaded.
    """
    if not candidates:
        return None
    ranked: list[tuple[tuple[bool, int], int, Path]] = []
    with suppress(LocalspecError, OSError):
        model_header = reader.read(model)
        for number, path in enumerate(candidates):
            with suppress(LocalspecError, OSError):
                header = reader.read(path)
                if fits_model(header, model_header):
                    rank = _rank(path.name, header.main_type, model.name)
                    ranked.append((rank, number, path))
    return min(ranked)[2] if ranked else None


def _rank(name: str, type_: str, model: str) -> tuple[bool, int]:
    """The least is the best: mmproj-m-Q8_0.gguf before mmproj-F16.gguf for m-Q4_0.gguf."""
    base, _ = split_quantization(model)
    is_another_name = base not in name.upper()
    types = len(_TYPES_BY_RANK)
    if type_ in _TYPES_BY_RANK:
        types = _TYPES_BY_RANK.index(type_)
    return is_another_name, types


def _iter_beside(model: Path) -> Iterator[Path]:
    for folder in _folders_of(model):
        for entry in scan_folder(folder):
            if reference.is_projector(entry.name):
                yield Path(entry.path)


def _folders_of(model: Path) -> Iterator[Path]:
    """The model's folder; in the hub's cache, it and those above it in all commits.

    A part of a split model may be in a folder of its repository, the projector beside
    that folder; what is downloaded later may belong to a later commit.
    """
    commit = _commit_folder(model)
    if commit is None:
        yield model.parent
        return
    inner = model.parent.relative_to(commit)
    commits = [Path(entry.path) for entry in scan_folder(commit.parent)]
    for each in (commit, *(other for other in commits if other != commit)):
        for folder in dict.fromkeys((inner, *inner.parents)):
            yield each / folder


def _commit_folder(path: Path) -> Path | None:
    """The folder of the commit that a file of the hub's cache belongs to."""
    for folder in path.parents:
        if folder.parent.name == _SNAPSHOTS:
            return folder
    return None


def _find_listed(model: Path) -> Path | None:
    """The catalogue's projector of a model, if it is here.

    It may be in another repository: those with MTP layers often have none.
    """
    entry = _find_entry(model)
    if entry is None or entry.projector is None:
        return None
    projector = entry.projector
    local = inventory.find(projector.repo, file=projector.file)
    return local.path if local is not None else None


def _find_entry(model: Path) -> CatalogModel | None:
    """The catalogue's entry of a file whose folders tell its repository.

    Of another file the catalogue is not asked: to read it takes 50 ms.
    """
    commit = _commit_folder(model)
    if commit is not None:
        folder = commit.parent.parent.name
        repo = folder.removeprefix("models--").replace("--", "/")
        file = model.relative_to(commit).as_posix()
    else:
        tops = [*inventory.lmstudio_folders(), inventory.models_folder()]
        inside = [top for top in tops if top is not None and model.is_relative_to(top)]
        pieces = model.relative_to(inside[0]).parts if inside else ()
        repo = "/".join(pieces[:2])
        file = "/".join(pieces[2:])
    if not file or not reference.is_repo_id(repo):
        return None
    known, _ = catalog.load_valid()
    for entry in known.models_by_repo.get(repo, ()):
        if entry.is_file(repo, file):
            return entry
    return None


# --- on the hub


def choose_on_hub(files: Sequence[RepoFile], model: str) -> RepoFile | None:
    """The best projector of a repository for one of its models; None without one.

    `model` is the path of its first file. The projector is in that folder or above, and
    its header is not read yet: `fits_model` judges it.
    """
    ranked: list[tuple[int, tuple[bool, int], str, RepoFile]] = []
    for file in files:
        is_safe = reference.is_safe_gguf_path(file.path)
        if not is_safe or not reference.is_projector(file.path):
            continue
        if not reference.is_in_or_above(file.path, model):
            continue
        name = file.path.rpartition("/")[2]
        _, type_ = split_quantization(name)
        depth = file.path.count("/")
        rank = _rank(name, type_ or _TYPES_BY_RANK[0], model.rpartition("/")[2])
        ranked.append((-depth, rank, file.path, file))
    return min(ranked)[3] if ranked else None
