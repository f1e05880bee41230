"""Transfers a file into its partial file: resumes earlier attempts, and hashes while writing."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from localspec.errors import (
    ChecksumError,
    DownloadError,
    ModelFileError,
    OfflineError,
    StorageError,
)
from localspec.models.hub.cached_file import CachedFile
from localspec.models.hub.cancellation import CancelToken, RetryableError
from localspec.models.hub.client import HubClient

_BLOCK_BYTES = 1 << 20
_MAGIC = b"GGUF"

ReportPhase = Callable[[str, int], None]
"""Receives the phase (`checking`, `loading`, `verifying`) and the bytes done."""


class RateLimiter:
    """Limits the bytes per second of all transfers that share it; None is no limit."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._next_free = 0.0

    def acquire(self, n_bytes: int, cancel: CancelToken) -> None:
        """Wait until `n_bytes` may pass.  Raises OperationCancelledError."""
        limit = self.limit
        if not limit:
            return
        with self._lock:
            now = monotonic()
            start = max(now, self._next_free)
            self._next_free = start + n_bytes / limit
        if start > now:
            cancel.sleep(start - now)


class ResumableTransfer:
    """Completes the partial file of a `CachedFile` and verifies its checksum."""

    def __init__(
        self,
        hub: HubClient,
        cached_file: CachedFile,
        report: ReportPhase,
        cancel: CancelToken,
        rate_limiter: RateLimiter,
    ) -> None:
        self._hub = hub
        self._job = cached_file.job
        self._file = cached_file.job.file
        self._partial_path = cached_file.partial_path
        self._report = report
        self._cancel = cancel
        self._rate_limiter = rate_limiter
        self._n_bytes = 0
        self._hasher = _new_hasher(self._file.digest, self._file.size)

    def run(self) -> None:
        """Raises ChecksumError after two downloads with a wrong checksum; nothing is kept then."""
        handle = _open_partial_file(self._partial_path)
        try:
            self._hash_existing_bytes(handle)
            for _ in range(2):
                self._download_rest(handle)
                self._report("verifying", self._n_bytes)
                if self._hasher.hexdigest() == self._file.digest:
                    os.fsync(handle)
                    return
                actual = self._hasher.hexdigest()
                self._start_over(handle)
            raise ChecksumError(
                f"{self._file.path} was damaged in two downloads: sha256 {actual[:12]}…, "
                f"not {self._file.digest[:12]}….",
                "Try again later, or on another network.",
            )
        finally:
            is_empty = os.fstat(handle).st_size == 0
            os.close(handle)
            if is_empty:
                self._partial_path.unlink(missing_ok=True)

    def _hash_existing_bytes(self, handle: int) -> None:
        if os.fstat(handle).st_size > self._file.size:
            os.ftruncate(handle, 0)
        while block := os.read(handle, _BLOCK_BYTES):
            self._cancel.raise_if_cancelled()
            self._hasher.update(block)
            self._n_bytes += len(block)
            self._report("checking", self._n_bytes)

    def _start_over(self, handle: int) -> None:
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        self._n_bytes = 0
        self._hasher = _new_hasher(self._file.digest, self._file.size)

    def _download_rest(self, handle: int) -> None:
        """Repeats requests up to the end of the file; progress resets the number of attempts.

        A hub that cannot be reached is retried only after it has sent something.
        """
        attempt, first = 1, self._n_bytes
        while (before := self._n_bytes) < self._file.size:
            try:
                self._request_rest(handle)
            except (RetryableError, OfflineError) as error:
                if isinstance(error, OfflineError) and self._n_bytes == first:
                    raise
                attempt = 1 if self._n_bytes > before else attempt
                self._cancel.sleep(
                    self._hub.retry_policy.delay_before_retry(attempt, self._with_progress(error))
                )
                attempt += 1

    def _with_progress(self, error: RetryableError | OfflineError) -> RetryableError:
        done, size = self._n_bytes / 1e9, self._file.size / 1e9
        message = f"{self._file.path} stopped at {done:.2f} of {size:.2f} GB. {error.message}"
        if isinstance(error, OfflineError):
            return RetryableError(message)
        return RetryableError(message, error.hint, error.retry_after)

    def _request_rest(self, handle: int) -> None:
        """One request.  Raises RetryableError if it does not reach the end of the file."""
        job, file = self._job, self._file
        location = job.repo, job.commit, file.path
        self._report("loading", self._n_bytes)
        with self._hub.open_stream(location, self._n_bytes, None, self._cancel) as stream:
            if stream.file_size not in (None, file.size):
                raise RetryableError(
                    f"The hub announced {file.size} bytes but sends {stream.file_size}."
                )
            if stream.start > self._n_bytes:
                raise RetryableError("The server skips bytes.")
            skip = self._n_bytes - stream.start  # not 0 if the server ignores Range
            for chunk in stream:
                new = chunk[skip:]
                skip = max(0, skip - len(chunk))
                self._rate_limiter.acquire(len(chunk), self._cancel)
                if new:
                    self._write_chunk(handle, new)
        if self._n_bytes < file.size:
            raise RetryableError("The connection ended early.")

    def _write_chunk(self, handle: int, chunk: bytes) -> None:
        if self._n_bytes == 0 and not chunk.startswith(_MAGIC[: len(chunk)]):
            raise _not_gguf_error(self._file.path, chunk)
        chunk = chunk[: self._file.size - self._n_bytes]
        unwritten = memoryview(chunk)
        while unwritten:
            unwritten = unwritten[os.write(handle, unwritten) :]
        self._hasher.update(chunk)
        self._n_bytes += len(chunk)
        self._report("loading", self._n_bytes)


def _new_hasher(expected: str, size: int) -> hashlib._Hash:
    """For sha256, or git's sha1 of a blob, by the digest's length."""
    if len(expected) == 64:
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _open_partial_file(path: Path) -> int:
    """Raises StorageError for a device or another user's file, OSError for a link."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(
        path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0), 0o644
    )
    status = os.fstat(handle)
    is_foreign = hasattr(os, "geteuid") and status.st_uid != os.geteuid()
    if is_foreign or not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise StorageError(
            f"{path} belongs to another user or is not a regular file.", "Remove it."
        )
    return handle


def _not_gguf_error(path: str, chunk: bytes) -> DownloadError | ModelFileError:
    if chunk.lstrip()[:1] == b"<":
        return DownloadError(
            f"The server sent a web page instead of {path}.",
            "The network may require a login: open any web page in a browser to see.",
        )
    return ModelFileError(f"{path} is not a GGUF file.", "Choose another file.")
