"""Downloads a hub file: resumable, and verified before it gets its final name."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from time import monotonic

from msgspec import Struct

from localspec.errors import (
    ChecksumError,
    DownloadError,
    LocalspecError,
    ModelFileError,
    OfflineError,
    StorageError,
)
from localspec.models import reference
from localspec.models.hub.cached_file import (
    CachedFile,
    DownloadJob,
    explain_disk_errors,
)
from localspec.models.hub.cancellation import CancelToken, RetryableError, wait_text
from localspec.models.hub.client import HubClient
from localspec.models.hub.response_stream import LOGIN_HINT
from localspec.models.local_files import hub_cache
from localspec.models.local_files.local_model import save_checksum, verify_checksum

_RATE_WINDOW_SECONDS = 5.0
_MIN_REPORT_INTERVAL = 0.1  # Seconds between two reports of the same phase.


class DownloadPhase(StrEnum):
    WAITING = "waiting"
    CHECKING = "checking"
    LOADING = "loading"
    VERIFYING = "verifying"
    DONE = "done"
    PAUSED = "paused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class DownloadState(Struct, frozen=True):
    job: DownloadJob
    phase: DownloadPhase = DownloadPhase.WAITING
    done_bytes: int = 0
    rate: float | None = None  # Bytes per second.
    eta: float | None = None  # Seconds.
    error: LocalspecError | None = None
    note: str = ""  # Why nothing arrives at the moment.
    path: Path | None = None  # The file, once it is done.


def download_file(
    hub: HubClient,
    job: DownloadJob,
    on_progress: Callable[[DownloadState], None] = lambda _: None,
    *,
    cancel: CancelToken | None = None,
    cache_dir: Path | None = None,
    rate_limiter: RateLimiter | None = None,
) -> Path:
    """The complete, verified file under its final name; needs no network if it is in
    the cache.

    Raises OperationCancelledError.  The received part is kept, and the next call resumes it.
    """
    reference.check_names(job.repo, job.commit, job.ref)
    reference.check_gguf_path(job.file.path)
    if not job.file.digest:
        hint = "The file cannot be verified, so it was not downloaded."
        raise DownloadError(f"The hub gives no checksum for {job.file.path}.", hint)
    cache, cancel = cache_dir or hub_cache.cache_root(), cancel or CancelToken()
    reporter, file = _ProgressReporter(job, on_progress), CachedFile(cache, job)

    def on_bytes_read(done: int) -> None:
        cancel.raise_if_cancelled()
        reporter.report("verifying", done)

    with (
        explain_disk_errors(cache),
        file.lock(cancel, lambda: reporter.report("waiting", 0)),
    ):
        file.create_folders()
        # git's are not checked again
        exists, sha256 = (
            file.adopt_existing(),
            job.file.sha256,
        )
        if not exists or (
            sha256 and not verify_checksum(file.pointer_path, sha256, on_bytes_read)
        ):
            hub.require_online()
            if exists:
                file.delete()
            file.check_disk_space()
            _Transfer(
                hub, file, reporter.report, cancel, rate_limiter or RateLimiter()
            ).run()
            file.publish()
            if sha256:
                save_checksum(file.pointer_path, sha256)
        file.write_ref()
    on_progress(
        DownloadState(job, DownloadPhase.DONE, job.file.size, path=file.pointer_path)
    )
    return file.pointer_path


class _ProgressReporter:
    """Reports the state of one job, at most ten times per second in the same phase."""

    def __init__(
        self, job: DownloadJob, on_progress: Callable[[DownloadState], None]
    ) -> None:
        self._state = DownloadState(job)
        self._on_progress = on_progress
        self._last_report = -_MIN_REPORT_INTERVAL
        self._samples: deque[tuple[float, int]] = deque()

    def report(self, phase: str, done: int, note: str = "") -> None:
        now = monotonic()
        rate = self._measure_rate(now, done) if phase == DownloadPhase.LOADING else None
        is_same = (phase, note) == (self._state.phase, self._state.note)
        if is_same and now - self._last_report < _MIN_REPORT_INTERVAL:
            return
        self._last_report = now
        job = self._state.job
        eta = (job.file.size - done) / rate if rate else None
        self._state = DownloadState(
            job, DownloadPhase(phase), done, rate, eta, note=note
        )
        self._on_progress(self._state)

    def _measure_rate(self, now: float, done: int) -> float | None:
        if self._samples and done < self._samples[-1][1]:  # the transfer started over
            self._samples.clear()
        self._samples.append((now, done))
        while now - self._samples[0][0] > _RATE_WINDOW_SECONDS:
            self._samples.popleft()
        start, first = self._samples[0]
        return (done - first) / (now - start) if now > start else None


class RateLimiter:
    """Limits the bytes per second of all transfers that share it; None is no limit."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._next_free = 0.0

    def acquire(self, n_bytes: int, cancel: CancelToken) -> None:
        """Wait until `n_bytes` may pass.  Raises OperationCancelledError."""
        if not (limit := self.limit):
            return
        with self._lock:
            now = monotonic()
            start = max(now, self._next_free)
            self._next_free = start + n_bytes / limit
        cancel.sleep(start - now)


class _Transfer:
    """Completes the partial file of a `CachedFile`, hashing it, and verifies its
    checksum.
    """

    def __init__(
        self,
        hub: HubClient,
        cached_file: CachedFile,
        report: Callable[..., None],
        cancel: CancelToken,
        rate_limiter: RateLimiter,
    ) -> None:
        """`report` receives the phase, the bytes done, and why nothing arrives."""
        self._hub, self._report = hub, report
        self._job, self._file = cached_file.job, cached_file.job.file
        self._partial_path = cached_file.partial_path
        self._cancel, self._rate_limiter = cancel, rate_limiter
        self._n_bytes, self._hasher = 0, self._new_hasher()

    def run(self) -> None:
        """Raises ChecksumError after two downloads with a wrong checksum; nothing is
        kept then.
        """
        handle = _open_partial_file(self._partial_path)
        try:
            if os.fstat(handle).st_size > self._file.size:
                os.ftruncate(handle, 0)
            while block := os.read(handle, 1 << 20):
                self._cancel.raise_if_cancelled()
                self._hasher.update(block)
                self._n_bytes += len(block)
                self._report("checking", self._n_bytes)
            for _ in range(2):
                self._download_rest(handle)
                self._report("verifying", self._n_bytes)
                if (actual := self._hasher.hexdigest()) == self._file.digest:
                    os.fsync(handle)
                    return
                os.ftruncate(handle, 0)
                os.lseek(handle, 0, os.SEEK_SET)
                self._n_bytes, self._hasher = 0, self._new_hasher()
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

    def _new_hasher(self) -> hashlib._Hash:
        """For sha256, or git's sha1 of a blob, by the digest's length."""
        if self._file.sha256:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)

    def _download_rest(self, handle: int) -> None:
        """Repeats requests up to the end of the file; progress resets the number of
        attempts.

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
                done = f"{self._n_bytes / 1e9:.2f} of {self._file.size / 1e9:.2f} GB"
                message = f"{self._file.path} stopped at {done}. {error.message}"
                stopped = RetryableError(message)
                if isinstance(error, RetryableError):
                    stopped = RetryableError(message, error.hint, error.retry_after)
                seconds = self._hub.retry_policy.delay_before_retry(attempt, stopped)
                if stopped.retry_after:
                    self._report("loading", self._n_bytes, wait_text(seconds))
                self._cancel.sleep(seconds)
                attempt += 1

    def _request_rest(self, handle: int) -> None:
        """One request.

        Raises RetryableError if it does not reach the end of the file.
        """
        job, file = self._job, self._file
        location = job.repo, job.commit, file.path
        self._report("loading", self._n_bytes)
        with self._hub.open_stream(
            location, self._n_bytes, None, self._cancel
        ) as stream:
            if stream.file_size not in (None, file.size):
                what = (
                    f"The hub announced {file.size} bytes but sends {stream.file_size}."
                )
                raise RetryableError(what)
            if stream.start > self._n_bytes:
                raise RetryableError("The server skips bytes.")
            skip = self._n_bytes - stream.start  # not 0 if the server ignores Range
            for chunk in stream:
                new = chunk[skip:]
                skip = max(0, skip - len(chunk))
                self._rate_limiter.acquire(len(chunk), self._cancel)
                if new:
                    self._write_chunk(handle, new)
                if self._n_bytes >= file.size:
                    break  # a hub may send more than it announced, or without end
        if self._n_bytes < file.size:
            raise RetryableError("The connection ended early.")

    def _write_chunk(self, handle: int, chunk: bytes) -> None:
        if self._n_bytes == 0 and not chunk.startswith(b"GGUF"[: len(chunk)]):
            name = self._file.path
            if chunk.lstrip()[:1] == b"<":
                raise DownloadError(
                    f"The server sent a web page instead of {name}.", LOGIN_HINT
                )
            raise ModelFileError(f"{name} is not a GGUF file.", "Choose another file.")
        chunk = chunk[: self._file.size - self._n_bytes]
        unwritten = memoryview(chunk)
        while unwritten:
            unwritten = unwritten[os.write(handle, unwritten) :]
        self._hasher.update(chunk)
        self._n_bytes += len(chunk)
        self._report("loading", self._n_bytes)


def _open_partial_file(path: Path) -> int:
    """Raises StorageError for a device or another user's file, OSError for a link."""
    flags = (
        os.O_RDWR
        | os.O_CREAT
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_BINARY", 0)
    )
    handle = os.open(
        path, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0), 0o644
    )
    status = os.fstat(handle)
    is_foreign = hasattr(os, "geteuid") and status.st_uid != os.geteuid()
    if is_foreign or not stat.S_ISREG(status.st_mode):
        os.close(handle)
        message = f"{path} belongs to another user or is not a regular file."
        raise StorageError(message, "Remove it.")
    return handle
