"""The model files on this computer: in the hub's cache, the models folder and, read-only, the
folders of LM Studio, Ollama and llama.cpp."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from localspec import config
from localspec.errors import NotFoundError, StorageError
from localspec.models import safe_names
from localspec.models.hub import hub_cache
from localspec.models.local_files import checksum_cache, hub_snapshots, other_apps
from localspec.models.local_files.hub_snapshots import LeftoverFile
from localspec.models.local_files.local_model import LocalModel, stat_gguf, walk_files
from localspec.models.reference import RepoFile, choose_files, parse_file_name

__all__ = [
    "LeftoverFile",
    "LocalModel",
    "find",
    "find_leftovers",
    "iter_files",
    "list_models",
    "mark_verified",
    "remove",
]

_CHUNK_BYTES = 1 << 20


def models_folder() -> Path | None:
    """Set by --models-dir, LOCALSPEC_MODELS_DIR or config.toml."""
    return config.load_lenient().models_folder


def iter_files() -> Iterator[LocalModel]:
    """Every model file, each path once; the hub's cache and the models folder first."""
    record = checksum_cache.load()
    seen: set[str] = set()
    for model in _iter_all(record):
        if str(model.path) not in seen:
            seen.add(str(model.path))
            yield model


def _iter_all(record: checksum_cache.ChecksumRecord) -> Iterator[LocalModel]:
    yield from hub_snapshots.iter_files(hub_cache.cache_root(), record)
    folder = models_folder()
    for path in walk_files(folder, depth=5) if folder else ():
        if folder and path.suffix == ".gguf" and (file_stat := stat_gguf(path)):
            yield other_apps.model_from_path(path, folder, file_stat, record, "folder")
    yield from other_apps.iter_files(record)


def list_models() -> tuple[LocalModel, ...]:
    """The complete models; the splits of one model are joined to one entry."""
    splits_by_model: dict[tuple[Path, str, int], list[LocalModel]] = {}
    for file in iter_files():
        name = parse_file_name(file.path.name)
        splits_by_model.setdefault((file.path.parent, name.stem, name.count), []).append(file)
    return tuple(
        model for splits in splits_by_model.values() if (model := _join_split_files(splits))
    )


def _join_split_files(splits: list[LocalModel]) -> LocalModel | None:
    """None if a split is missing."""
    count = parse_file_name(splits[0].path.name).count
    if count == 1:
        return splits[0]
    splits.sort(key=lambda split: parse_file_name(split.path.name).index)
    if [parse_file_name(s.path.name).index for s in splits] != list(range(1, count + 1)):
        return None
    return replace(
        splits[0],
        size=sum(split.size for split in splits),
        verified=all(split.verified for split in splits),
        removable=all(split.removable for split in splits),
        parts=tuple(split.path for split in splits),
    )


def find(repo: str, path: str, revision: str | None = None) -> LocalModel | None:
    """A local file of a repository; with `revision`, only of that commit, branch or tag."""
    if not safe_names.is_repo_id(repo) or not safe_names.is_safe_path(path):
        return None
    commit = revision
    if revision and not safe_names.COMMIT_HASH.fullmatch(revision):
        cached = hub_cache.find_cached(hub_cache.cache_root(), repo, revision, path)
        if cached is None:
            return None
        commit = cached.relative_to(hub_cache.repo_folder(hub_cache.cache_root(), repo)).parts[1]
    for model in iter_files():
        if (model.repo, model.file) == (repo, path) and commit in (None, model.revision):
            return model
    return None


def find_model(repo: str, tag: str | None = None) -> LocalModel | None:
    """The local model that `repo:tag` selects, without the hub."""
    models = [model for model in list_models() if model.repo == repo]
    files = [RepoFile(name, 0) for model in models for name in _repo_file_names(model)]
    try:
        first = choose_files(files, tag)[0].path
    except NotFoundError:
        return None
    return next((model for model in models if model.file == first), None)


def _repo_file_names(model: LocalModel) -> list[str]:
    folder, slash, _ = model.file.rpartition("/")
    return [f"{folder}{slash}{path.name}" for path in model.parts or (Path(model.file),)]


def verify(
    model: LocalModel,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    sha256: str | None = None,
) -> bool:
    """Whether the file's contents match `sha256`, or the model's known checksum.

    `on_progress` receives the bytes read and their total; an exception from it stops the reading.
    Raises NotFoundError if no checksum is known, StorageError if the file cannot be read.
    """
    expected = sha256 or model.sha256
    if expected is None or len(model.parts) > 1:
        raise NotFoundError(
            f"No checksum is known for {model.file}.", "Pull the model: that verifies it."
        )
    actual = compute_sha256(model.path, on_progress)
    if actual == expected:
        mark_verified(model.path, actual)
    else:
        checksum_cache.discard(Path(os.path.realpath(model.path)))
    return actual == expected


def compute_sha256(
    path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """Raises StorageError if the file cannot be read."""
    hasher, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
                done += len(chunk)
                on_progress(done, total)
    except OSError as error:
        message = f"{path.name} cannot be read: {error.strerror}."
        raise StorageError(message, "Check its permissions.") from error
    return hasher.hexdigest()


def mark_verified(path: Path, sha256: str) -> None:
    """Record the checksum of a file that was just hashed."""
    file_stat = stat_gguf(path)
    if file_stat is not None:
        checksum_cache.save(file_stat, sha256)


def remove(model: LocalModel) -> int:
    """Delete all files of a model; returns the freed bytes.  Raises StorageError."""
    if not model.removable:
        owner = {"lmstudio": "LM Studio", "ollama": "Ollama"}.get(model.origin, model.origin)
        raise StorageError(f"{model.file} belongs to {owner} or another user.", "Remove it there.")
    if model.origin == "hub":
        return hub_snapshots.remove(hub_cache.cache_root(), model)
    freed = 0
    try:
        for path in model.parts or (model.path,):
            freed += 0 if path.is_symlink() else path.stat().st_size
            path.unlink()
            checksum_cache.discard(path)
    except OSError as error:
        message = f"{model.file} cannot be removed: {error.strerror}."
        raise StorageError(message, "Check its permissions.") from error
    return freed


def find_leftovers() -> tuple[LeftoverFile, ...]:
    """Unused files of earlier downloads in the hub's cache."""
    return tuple(hub_snapshots.find_leftovers(hub_cache.cache_root()))


def delete_leftovers(leftovers: Sequence[LeftoverFile]) -> int:
    """Returns the freed bytes; files that cannot be deleted are skipped."""
    freed = 0
    for leftover in leftovers:
        try:
            leftover.path.unlink()
        except OSError:
            continue
        freed += leftover.size
    return freed
