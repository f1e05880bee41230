"""The model files of the hub's cache: listing, removal, and leftovers of downloads.

The layout is the hub library's (and llama.cpp's): snapshots/<commit>/<file> links to
blobs/<sha256>, or is the file itself on systems without links.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import StorageError
from localspec.models import safe_names
from localspec.models.hub import hub_cache
from localspec.models.local_files import checksum_cache
from localspec.models.local_files.local_model import (
    GgufFileStat,
    LocalModel,
    ModelOrigin,
    scan_folder,
    stat_gguf,
    walk_files,
)
from localspec.models.reference import is_safe_gguf_path

_DIGEST = re.compile(r"[0-9a-f]{64}")
_HUB_PARTIAL_NAME = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})\.[0-9a-f]{8}\.incomplete")
_OUR_PARTIAL_NAME = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})" + re.escape(hub_cache.PARTIAL_SUFFIX))
_ACTIVE_SECONDS = 600.0
"""A partial file that was modified within these seconds belongs to a running download."""


@dataclass(frozen=True, slots=True)
class LeftoverFile:
    """A partial download, or a blob that no snapshot uses."""

    path: Path
    size: int
    age_s: float
    resumable: bool
    """Whether the next pull resumes from it."""


def iter_repos(cache: Path) -> Iterator[tuple[str, Path]]:
    """The repositories of a cache and their folders; links and other names are skipped."""
    for entry in scan_folder(cache):
        repo = entry.name.removeprefix("models--").replace("--", "/")
        is_repo = entry.name.startswith("models--") and safe_names.is_repo_id(repo)
        if is_repo and entry.is_dir(follow_symlinks=False):
            yield repo, Path(entry.path)


def iter_files(
    cache: Path, record: checksum_cache.ChecksumRecord, origin: ModelOrigin = "hub"
) -> Iterator[LocalModel]:
    """The model files of all commits of a cache; a repository's current commit comes first."""
    for repo, folder in iter_repos(cache):
        for commit in _list_commits(folder):
            top = folder / "snapshots" / commit
            for path in walk_files(top, depth=8):
                name = path.relative_to(top).as_posix()
                if is_safe_gguf_path(name) and (file_stat := stat_gguf(path, cache)):
                    yield _local_model(path, file_stat, record, (repo, name, commit, origin))


def _local_model(
    path: Path,
    file_stat: GgufFileStat,
    record: checksum_cache.ChecksumRecord,
    source: tuple[str, str, str, ModelOrigin],
) -> LocalModel:
    """`source` is the repository, the file's name in it, the commit and the origin."""
    repo, name, commit, origin = source
    real_name = file_stat.real_path.name
    blob = real_name if _DIGEST.fullmatch(real_name) else None
    actual = checksum_cache.lookup(record, file_stat)
    return LocalModel(
        path=path,
        size=file_stat.size,
        repo=repo,
        file=name,
        revision=commit,
        sha256=blob or actual,
        verified=actual is not None and actual == (blob or actual),
        origin=origin,
        removable=origin == "hub" and file_stat.is_owned,
    )


def _list_commits(folder: Path) -> list[str]:
    """The commits with a snapshot: that of `main` first, then the newest."""
    main = _main_commit(folder)

    def rank(entry: os.DirEntry[str]) -> tuple[bool, float]:
        try:
            return entry.name != main, -entry.stat(follow_symlinks=False).st_mtime
        except OSError:
            return True, 0.0

    snapshots = [
        entry
        for entry in scan_folder(folder / "snapshots")
        if safe_names.COMMIT_HASH.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
    ]
    return [entry.name for entry in sorted(snapshots, key=rank)]


def _main_commit(folder: Path) -> str:
    try:
        with (folder / "refs" / "main").open("rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def remove(cache: Path, model: LocalModel) -> int:
    """Delete a model's files, and their blobs unless other snapshots use them.

    Returns the freed bytes.  Links are never followed: only paths inside the repository's own
    folder are deleted.  Raises StorageError.
    """
    if model.repo is None:
        raise StorageError(f"{model.file} belongs to no repository.", "Delete the file yourself.")
    folder = hub_cache.repo_folder(cache, model.repo)
    freed = 0
    try:
        for path in model.parts or (model.path,):
            if not path.is_relative_to(folder / "snapshots"):
                raise StorageError(f"{path} is not in this cache.", "Delete it yourself.")
            freed += _unlink(folder, path)
        _remove_empty_folders(folder)
    except OSError as error:
        message = f"{model.file} cannot be removed: {error.strerror}."
        raise StorageError(message, "Check its permissions.") from error
    return freed


def _unlink(folder: Path, path: Path) -> int:
    if not path.is_symlink():
        size = path.stat().st_size
        path.unlink()
        checksum_cache.discard(path)
        return size
    blob = folder / "blobs" / Path(os.readlink(path)).name
    path.unlink()
    if blob.is_symlink() or not blob.is_file() or blob in _referenced_blobs(folder):
        return 0  # a blob shared between repositories, or still in use
    size = blob.stat().st_size
    blob.unlink()
    checksum_cache.discard(blob)
    return size


def _referenced_blobs(folder: Path) -> set[Path]:
    """The blobs that snapshots link to."""
    links = (path for path in walk_files(folder / "snapshots", depth=9) if path.is_symlink())
    return {folder / "blobs" / Path(os.readlink(link)).name for link in links}


def _remove_empty_folders(folder: Path) -> None:
    """Remove empty folders; without a snapshot left, the refs and the repository's folder too."""
    snapshots = folder / "snapshots"
    for here, _, _ in os.walk(snapshots, topdown=False):
        with suppress(OSError):
            os.rmdir(here)
    if snapshots.exists():
        return
    for ref in walk_files(folder / "refs", depth=4):
        ref.unlink()
    for name in ("refs", "blobs", ""):
        with suppress(OSError):
            os.rmdir(folder / name)


def find_leftovers(cache: Path, now: float | None = None) -> Iterator[LeftoverFile]:
    """Partial downloads and unused blobs, except those of running downloads."""
    now = time.time() if now is None else now
    for _, folder in iter_repos(cache):
        used: set[Path] | None = None
        for entry in scan_folder(folder / "blobs"):
            if not entry.is_file(follow_symlinks=False):
                continue
            status = entry.stat(follow_symlinks=False)
            resumable = bool(_OUR_PARTIAL_NAME.fullmatch(entry.name))
            if not resumable and not _HUB_PARTIAL_NAME.fullmatch(entry.name):
                used = _referenced_blobs(folder) if used is None else used
                if Path(entry.path) in used or not _DIGEST.fullmatch(entry.name):
                    continue
            age = now - status.st_mtime
            if age >= _ACTIVE_SECONDS:
                yield LeftoverFile(Path(entry.path), status.st_size, age, resumable)
