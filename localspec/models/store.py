"""The model files on this computer, wherever they lie: the hub's cache, the models folder, and
read-only those of LM Studio, Ollama and llama.cpp."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from localspec import config
from localspec.errors import AccessError, NotFoundError
from localspec.models import names
from localspec.models.disk import neighbours, snapshots, verified
from localspec.models.disk.snapshots import Orphan
from localspec.models.disk.stored import Stored, below, look
from localspec.models.hub import hubcache
from localspec.models.reference import RemoteFile, choose, part

__all__ = ["Orphan", "Stored", "files", "find", "listing", "mark_verified", "orphans", "remove"]

_CHUNK = 1 << 20


def models_folder() -> Path | None:
    """The folder that --models-dir, LOCALSPEC_MODELS_DIR or config.toml names."""
    return config.so_far().models_folder


def files() -> Iterator[Stored]:
    """Every model file, each path once; what belongs to us first."""
    record = verified.known()
    seen: set[str] = set()
    for stored in _all(record):
        if str(stored.path) not in seen:
            seen.add(str(stored.path))
            yield stored


def _all(record: verified.Record) -> Iterator[Stored]:
    yield from snapshots.files(hubcache.root(), record)
    folder = models_folder()
    for path in below(folder, depth=5) if folder else ():
        if folder and path.suffix == ".gguf" and (about := look(path)):
            yield neighbours.plain(path, folder, about, record, "folder")
    yield from neighbours.files(record)


def listing() -> tuple[Stored, ...]:
    """What can be run: the parts of one model are one, and one whose parts are not all there is
    left out."""
    wholes: dict[tuple[Path, str, int], list[Stored]] = {}
    for stored in files():
        about = part(stored.path.name)
        wholes.setdefault((stored.path.parent, about.stem, about.count), []).append(stored)
    return tuple(whole for parts in wholes.values() if (whole := _whole(parts)))


def _whole(parts: list[Stored]) -> Stored | None:
    count = part(parts[0].path.name).count
    if count == 1:
        return parts[0]
    parts.sort(key=lambda one: part(one.path.name).index)
    if [part(one.path.name).index for one in parts] != list(range(1, len(parts) + 1)):
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


def find(repo: str, path: str, revision: str | None = None) -> Stored | None:
    """A file of a repository that is here; with `revision` of that commit, branch or tag only."""
    if not names.is_repo(repo) or not names.is_safe(path):
        return None
    commit = revision
    if revision and not names.COMMIT.fullmatch(revision):
        kept = hubcache.kept(hubcache.root(), repo, revision, path)
        if kept is None:
            return None
        commit = kept.relative_to(hubcache.folder(hubcache.root(), repo)).parts[1]
    for stored in files():
        if (stored.repo, stored.file) == (repo, path) and commit in (None, stored.revision):
            return stored
    return None


def here(repo: str, tag: str | None = None) -> Stored | None:
    """What `repo:tag` means of the files that are here: a reference resolved without the hub."""
    own = [one for one in listing() if one.repo == repo]
    known: Sequence[RemoteFile] = [RemoteFile(p, 0) for one in own for p in _names(one)]
    try:
        first = choose(known, tag)[0].path
    except NotFoundError:
        return None
    return next((one for one in own if one.file == first), None)


def _names(stored: Stored) -> list[str]:
    """Its files as the repository calls them."""
    folder, slash, _ = stored.file.rpartition("/")
    return [f"{folder}{slash}{path.name}" for path in stored.parts or (Path(stored.file),)]


def verify(
    stored: Stored,
    say: Callable[[int, int], None] = lambda done, total: None,
    sha256: str | None = None,
) -> bool:
    """Read the whole file: are its contents those of `sha256`, or of its name in the hub's cache?

    `say` hears bytes done and all; what it raises ends the reading.  Raises NotFoundError where
    nothing is known to compare with, AccessError where the file cannot be read.
    """
    expected = sha256 or stored.sha256
    if expected is None or len(stored.parts) > 1:
        raise NotFoundError(
            f"What {stored.file} should hold is not known here.", "Pull it: that checks it."
        )
    found = digest(stored.path, say)
    if found == expected:
        mark_verified(stored.path, found)
    else:
        verified.forget(Path(os.path.realpath(stored.path)))
    return found == expected


def digest(path: Path, say: Callable[[int, int], None] = lambda done, total: None) -> str:
    """The sha256 of a file.  Raises AccessError."""
    hashed, done = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            while piece := file.read(_CHUNK):
                hashed.update(piece)
                done += len(piece)
                say(done, total)
    except OSError as error:
        what = f"{path.name} cannot be read: {error.strerror}."
        raise AccessError(what, "Check its permissions.") from error
    return hashed.hexdigest()


def mark_verified(path: Path, sha256: str) -> None:
    """Remember that a file's contents were hashed, as they are now."""
    about = look(path)
    if about is not None:
        verified.note(about, sha256)


def remove(stored: Stored) -> int:
    """Take a file (all its parts) away; the bytes that are free now.  Raises AccessError."""
    if not stored.removable:
        owner = {"lmstudio": "LM Studio", "ollama": "Ollama"}.get(stored.where, stored.where)
        raise AccessError(
            f"{stored.file} belongs to {owner} or to somebody else.", "Remove it there."
        )
    if stored.where == "hub":
        return snapshots.remove(hubcache.root(), stored)
    freed = 0
    try:
        for path in stored.parts or (stored.path,):
            freed += 0 if path.is_symlink() else path.stat().st_size
            path.unlink()
            verified.forget(path)
    except OSError as error:
        what = f"{stored.file} cannot be removed: {error.strerror}."
        raise AccessError(what, "Check its permissions.") from error
    return freed


def orphans() -> tuple[Orphan, ...]:
    """What downloads left behind."""
    return tuple(snapshots.orphans(hubcache.root()))


def sweep(left: Sequence[Orphan]) -> int:
    """Take them away; the bytes that are free now."""
    freed = 0
    for orphan in left:
        try:
            orphan.path.unlink()
        except OSError:
            continue
        freed += orphan.size
    return freed
