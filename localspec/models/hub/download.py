"""Downloads a hub file: resumable, and verified before it gets its final name."""

from __future__ import annotations

import os
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
    OfflineError,
)
from localspec.models import reference
from localspec.models.hub.cached_file import (
    CachedFile,
    DownloadJob,
    explain_disk_errors,
)
from localspec.models.hub.cancellation import CancelToken, RetryableError, wait_text
from localspec.models.hub.client import HubClient, HubLocation
from localspec.models.hub.partial_file import PartialFile
from localspec.models.local_files import hub_cache
from localspec.models.local_files.local_model import save_checksum, verify_checksum
from localspec.units import gb

_RATE_WINDOW_SECONDS = 5.0
_MIN_REPORT_INTERVAL = 0.1
"""Seconds between two reports of the same phase."""


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
    """The complete, verified file under its final name.

    It needs no network if the file is in the cache. Raises OperationCancelledError. The
    received part is kept, and the next call resumes it.
    """
    reference.check_names(job.repo, job.commit, job.ref)
    reference.check_gguf_path(job.file.path)
    if not job.file.digest:
        raise DownloadError(
            f"The hub gives no checksum for {job.file.path}.",
            "The file cannot be verified, so it was not downloaded.",
        )
    cache = cache_dir or hub_cache.cache_root()
    file = CachedFile(cache, job)
    reporter = _ProgressReporter(job, on_progress)
    token = cancel or CancelToken()

    def on_busy() -> None:
        reporter.report(DownloadPhase.WAITING, 0)

    if not os.access(cache, os.W_OK) and _is_verified(file, reporter, token):
        # For example the cache of all users of a computer, which only one may change.
        on_progress(
            DownloadState(
                job, DownloadPhase.DONE, job.file.size, path=file.pointer_path
            )
        )
        return file.pointer_path

    with explain_disk_errors(cache), file.lock(token, on_busy):
        file.create_folders()
        if not _is_complete(file, reporter, token):
            hub.require_online()
            file.delete()  # A damaged file, if any; offline it stays.
            file.check_disk_space()
            transfer = _Transfer(
                hub,
                job,
                reporter=reporter,
                cancel=token,
                rate_limiter=rate_limiter or RateLimiter(),
            )
            transfer.complete(file.partial_path)
            file.publish()
            if job.file.sha256:
                save_checksum(file.pointer_path, job.file.sha256)
        file.write_ref()
    path = file.pointer_path
    on_progress(DownloadState(job, DownloadPhase.DONE, job.file.size, path=path))
    return path


def _is_complete(
    file: CachedFile, reporter: _ProgressReporter, cancel: CancelToken
) -> bool:
    """Whether the file is in the cache with the right size and sha256.

    A file of git's, whose digest is a sha1, is not read again.
    """
    return file.adopt_existing() and _is_verified(file, reporter, cancel)


def _is_verified(
    file: CachedFile, reporter: _ProgressReporter, cancel: CancelToken
) -> bool:
    """Whether the file has its final name, the right size and the right sha256.

    Writes nothing into the cache.
    """
    path = file.pointer_path
    if not path.is_file() or path.stat().st_size != file.job.file.size:
        return False
    sha256 = file.job.file.sha256
    if not sha256:
        return True

    def on_bytes_read(done: int) -> None:
        cancel.raise_if_cancelled()
        reporter.report(DownloadPhase.VERIFYING, done)

    return verify_checksum(file.pointer_path, sha256, on_bytes_read)


class _ProgressReporter:
    """Reports the state of one job, at most ten times per second in the same phase."""

    def __init__(
        self, job: DownloadJob, on_progress: Callable[[DownloadState], None]
    ) -> None:
        self._state = DownloadState(job)
        self._on_progress = on_progress
        self._last_report = -_MIN_REPORT_INTERVAL
        self._samples: deque[tuple[float, int]] = deque()
        """Times, and the bytes that were done then, of the last seconds."""

    def report(self, phase: DownloadPhase, done: int, note: str = "") -> None:
        now = monotonic()
        rate = None
        if phase is DownloadPhase.LOADING:
            rate = self._measure_rate(now, done)
        is_same = phase is self._state.phase and note == self._state.note
        if is_same and now - self._last_report < _MIN_REPORT_INTERVAL:
            return
        self._last_report = now
        job = self._state.job
        eta = (job.file.size - done) / rate if rate else None
        self._state = DownloadState(
            job, phase, done_bytes=done, rate=rate, eta=eta, note=note
        )
        self._on_progress(self._state)

    def _measure_rate(self, now: float, done: int) -> float | None:
        samples = self._samples
        has_restarted = bool(samples) and done < samples[-1][1]
        if has_restarted:
            samples.clear()
        samples.append((now, done))
        while now - samples[0][0] > _RATE_WINDOW_SECONDS:
            samples.popleft()
        start, first = samples[0]
        return (done - first) / (now - start) if now > start else None


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
        cancel.sleep(start - now)


class _Transfer:
    """Requests what a partial file lacks, until its checksum is right."""

    def __init__(
        self,
        hub: HubClient,
        job: DownloadJob,
        *,
        reporter: _ProgressReporter,
        cancel: CancelToken,
        rate_limiter: RateLimiter,
    ) -> None:
        self._hub = hub
        self._job = job
        self._reporter = reporter
        self._cancel = cancel
        self._rate_limiter = rate_limiter

    def complete(self, path: Path) -> None:
        """Raises ChecksumError after two downloads with a wrong checksum.

        Nothing is kept then.
        """
        partial = PartialFile(path, self._job.file)
        try:
            partial.read_existing(self._on_existing_bytes)
            for _ in range(2):
                self._download_rest(partial)
                self._reporter.report(DownloadPhase.VERIFYING, partial.n_bytes)
                actual = partial.digest
                if actual == self._job.file.digest:
                    partial.sync()
                    return
                partial.restart()
            file = self._job.file
            raise ChecksumError(
                f"{file.path} was damaged in two downloads: "
                f"sha256 {actual[:12]}…, not {file.digest[:12]}….",
                "Try again later, or on another network.",
            )
        finally:
            partial.close()

    def _on_existing_bytes(self, done: int) -> None:
        self._cancel.raise_if_cancelled()
        self._reporter.report(DownloadPhase.CHECKING, done)

    def _download_rest(self, partial: PartialFile) -> None:
        """Repeat requests up to the end of the file.

        Progress resets the number of attempts. A hub that cannot be reached is retried
        only after it has sent something.
        """
        attempt = 1
        first = partial.n_bytes
        while not partial.is_full:
            before = partial.n_bytes
            try:
                self._request_rest(partial)
            except (RetryableError, OfflineError) as error:
                if isinstance(error, OfflineError) and partial.n_bytes == first:
                    raise
                if partial.n_bytes > before:
                    attempt = 1
                stopped = self._stopped_error(error, partial.n_bytes)
                seconds = self._hub.retry_policy.delay_before_retry(attempt, stopped)
                if stopped.retry_after:
                    note = wait_text(seconds)
                    self._reporter.report(DownloadPhase.LOADING, partial.n_bytes, note)
                self._cancel.sleep(seconds)
                attempt += 1

    def _stopped_error(self, error: LocalspecError, done: int) -> RetryableError:
        """The error with how much of the file is here."""
        file = self._job.file
        progress = f"{gb(done)} of {gb(file.size)}"
        message = f"{file.path} stopped at {progress}. {error.message}"
        if isinstance(error, RetryableError):
            return RetryableError(message, error.hint, error.retry_after)
        return RetryableError(message)

    def _request_rest(self, partial: PartialFile) -> None:
        """One request.

        Raises RetryableError if it does not reach the end of the file.
        """
        job = self._job
        size = job.file.size
        start = partial.n_bytes
        location = HubLocation(job.repo, job.commit, job.file.path)
        self._reporter.report(DownloadPhase.LOADING, start)
        with self._hub.open_stream(
            location, start=start, end=None, cancel=self._cancel
        ) as stream:
            if stream.file_size not in (None, size):
                raise RetryableError(
                    f"The hub announced {size} bytes but sends {stream.file_size}."
                )
            if stream.start > start:
                raise RetryableError("The server skips bytes.")
            n_known = start - stream.start  # Not 0 if the server ignores Range.
            for chunk in stream:
                self._rate_limiter.acquire(len(chunk), self._cancel)
                new = chunk[n_known:]
                n_known = max(0, n_known - len(chunk))
                if new:
                    partial.append(new)
                    self._reporter.report(DownloadPhase.LOADING, partial.n_bytes)
                if partial.is_full:
                    # A hub may send more than it announced, or without end.
                    return
        raise RetryableError("The connection ended early.")
