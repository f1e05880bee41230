"""The model files on this computer, wherever they lie: the hub's cache, the models folder, and
read-only those of LM Studio, Ollama and llama.cpp."""

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
    """The folder that --models-dir, LOCALSPEC_MODELS_DIR or config.toml names."""
    return config.load_lenient().models_folder


def iter_files() -> Iterator[LocalModel]:
    """Every model file, each path once; what belongs to us first."""
    record = checksum_cache.load()
    seen: set[str] = set()
    for stored in _iter_all(record):
        if str(stored.path) not in seen:
            seen.add(str(stored.path))
            yield stored


def _iter_all(record: checksum_cache.ChecksumRecord) -> Iterator[LocalModel]:
    yield from hub_snapshots.iter_files(hub_cache.cache_root(), record)
    folder = models_folder()
    for path in walk_files(folder, depth=5) if folder else ():
        if folder and path.suffix == ".gguf" and (about := stat_gguf(path)):
            yield other_apps.model_from_path(path, folder, about, record, "folder")
    yield from other_apps.iter_files(record)


def list_models() -> tuple[LocalModel, ...]:
    """What can be run: the parts of one model are one, and one whose parts are not all there is
    left out."""
    wholes: dict[tuple[Path, str, int], list[LocalModel]] = {}
    for stored in iter_files():
        about = parse_file_name(stored.path.name)
        wholes.setdefault((stored.path.parent, about.stem, about.count), []).append(stored)
    return tuple(whole for parts in wholes.values() if (whole := _join_split_files(parts)))


def _join_split_files(parts: list[LocalModel]) -> LocalModel | None:
    count = parse_file_name(parts[0].path.name).count
    if count == 1:
        return parts[0]
    parts.sort(key=lambda one: parse_file_name(one.path.name).index)
    if [parse_file_name(one.path.name).index for one in parts] != list(range(1, len(parts) + 1)):
        return None
    if len(parts) != count:
        return None
    return replace(
        parts[0],
        size=sum(one.size for one in parts),
        verified=all(one.verified for one in parts),
        removable=all(one.removable for one in parts),
        parts=tuple(one.path for one in parts),
    )


def find(repo: str, path: str, revision: str | None = None) -> LocalModel | None:
    """A file of a repository that is here; with `revision` of that commit, branch or tag only."""
    if not safe_names.is_repo_id(repo) or not safe_names.is_safe_path(path):
        return None
    commit = revision
    if revision and not safe_names.COMMIT_HASH.fullmatch(revision):
        kept = hub_cache.find_cached(hub_cache.cache_root(), repo, revision, path)
        if kept is None:
            return None
        commit = kept.relative_to(hub_cache.repo_folder(hub_cache.cache_root(), repo)).parts[1]
    for stored in iter_files():
        if (stored.repo, stored.file) == (repo, path) and commit in (None, stored.revision):
            return stored
    return None


def find_model(repo: str, tag: str | None = None) -> LocalModel | None:
    """What `repo:tag` means of the files that are here: a reference resolved without the hub."""
    own = [one for one in list_models() if one.repo == repo]
    known: Sequence[RepoFile] = [RepoFile(p, 0) for one in own for p in _repo_file_names(one)]
    try:
        first = choose_files(known, tag)[0].path
    except NotFoundError:
        return None
    return next((one for one in own if one.file == first), None)


def _repo_file_names(stored: LocalModel) -> list[str]:
    """Its files as the repository calls them."""
    folder, slash, _ = stored.file.rpartition("/")
    return [f"{folder}{slash}{path.name}" for path in stored.parts or (Path(stored.file),)]


def verify(
    model: LocalModel,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    sha256: str | None = None,
) -> bool:
    """Read the whole file: are its contents those of `sha256`, or of its name in the hub's cache?

    `say` hears bytes done and all; what it raises ends the reading.  Raises NotFoundError where
    nothing is known to compare with, AccessError where the file cannot be read.
    """
    expected = sha256 or model.sha256
    if expected is None or len(model.parts) > 1:
        raise NotFoundError(
            f"What {model.file} should hold is not known here.", "Pull it: that checks it."
        )
    found = compute_sha256(model.path, on_progress)
    if found == expected:
        mark_verified(model.path, found)
    else:
        checksum_cache.discard(Path(os.path.realpath(model.path)))
    return found == expected


def compute_sha256(
    path: Path, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> str:
    """The sha256 of a file.  Raises AccessError."""
    hashed, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            while piece := file.read(_CHUNK_BYTES):
                hashed.update(piece)
                done += len(piece)
                on_progress(done, total)
    except OSError as error:
        what = f"{path.name} cannot be read: {error.strerror}."
        raise StorageError(what, "Check its permissions.") from error
    return hashed.hexdigest()


def mark_verified(path: Path, sha256: str) -> None:
    """Remember that a file's contents were hashed, as they are now."""
    about = stat_gguf(path)
    if about is not None:
        checksum_cache.save(about, sha256)


def remove(model: LocalModel) -> int:
    """Take a file (all its parts) away; the bytes that are free now.  Raises AccessError."""
    if not model.removable:
        owner = {"lmstudio": "LM Studio", "ollama": "Ollama"}.get(model.origin, model.origin)
        raise StorageError(
            f"{model.file} belongs to {owner} or to somebody else.", "Remove it there."
        )
    if model.origin == "hub":
        return hub_snapshots.remove(hub_cache.cache_root(), model)
    freed = 0
    try:
        for path in model.parts or (model.path,):
            freed += 0 if path.is_symlink() else path.stat().st_size
            path.unlink()
            checksum_cache.discard(path)
    except OSError as error:
        what = f"{model.file} cannot be removed: {error.strerror}."
        raise StorageError(what, "Check its permissions.") from error
    return freed


def find_leftovers() -> tuple[LeftoverFile, ...]:
    """What downloads left behind."""
    return tuple(hub_snapshots.find_leftovers(hub_cache.cache_root()))


def delete_leftovers(leftovers: Sequence[LeftoverFile]) -> int:
    """Take them away; the bytes that are free now."""
    freed = 0
    for orphan in leftovers:
        try:
            orphan.path.unlink()
        except OSError:
            continue
        freed += orphan.size
    return freed
