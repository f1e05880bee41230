"""The file that a download fills: hashed while it is written, kept for the next try."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from localspec.errors import DownloadError, ModelFileError, StorageError
from localspec.models.hub.network_errors import LOGIN_HINT
from localspec.models.reference import RepoFile

_MAGIC = b"GGUF"
_READ_BYTES = 1 << 20


class PartialFile:
    """Appends received bytes; `n_bytes` of them are in the file and in the hash."""

    def __init__(self, path: Path, file: RepoFile) -> None:
        """Open or create it.

        Raises StorageError for a device or another user's file, OSError for a link.
        """
        self.n_bytes = 0
        self._path = path
        self._file = file
        self._hasher = self._new_hasher()
        self._handle = _open_regular_file(path)

    @property
    def is_full(self) -> bool:
        return self.n_bytes >= self._file.size

    @property
    def digest(self) -> str:
        return self._hasher.hexdigest()

    def read_existing(self, on_bytes_read: Callable[[int], None]) -> None:
        """Hash what an earlier download left.

        `on_bytes_read` receives the bytes read so far; an exception from it stops the
        reading.
        """
        if os.fstat(self._handle).st_size > self._file.size:
            os.ftruncate(self._handle, 0)
        while block := os.read(self._handle, _READ_BYTES):
            self._hasher.update(block)
            self.n_bytes += len(block)
            on_bytes_read(self.n_bytes)

    def append(self, chunk: bytes) -> None:
        """Write what the file still lacks of a chunk.

        Raises DownloadError or ModelFileError if the first bytes are not a GGUF file's.
        """
        if self.n_bytes == 0:
            self._check_first_chunk(chunk)
        chunk = chunk[: self._file.size - self.n_bytes]
        unwritten = memoryview(chunk)
        while unwritten:
            n_written = os.write(self._handle, unwritten)
            unwritten = unwritten[n_written:]
        self._hasher.update(chunk)
        self.n_bytes += len(chunk)

    def restart(self) -> None:
        """Discard all bytes."""
        os.ftruncate(self._handle, 0)
        os.lseek(self._handle, 0, os.SEEK_SET)
        self.n_bytes = 0
        self._hasher = self._new_hasher()

    def sync(self) -> None:
        """Make the bytes survive a power failure."""
        os.fsync(self._handle)

    def close(self) -> None:
        """The file stays, unless it is empty."""
        is_empty = os.fstat(self._handle).st_size == 0
        os.close(self._handle)
        if is_empty:
            self._path.unlink(missing_ok=True)

    def _new_hasher(self) -> hashlib._Hash:
        """For sha256, or git's sha1 of a blob, by the digest's length."""
        if self._file.sha256:
            return hashlib.sha256()
        header = b"blob %d\0" % self._file.size
        return hashlib.sha1(header, usedforsecurity=False)

    def _check_first_chunk(self, chunk: bytes) -> None:
        if chunk.startswith(_MAGIC[: len(chunk)]):
            return
        name = self._file.path
        if chunk.lstrip()[:1] == b"<":
            raise DownloadError(
                f"The server sent a web page instead of {name}.", LOGIN_HINT
            )
        raise ModelFileError(f"{name} is not a GGUF file.", "Choose another file.")


def _open_regular_file(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT
    for name in ("O_NOFOLLOW", "O_BINARY", "O_CLOEXEC", "O_NONBLOCK"):
        flags |= getattr(os, name, 0)  # no system has all of them
    handle = os.open(path, flags, 0o644)
    status = os.fstat(handle)
    is_foreign = hasattr(os, "geteuid") and status.st_uid != os.geteuid()
    if is_foreign or not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise StorageError(
            f"{path} belongs to another user or is not a regular file.", "Remove it."
        )
    return handle
