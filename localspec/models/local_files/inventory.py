"""The model files on this computer: in the hub's cache, the models folder and, read-only, Python
packages, the folders of LM Studio, Ollama and llama.cpp, and what was opened by its path."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from localspec import config, data_files
from localspec.errors import ChecksumError, NotFoundError, StorageError
from localspec.models import catalog, reference
from localspec.models.local_files import hub_cache, other_apps
from localspec.models.local_files.hub_cache import LeftoverFile
from localspec.models.local_files.local_model import (
    ORIGIN_TITLES,
    ChecksumRecord,
    LocalModel,
    describe_file,
    discard_checksum,
    load_checksums,
    verify_checksum,
)
from localspec.models.reference import RepoFile, choose_files, parse_file_name
from localspec.sanitize import sanitize

_RECENT_FILE = "recent.json"

OpenedPair = tuple[Path, Path | None]  # A target and its draft.


def models_folder() -> Path | None:
    """Set by --models-dir, LOCALSPEC_MODELS_DIR or config.toml."""
    folder = config.resolve().get("models.folder")
    return Path(folder) if folder else None


def iter_files() -> Iterator[LocalModel]:
    """Every model file once; the hub's cache and the models folder first."""
    record = load_checksums()
    folder = models_folder()
    seen: set[str] = set()
    for model in itertools.chain(
        hub_cache.iter_files(hub_cache.cache_root(), record),
        other_apps.iter_folder(folder, 5, record, "folder") if folder else (),
        list_packaged(),
        other_apps.iter_files(record),
        _iter_opened(record),
    ):
        path = str(model.path)
        real_path = os.path.realpath(path) if model.origin == "opened" else path
        if path not in seen and real_path not in seen:
            seen |= {path, os.path.realpath(path)}
            yield model


def list_models() -> tuple[LocalModel, ...]:
    """The complete models; the splits of one model are joined to one entry.

    A file that several commits of a repository share is listed once, with the first of them.
    """
    models: dict[tuple[object, ...], LocalModel] = {}
    for model in filter(None, map(_join_splits, _group_splits(iter_files()))):
        blobs = map(os.path.realpath, model.parts or (model.path,))
        models.setdefault((model.origin, model.repo, model.file, *blobs), model)
    return tuple(models.values())


def find_ollama(name: str) -> LocalModel | None:
    """By Ollama's name; a file may have several, of which `list_models` has one."""
    models = other_apps.iter_files(load_checksums())
    return next((m for m in models if m.origin == "ollama" and m.file == name), None)


def _group_splits(files: Iterable[LocalModel]) -> list[list[LocalModel]]:
    """The files by the model they belong to, in order; most models have one."""
    splits_by_model: dict[tuple[Path, str, int], list[LocalModel]] = {}
    for file in files:
        name = parse_file_name(file.path.name)
        splits_by_model.setdefault((file.path.parent, name.stem, name.count), []).append(file)
    return [
        sorted(splits, key=lambda split: parse_file_name(split.path.name).index)
        for splits in splits_by_model.values()
    ]


def _join_splits(splits: list[LocalModel]) -> LocalModel | None:
    """None if a split is missing."""
    names = [parse_file_name(split.path.name) for split in splits]
    if [name.index for name in names] != list(range(1, names[0].count + 1)):
        return None
    if len(splits) == 1:
        return splits[0]
    return replace(
        splits[0],
        size=sum(split.size for split in splits),
        verified=all(split.verified for split in splits),
        removable=all(split.removable for split in splits),
        parts=tuple(split.path for split in splits),
    )


def find(
    repo: str, tag: str | None = None, file: str | None = None, revision: str | None = None
) -> LocalModel | None:
    """The complete model that a reference selects, without the hub.

    `revision` restricts it to a commit, or to the commit of a branch or tag.
    """
    commit = revision
    if revision and not reference.COMMIT_HASH.fullmatch(revision):
        folders = hub_cache.iter_repos(hub_cache.cache_root())
        refs = (hub_cache.read_ref(f, revision) for r, f in folders if r.lower() == repo.lower())
        if (commit := next(refs, None)) is None:
            return None
    models: dict[str, LocalModel] = {}
    for model in filter(None, map(_join_splits, _group_splits(iter_files()))):
        is_repo = (model.repo or "").lower() == repo.lower()  # the hub ignores case
        if is_repo and commit in (None, model.revision):
            folder, slash, _ = model.file.rpartition("/")
            for path in model.parts or (Path(model.file),):
                models.setdefault(f"{folder}{slash}{path.name}", model)
    try:
        first = choose_files([RepoFile(path, 0) for path in models], tag, file)[0]
    except NotFoundError:
        return None
    return models[first.path]


def remove(model: LocalModel) -> int:
    """Delete all files of a model; returns the freed bytes.  Raises StorageError."""
    if model.origin == "opened":
        raise StorageError(f"{model.file} was opened by its path.", f"Delete {model.path}")
    if not model.removable:
        owners = dict.fromkeys(("hub", "folder"), "another user")
        owners["package"] = "an installed Python package"
        owner = owners.get(model.origin, ORIGIN_TITLES[model.origin])
        raise StorageError(f"{model.file} belongs to {owner}.", "Remove it there.")
    freed = 0
    try:
        if model.origin == "hub":
            return hub_cache.remove(hub_cache.cache_root(), model)
        for path in model.parts or (model.path,):
            freed += 0 if path.is_symlink() else path.stat().st_size
            path.unlink()
            discard_checksum(path)
    except OSError as error:
        message = f"{model.file} cannot be removed: {error.strerror}."
        raise StorageError(message, "Check its permissions.") from error
    return freed


def find_leftovers() -> tuple[LeftoverFile, ...]:
    """Unused files of earlier downloads in the hub's cache.

    Finished splits count too while others of their model are missing: such a model cannot run.
    """
    cache = hub_cache.cache_root()
    files = hub_cache.iter_files(cache, load_checksums())
    incomplete = (group for group in _group_splits(files) if _join_splits(group) is None)
    splits = [split for group in incomplete for split in group if split.removable]
    return (*hub_cache.find_leftovers(cache), *hub_cache.find_idle_splits(cache, splits))


def delete_leftovers(leftovers: Sequence[LeftoverFile]) -> int:
    """Returns the freed bytes; files that cannot be deleted are skipped."""
    freed = 0
    for leftover in leftovers:
        with suppress(OSError):
            freed += hub_cache.delete_leftover(hub_cache.cache_root(), leftover)
    return freed


# --- installed Python packages: their code is never imported


def list_packaged() -> tuple[LocalModel, ...]:
    """The files that the catalogue expects in packages; none if LOCALSPEC_STARTER is 0."""
    packaged: list[LocalModel] = []
    if os.environ.get("LOCALSPEC_STARTER") == "0":
        return ()
    record = load_checksums()
    shipped_or_own, _ = catalog.load_valid()  # others report an invalid file
    for model in shipped_or_own.models.values():
        path = _find_in_package(model.package, model.file) if model.package else None
        found = describe_file(path, record, "package") if path else None
        if found and found.size == model.bytes:
            is_verified = found.verified and found.sha256 == model.sha256
            found = replace(found, repo=model.repo, file=model.file, revision=model.revision)
            packaged.append(replace(found, sha256=model.sha256, verified=is_verified))
    return tuple(packaged)


def verify_packaged(path: Path) -> None:
    """Hash a package's file unless its checksum is recorded; does nothing for other files.

    Raises ChecksumError if the file is damaged.
    """
    if not any(path.is_relative_to(os.path.abspath(folder)) for folder in sys.path):
        return  # without reading the catalogue, which takes 50 ms
    for model in list_packaged():
        if model.path != path or model.verified or model.sha256 is None:
            continue
        if not verify_checksum(path, model.sha256, lambda _: None):
            name = sanitize(path.name, multiline=False)
            raise ChecksumError(
                f"{name} is damaged: its checksum differs from the catalogue's.",
                f"Install its package again. It is in {path.parent}",
            )


def _find_in_package(package: str, file: str) -> Path | None:
    from importlib import metadata  # noqa: PLC0415  it takes 20 ms

    name, _, version = package.partition("==")
    try:
        distribution = metadata.distribution(name)
        if distribution.version != version:
            return None
        files = distribution.files or ()
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    found = next((entry for entry in files if entry.name == file), None)
    return Path(os.path.abspath(str(found.locate()))) if found else None


# --- files that were opened by their paths, latest first


def load_opened() -> list[OpenedPair]:
    """The pairs whose files still exist; empty if the list is damaged."""
    try:
        return [
            (Path(entry["target"]), Path(entry["draft"]) if entry["draft"] else None)
            for entry in data_files.read_json(_RECENT_FILE)
            if os.path.isfile(entry["target"])
            and (not entry["draft"] or os.path.isfile(entry["draft"]))
        ]
    except (TypeError, KeyError):
        return []


def add_opened(pair: OpenedPair) -> None:
    """Put a pair first. Does nothing if the list cannot be written."""
    body = [
        {"target": str(target), "draft": str(draft) if draft else None}
        for target, draft in (pair, *(old for old in load_opened() if old != pair))
    ]
    data_files.write_json(_RECENT_FILE, body[:50])


def _iter_opened(record: ChecksumRecord) -> Iterator[LocalModel]:
    for pair in load_opened():
        for path in filter(None, pair):
            if model := describe_file(path, record, "opened"):
                yield model
