"""The files of the hub's cache: what is there, taking one away, and what was left behind.

The layout is the hub library's (and llama.cpp's): snapshots/<commit>/<file> leads to
blobs/<sha256>, or is the file itself where there are no links.
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
"""Seconds: what was written to lately belongs to a download that runs."""


@dataclass(frozen=True, slots=True)
class LeftoverFile:
    """What a download left: with `resumable` the next pull goes on from it."""

    path: Path
    size: int
    age_s: float
    resumable: bool


def iter_repos(cache: Path) -> Iterator[tuple[str, Path]]:
    """The repositories of a cache and their folders; links and other names are passed over."""
    for entry in scan_folder(cache):
        repo = entry.name.removeprefix("models--").replace("--", "/")
        named = entry.name.startswith("models--") and safe_names.is_repo_id(repo)
        if named and entry.is_dir(follow_symlinks=False):
            yield repo, Path(entry.path)


def iter_files(
    cache: Path, record: checksum_cache.ChecksumRecord, origin: ModelOrigin = "hub"
) -> Iterator[LocalModel]:
    """Every model file of a cache, of every commit, the newest commit of a repository first."""
    for repo, folder in iter_repos(cache):
        for commit in _list_commits(folder):
            top = folder / "snapshots" / commit
            for path in walk_files(top, depth=8):
                name = path.relative_to(top).as_posix()
                if is_safe_gguf_path(name) and (about := stat_gguf(path, cache)):
                    yield _local_model(path, about, record, (repo, name, commit, origin))


def _local_model(
    path: Path,
    about: GgufFileStat,
    record: checksum_cache.ChecksumRecord,
    said: tuple[str, str, str, ModelOrigin],
) -> LocalModel:
    repo, name, commit, where = said
    blob = about.real_path.name if _DIGEST.fullmatch(about.real_path.name) else None
    hashed = checksum_cache.lookup(record, about)
    return LocalModel(
        path=path,
        size=about.size,
        repo=repo,
        file=name,
        revision=commit,
        sha256=blob or hashed,
        verified=hashed is not None and hashed == (blob or hashed),
        origin=where,
        removable=where == "hub" and about.is_owned,
    )


def _list_commits(folder: Path) -> list[str]:
    """Those with a snapshot: what `main` means first, then the newest."""
    found = [
        e for e in scan_folder(folder / "snapshots") if safe_names.COMMIT_HASH.fullmatch(e.name)
    ]
    main = _main_commit(folder)

    def rank(entry: os.DirEntry[str]) -> tuple[bool, float]:
        try:
            return entry.name != main, -entry.stat(follow_symlinks=False).st_mtime
        except OSError:
            return True, 0.0

    own = [entry for entry in found if entry.is_dir(follow_symlinks=False)]
    return [entry.name for entry in sorted(own, key=rank)]


def _main_commit(folder: Path) -> str:
    try:
        with (folder / "refs" / "main").open("rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def remove(cache: Path, stored: LocalModel) -> int:
    """Take a file away, with its blob where no other name leads to it; the bytes that are free now.

    Nothing is deleted by where a link leads: only this repository's own names.
    Raises AccessError where that is not possible.
    """
    if stored.repo is None:
        raise StorageError(f"{stored.file} is of no repository.", "Remove the file by hand.")
    folder = hub_cache.repo_folder(cache, stored.repo)
    freed = 0
    try:
        for path in stored.parts or (stored.path,):
            if not path.is_relative_to(folder / "snapshots"):
                raise StorageError(f"{path} is not of this cache.", "Remove it by hand.")
            freed += _unlink(folder, path)
        _remove_empty_folders(folder)
    except OSError as error:
        what = f"{stored.file} cannot be removed: {error.strerror}."
        raise StorageError(what, "Check its permissions.") from error
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
        return 0  # one of the hub's shared blobs, or another name leads to it
    size = blob.stat().st_size
    blob.unlink()
    checksum_cache.discard(blob)
    return size


def _referenced_blobs(folder: Path) -> set[Path]:
    """The blobs that a snapshot's name leads to."""
    links = (path for path in walk_files(folder / "snapshots", depth=9) if path.is_symlink())
    return {folder / "blobs" / Path(os.readlink(link)).name for link in links}


def _remove_empty_folders(folder: Path) -> None:
    """Empty folders go; with the last snapshot what `refs` says of it."""
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
    """Parts of downloads that ended early, and blobs that no name leads to; not those of the last
    minutes."""
    now = time.time() if now is None else now
    for _, folder in iter_repos(cache):
        kept: set[Path] | None = None
        for entry in scan_folder(folder / "blobs"):
            if not entry.is_file(follow_symlinks=False):
                continue
            about = entry.stat(follow_symlinks=False)
            ours = bool(_OUR_PARTIAL_NAME.fullmatch(entry.name))
            if not ours and not _HUB_PARTIAL_NAME.fullmatch(entry.name):
                kept = _referenced_blobs(folder) if kept is None else kept
                if Path(entry.path) in kept or not _DIGEST.fullmatch(entry.name):
                    continue
            if now - about.st_mtime >= _ACTIVE_SECONDS:
                yield LeftoverFile(Path(entry.path), about.st_size, now - about.st_mtime, ours)
