"""One file of a commit in the hub's cache: its paths, and the way to its name.

The steps are ours, because `hf_hub_download` gives a file its final name without
checking its sha256, and links one only after a request to the hub. The layout is the
library's, which other programs share (`localspec/models/local_files/hub_cache.py`).
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from localspec import data_files
from localspec.errors import ChecksumError, StorageError
from localspec.models.hub.cancellation import POLL_INTERVAL, CancelToken
from localspec.models.local_files import hub_cache
from localspec.models.local_files.local_model import verify_checksum
from localspec.models.reference import RepoFile

_CACHEDIR_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache; see bford.info/cachedir.\n"
_FAT32_LIMIT = 1 << 32


class DownloadJob(Struct, frozen=True):
    repo: str
    commit: str
    file: RepoFile
    ref: str | None = None  # The branch or tag that was resolved to the commit.


class CachedFile(Struct, frozen=True):
    cache: Path
    job: DownloadJob

    # --- paths

    @property
    def repo_folder(self) -> Path:
        return hub_cache.repo_folder(self.cache, self.job.repo)

    @property
    def blob_path(self) -> Path:
        return self.repo_folder / "blobs" / self.job.file.digest

    @property
    def partial_path(self) -> Path:
        return self.blob_path.with_name(self.job.file.digest + hub_cache.PARTIAL_SUFFIX)

    @property
    def pointer_path(self) -> Path:
        """The final name."""
        return self.repo_folder / "snapshots" / self.job.commit / self.job.file.path

    # --- before the download

    @contextmanager
    def lock(self, cancel: CancelToken, on_busy: Callable[[], None]) -> Iterator[None]:
        """Hold the hub library's lock of this blob.

        `on_busy` is called again and again while another program holds it.
        """
        from huggingface_hub.utils import WeakFileLock  # noqa: PLC0415  takes 200 ms to import

        folder = self.cache / ".locks" / self.repo_folder.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.job.file.digest}.lock"
        with ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(WeakFileLock(path, timeout=POLL_INTERVAL))
                    break
                except TimeoutError:
                    on_busy()
                    cancel.raise_if_cancelled()
            yield

    def create_folders(self) -> None:
        """Raises StorageError if a link leads out of the repository's folder.

        The folder itself and `blobs` may be links: users move them to another disk.
        """
        snapshot = self.pointer_path.parent
        real_snapshot = Path(os.path.realpath(snapshot))
        if not real_snapshot.is_relative_to(os.path.realpath(self.repo_folder)):
            raise StorageError(
                f"{snapshot} leads out of the cache.", "Remove this link."
            )
        self.blob_path.parent.mkdir(parents=True, exist_ok=True)
        snapshot.mkdir(parents=True, exist_ok=True)
        tag = self.cache / "CACHEDIR.TAG"
        if not tag.exists():
            tag.write_text(_CACHEDIR_TAG, "ascii")

    def adopt_existing(self) -> bool:
        """Whether a file of the right size exists; it then gets its final name too.

        A shorter file becomes the partial file of the download. Raises ChecksumError
        for a longer one.
        """
        for path in (self.blob_path, self.pointer_path):
            if not path.is_file():
                continue
            size = path.stat().st_size
            if size == self.job.file.size:
                self._create_pointer()
                return True
            if size > self.job.file.size:
                # Not deleted: the size that the hub gives may be wrong.
                raise ChecksumError(
                    f"{path} has {size} bytes, but {self.job.file.size} on the hub.",
                    "If it is damaged, remove it and download it again.",
                )
            if path.is_symlink() or self.partial_path.exists():
                path.unlink()
            else:
                os.replace(path, self.partial_path)
        return self._reuse_other_commit()

    def delete(self) -> None:
        self.pointer_path.unlink(missing_ok=True)
        self.blob_path.unlink(missing_ok=True)

    def check_disk_space(self) -> None:
        """Raise StorageError if the disk or its file system cannot hold the file."""
        file = self.job.file
        present = self.partial_path.stat().st_size if self.partial_path.exists() else 0
        needed = max(0, file.size - present)
        free = hub_cache.free_bytes(self.partial_path.parent)
        hub_cache.check_free_space(
            file.path, needed=needed, free=free, cache=self.cache
        )
        if file.size < _FAT32_LIMIT:
            return
        # FAT32 refuses the length at once; other file systems set it without writing.
        with self.partial_path.open("ab") as partial:
            try:
                partial.truncate(file.size)
            finally:
                partial.truncate(present)

    # --- after the download

    def publish(self) -> None:
        """Give the complete, verified file its final name.

        An interruption between two steps can be resumed.
        """
        os.replace(self.partial_path, self.blob_path)
        data_files.sync_folder(self.blob_path.parent)
        self._create_pointer()

    def write_ref(self) -> None:
        """Record that the branch or tag points to the commit."""
        if self.job.ref is None:
            return
        ref = self.repo_folder / "refs" / self.job.ref
        ref.parent.mkdir(parents=True, exist_ok=True)
        data_files.replace_file(ref, self.job.commit.encode("ascii"), mode=0o644)

    def _reuse_other_commit(self) -> bool:
        """Use the same file of another commit, if the cache has no links.

        Then a snapshot holds the file itself, so that commits do not share blobs.
        """
        snapshots = self.repo_folder / "snapshots"
        for candidate in snapshots.glob(f"*/{self.job.file.path}"):
            if candidate.is_symlink():
                continue
            if candidate.stat().st_size != self.job.file.size:
                continue
            if not verify_checksum(candidate, self.job.file.digest, lambda _: None):
                continue
            self.partial_path.unlink(missing_ok=True)
            try:
                self.partial_path.hardlink_to(candidate)
            except (OSError, NotImplementedError):
                shutil.copyfile(candidate, self.partial_path)
            self.publish()
            return True
        return False

    def _create_pointer(self) -> None:
        """Link the final name to the blob, or move the blob there without links."""
        if not self.blob_path.exists():
            return
        with suppress(OSError):
            if self.pointer_path.samefile(self.blob_path):
                return
        folder = self.pointer_path.parent
        temporary = folder / f"{self.job.file.digest[:16]}.tmp"
        temporary.unlink(missing_ok=True)  # A process that was killed has left it.
        try:
            if _are_links_disabled():
                raise NotImplementedError
            temporary.symlink_to(os.path.relpath(self.blob_path, folder))
            os.replace(temporary, self.pointer_path)
        except (OSError, NotImplementedError):
            os.replace(self.blob_path, self.pointer_path)
        data_files.sync_folder(folder)


def _are_links_disabled() -> bool:
    """Whether the user told the hub library to create no links."""
    value = os.environ.get("HF_HUB_DISABLE_SYMLINKS", "")
    return value.upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def explain_disk_errors(cache: Path) -> Iterator[None]:
    """Turn OSErrors of the system into StorageErrors."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise _storage_error(error, cache) from error


def _storage_error(error: OSError, cache: Path) -> StorageError:
    path = error.filename or cache
    resume_hint = "Free some space and try again: the download resumes."
    if error.errno == errno.ENOSPC:
        return StorageError(f"The disk of {cache} is full.", resume_hint)
    if error.errno == errno.EDQUOT:
        return StorageError(f"Your quota on the disk of {cache} is full.", resume_hint)
    if error.errno == errno.EFBIG:
        return StorageError(
            f"The disk of {cache} cannot hold a file of that size.",
            "FAT32 allows 4 GB per file: set HF_HUB_CACHE to a folder on another disk.",
        )
    if error.errno == errno.ELOOP:
        return StorageError(
            f"{path} is a link.", "Remove it: downloads do not write to links."
        )
    return StorageError(
        f"{path} cannot be read or written: {error.strerror}.",
        "Check the disk and its permissions.",
    )
