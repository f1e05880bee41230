"""Where files lie in the cache that all users of the hub share, and how one gets its final name."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import ChecksumError, StorageError
from localspec.models import safe_names
from localspec.models.hub.cancellation import POLL_INTERVAL, CancelToken

PARTIAL_SUFFIX = ".localspec.part"
"""Ends the name of a file on its way; not `.incomplete`, which other cleaners sweep away."""
_RESERVE_BYTES = 512 << 20
_MAX_FAT32_BYTES = (1 << 32) - 1
"""The most bytes that a file may have on FAT32."""
_CACHEDIR_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache; see bford.info/cachedir.\n"
)


def cache_root() -> Path:
    """The cache of the hub's library, found as that finds it, without its import."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if chosen := os.environ.get(name):
            return _expand_path(chosen)
    if home := os.environ.get("HF_HOME"):
        return _expand_path(home) / "hub"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expand_path(cache) / "huggingface" / "hub"


def repo_folder(cache: Path, repo: str) -> Path:
    """Of one repository."""
    return cache / f"models--{repo.replace('/', '--')}"


def find_cached(cache: Path, repo: str, revision: str, path: str) -> Path | None:
    """The file under its final name, if it is there; asks nobody."""
    at = repo_folder(cache, repo)
    commit = revision
    if not safe_names.COMMIT_HASH.fullmatch(revision):
        try:
            commit = (at / "refs" / revision).read_text("ascii").strip()
        except (OSError, ValueError):
            return None
    if not safe_names.COMMIT_HASH.fullmatch(commit):
        return None
    found = at / "snapshots" / commit / path
    return found if found.is_file() else None


@dataclass(frozen=True, slots=True)
class CachedFile:
    """Where one file of one commit lies."""

    cache: Path
    repo: str
    commit: str
    path: str
    digest: str
    size: int

    @property
    def repo_folder(self) -> Path:
        return repo_folder(self.cache, self.repo)

    @property
    def blob_path(self) -> Path:
        return self.repo_folder / "blobs" / self.digest

    @property
    def partial_path(self) -> Path:
        return self.blob_path.with_name(self.digest + PARTIAL_SUFFIX)

    @property
    def pointer_path(self) -> Path:
        """The final name."""
        return self.repo_folder / "snapshots" / self.commit / self.path

    @contextmanager
    def lock(self, cancel: CancelToken, on_busy: Callable[[], None]) -> Iterator[None]:
        """Under the hub's own lock of this blob; `busy` while another has it."""
        from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415  200 ms

        lock = self.cache / ".locks" / self.repo_folder.name / f"{self.digest}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            while True:
                try:
                    held.enter_context(WeakFileLock(lock, timeout=POLL_INTERVAL))
                    break
                except TimeoutError:
                    on_busy()
                    cancel.raise_if_cancelled()
            yield

    def create_folders(self) -> None:
        """Make the folders.  Raises AccessError where links in them lead elsewhere."""
        for parent in (self.blob_path.parent, self.pointer_path.parent):
            inside = Path(os.path.realpath(self.repo_folder))
            if not Path(os.path.realpath(parent)).is_relative_to(inside):
                raise StorageError(
                    f"{parent} leads out of the cache.", "Remove the link that stands there."
                )
            parent.mkdir(parents=True, exist_ok=True)
        tag = self.cache / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_CACHEDIR_TAG, "ascii")

    def adopt_existing(self) -> bool:
        """Whether the whole file is here already, then under its final name too.

        One that was cut short becomes the beginning of the download.
        """
        for found in (self.blob_path, self.pointer_path):
            if not found.is_file():
                continue
            size = found.stat().st_size
            if size == self.size:
                self._create_pointer()
                return True
            if size > self.size:  # the hub may be wrong about it: nothing here is thrown away
                raise ChecksumError(
                    f"{found} has {size} bytes, and the hub says {self.size}.",
                    "If it is damaged, remove it and download it again.",
                )
            if found.is_symlink() or self.partial_path.exists():
                found.unlink()
            else:
                os.replace(found, self.partial_path)
        return self._reuse_other_commit()

    def delete(self) -> None:
        """What lies there is wrong."""
        for path in (self.pointer_path, self.blob_path):
            path.unlink(missing_ok=True)

    def check_disk_space(self) -> None:
        """Raise AccessError where the rest does not fit on the disk, or the file on its system."""
        have = self.partial_path.stat().st_size if self.partial_path.exists() else 0
        needed = max(0, self.size - have)
        free = shutil.disk_usage(self.partial_path.parent).free
        if needed and free < needed + min(_RESERVE_BYTES, self.size // 16):
            raise StorageError(
                (
                    f"{self.path} needs {_format_gb(needed)} more, "
                    f"and {self.cache} has {_format_gb(free)} free."
                ),
                "Free some space, or set HF_HUB_CACHE to a folder on another disk.",
            )
        if self.size > _MAX_FAT32_BYTES:
            self._check_max_file_size(have)

    def publish(self) -> None:
        """The whole, verified part gets its final name; every step leaves a state to go on from."""
        os.replace(self.partial_path, self.blob_path)
        _sync_folder(self.blob_path.parent)
        self._create_pointer()

    def write_ref(self, revision: str) -> None:
        """Remember which commit a branch or tag meant."""
        if revision == self.commit:
            return
        ref = self.repo_folder / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        fresh = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
        fresh.write_text(self.commit, "ascii")
        os.replace(fresh, ref)

    def _reuse_other_commit(self) -> bool:
        """The same file of another commit, where no links are there that would share it."""
        for twin in (self.repo_folder / "snapshots").glob(f"*/{self.path}"):
            if twin.is_symlink() or twin.stat().st_size != self.size:
                continue
            with twin.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != self.digest:
                    continue
            self.partial_path.unlink(missing_ok=True)
            try:
                self.partial_path.hardlink_to(twin)
            except (OSError, NotImplementedError):
                shutil.copyfile(twin, self.partial_path)
            self.publish()
            return True
        return False

    def _check_max_file_size(self, have: int) -> None:
        """FAT32 refuses the length at once; others note it without writing."""
        with self.partial_path.open("ab") as file:
            try:
                file.truncate(self.size)
            finally:
                file.truncate(have)

    def _create_pointer(self) -> None:
        """The final name leads to the blob, or is the blob itself where there are no links."""
        if not self.blob_path.exists() or _is_same_file(self.pointer_path, self.blob_path):
            return
        fresh = self.pointer_path.with_name(f"{self.digest[:16]}.{os.getpid()}.tmp")
        with suppress(FileNotFoundError):
            fresh.unlink()
        try:
            if os.environ.get("HF_HUB_DISABLE_SYMLINKS", "").upper() in {"1", "ON", "YES", "TRUE"}:
                raise NotImplementedError
            fresh.symlink_to(os.path.relpath(self.blob_path, self.pointer_path.parent))
            os.replace(fresh, self.pointer_path)
        except (OSError, NotImplementedError):
            os.replace(self.blob_path, self.pointer_path)
        _sync_folder(self.pointer_path.parent)


@contextmanager
def explain_disk_errors(cache: Path) -> Iterator[None]:
    """What the disk refuses, in words."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise _disk_error(error, cache) from error


def _disk_error(error: OSError, cache: Path) -> StorageError:
    where = error.filename or cache
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        whose = "Your quota on the disk" if error.errno == errno.EDQUOT else "The disk"
        return StorageError(
            f"{whose} of {cache} is full.",
            "Free some space and try again: it goes on from there.",
        )
    if error.errno == errno.EFBIG:
        return StorageError(
            f"The disk of {cache} cannot hold a file of that size.",
            "FAT32 ends at 4 GB: set HF_HUB_CACHE to a folder on another disk.",
        )
    if error.errno == errno.ELOOP:
        return StorageError(f"{where} is a link.", "Remove it: a download writes to no links.")
    return StorageError(
        f"{where} cannot be written: {error.strerror}.", "Check the disk and its permissions."
    )


def _sync_folder(directory: Path) -> None:
    """Make a rename last through a power loss; Windows has no such call."""
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _expand_path(path: str) -> Path:
    return Path(os.path.expandvars(os.path.expanduser(path)))


def _format_gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.2f} GB"
