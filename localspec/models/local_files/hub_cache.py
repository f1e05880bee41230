"""The hub's shared cache: its place, its model files, their removal, and leftovers.

The layout is the hub library's (and llama.cpp's): snapshots/<commit>/<file> links to
blobs/<sha256>, or is the file itself on systems without links.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import StorageError
from localspec.models.local_files.local_model import (
    ChecksumRecord,
    LocalModel,
    ModelOrigin,
    describe_file,
    discard_checksum,
    scan_folder,
    stat_gguf,
    walk_files,
)
from localspec.models.reference import COMMIT_HASH, is_repo_id, is_safe_gguf_path
from localspec.units import gb

PARTIAL_SUFFIX = ".localspec.part"
"""Suffix of partial files; not `.incomplete`, which the hub's own clean-up deletes."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_HUB_PARTIAL_NAME = re.compile(r"([0-9a-f]{40}|[0-9a-f]{64})\.[0-9a-f]{8}\.incomplete")
_ACTIVE_SECONDS = 600.0
"""A partial file that was modified within these seconds is of a running download."""


class LeftoverFile(Struct, frozen=True):
    """A file of a download that serves nothing.

    That is a partial download, a blob that no snapshot uses, or a split whose siblings
    are missing.
    """

    path: Path
    size: int
    resumable: bool  # Whether the next pull resumes from it.
    repo: str


def cache_root() -> Path:
    """The hub library's cache, by the same rules but without importing it."""
    get = os.environ.get
    root = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE")
    if not root:
        home = get("HF_HOME")
        if not home:
            home = os.path.join(get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
        root = os.path.join(home, "hub")
    return Path(os.path.expandvars(os.path.expanduser(root)))


def repo_folder(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"


def free_bytes(folder: Path) -> int:
    """Free space on the disk of a folder that may not exist yet."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_free_space(subject: str, needed: int, free: int, cache: Path) -> None:
    """Raise StorageError if a download of `needed` bytes would leave too little.

    512 MiB must stay free; for downloads below 8 GiB, 1/16 of their size.
    """
    reserve = min(512 << 20, needed // 16)
    if needed and free < needed + reserve:
        raise StorageError(
            f"{subject} needs {gb(needed)}, and {cache} has {gb(free)} free.",
            "Free some space, or set HF_HUB_CACHE to a folder on another disk.",
        )


def read_ref(repo_folder: Path, ref: str) -> str | None:
    """The commit that a branch or tag points to; None if it is unknown here."""
    try:
        with (repo_folder / "refs" / ref).open("rb") as file:
            commit = file.read(64).decode("ascii").strip()
    except (OSError, ValueError):
        return None
    return commit if COMMIT_HASH.fullmatch(commit) else None


def iter_repos(cache: Path) -> Iterator[tuple[str, Path]]:
    """The repositories of a cache and their folders.

    A folder may be a link to another disk.
    """
    for entry in scan_folder(cache):
        repo = entry.name.removeprefix("models--").replace("--", "/")
        is_repo = entry.name.startswith("models--") and is_repo_id(repo)
        if is_repo and os.path.isdir(entry.path):
            yield repo, Path(entry.path)


def iter_files(
    cache: Path, record: ChecksumRecord, origin: ModelOrigin = "hub"
) -> Iterator[LocalModel]:
    """The model files of all commits; a repository's current commit comes first."""
    for repo, folder in iter_repos(cache):
        own_folders = _own_folders(cache, folder)
        for commit in _list_commits(folder):
            top = folder / "snapshots" / commit
            for path in walk_files(top, depth=8):
                name = path.relative_to(top).as_posix()
                model = describe_file(path, record, origin, *own_folders)
                if model and is_safe_gguf_path(name):
                    yield replace(model, repo=repo, file=name, revision=commit)


def _own_folders(cache: Path, repo_folder: Path) -> tuple[Path, ...]:
    """Where the files of a repository may be.

    The user may have moved the last two and put links there.
    """
    return cache, repo_folder, repo_folder / "blobs"


def has_file(cache: Path, repo: str, path: Path, size: int) -> bool:
    """Whether a file of a repository is here, by the rule by which it is listed."""
    file_stat = stat_gguf(path, *_own_folders(cache, repo_folder(cache, repo)))
    return file_stat is not None and file_stat.size == size


def _list_commits(folder: Path) -> list[str]:
    """The commits with a snapshot: that of `main` first, then the newest."""
    main = read_ref(folder, "main")
    commits: list[tuple[bool, float, str]] = []
    for entry in scan_folder(folder / "snapshots"):
        if COMMIT_HASH.fullmatch(entry.name) and os.path.isdir(entry.path):
            with suppress(OSError):  # just removed
                age = -entry.stat(follow_symlinks=False).st_mtime
                commits.append((entry.name != main, age, entry.name))
    return [name for _, _, name in sorted(commits)]


def remove(cache: Path, model: LocalModel) -> int:
    """Delete a model's files in all commits that share them, and their blobs.

    A blob stays if it has another name too. Returns the freed bytes. Links are never
    followed: only paths inside the repository's own folder are deleted. Raises
    StorageError and OSError.
    """
    assert model.repo is not None
    folder = repo_folder(cache, model.repo)
    paths = model.parts or (model.path,)
    for path in paths:
        if not path.is_relative_to(folder / "snapshots"):
            raise StorageError(f"{path} is not in this cache.", "Delete it yourself.")
    freed = sum(_unlink(folder, path) for path in paths)
    _remove_empty_folders(folder)
    return freed


def _unlink(folder: Path, path: Path) -> int:
    """Delete one file of a repository; returns the freed bytes."""
    if not path.is_symlink():
        size = path.stat().st_size
        path.unlink()
        discard_checksum(path)
        return size
    blob = _linked_blob(folder, path)
    name = Path(*path.relative_to(folder / "snapshots").parts[1:])
    for commit in _list_commits(folder):
        link = folder / "snapshots" / commit / name
        if link.is_symlink() and _linked_blob(folder, link) == blob:
            link.unlink()
    if blob.is_symlink() or not blob.is_file() or blob in _referenced_blobs(folder):
        return 0  # a blob shared between repositories, or still in use
    size = blob.stat().st_size
    blob.unlink()
    discard_checksum(blob)
    return size


def _referenced_blobs(folder: Path) -> set[Path]:
    files = walk_files(folder / "snapshots", depth=9)
    return {_linked_blob(folder, path) for path in files if path.is_symlink()}


def _linked_blob(folder: Path, link: Path) -> Path:
    return folder / "blobs" / Path(os.readlink(link)).name


def _remove_empty_folders(folder: Path) -> None:
    """Remove empty folders.

    Without a snapshot left, the refs and the repository's folder go too.
    """
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


def find_leftovers(cache: Path) -> Iterator[LeftoverFile]:
    """Partial downloads and unused blobs, except those of running downloads."""
    now = time.time()
    for repo, folder in iter_repos(cache):
        used = _referenced_blobs(folder)
        for entry in scan_folder(folder / "blobs"):
            try:
                if not entry.is_file(follow_symlinks=False):
                    continue
                status = entry.stat(follow_symlinks=False)
            except OSError:  # just renamed or removed
                continue
            if now - status.st_mtime < _ACTIVE_SECONDS:
                continue
            path = Path(entry.path)
            is_ours = entry.name.endswith(PARTIAL_SUFFIX)
            is_librarys = _HUB_PARTIAL_NAME.fullmatch(entry.name) is not None
            is_unused = _DIGEST.fullmatch(entry.name) is not None and path not in used
            if is_ours or is_librarys or is_unused:
                yield LeftoverFile(path, status.st_size, resumable=is_ours, repo=repo)


def find_idle_splits(
    cache: Path, splits: Iterable[LocalModel]
) -> Iterator[LeftoverFile]:
    """Those of the splits in whose repository nothing is being downloaded."""
    now = time.time()
    for split in splits:
        assert split.repo is not None
        blobs = repo_folder(cache, split.repo) / "blobs"
        paths = [split.path, *(Path(entry.path) for entry in scan_folder(blobs))]
        with suppress(OSError):  # one was just renamed or removed
            newest = max(path.lstat().st_mtime for path in paths)
            if now - newest >= _ACTIVE_SECONDS:
                yield LeftoverFile(
                    split.path, split.size, resumable=True, repo=split.repo
                )


def delete_leftover(cache: Path, leftover: LeftoverFile) -> int:
    """Returns the freed bytes.  Raises OSError."""
    folder = cache / leftover.path.relative_to(cache).parts[0]
    if leftover.path.is_relative_to(folder / "snapshots"):
        freed = _unlink(folder, leftover.path)
        _remove_empty_folders(folder)
        return freed
    leftover.path.unlink()
    return leftover.size
