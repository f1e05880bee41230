"""Downloads of hub files, resumable and verified, and a queue of them.

A file gets its final name only after its checksum was verified.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from time import monotonic

from localspec.errors import ChecksumError, LocalspecError, OfflineError
from localspec.models import local_files, safe_names
from localspec.models.hub import hub_cache
from localspec.models.hub.cancellation import CancelToken, OperationCancelledError
from localspec.models.hub.client import HubClient, HubFileMetadata
from localspec.models.hub.hub_cache import CachedFile
from localspec.models.hub.resumable_transfer import RateLimiter, ResumableTransfer
from localspec.models.local_files import checksum_cache, local_model

_SHA256 = re.compile(r"[0-9a-f]{64}")
_RATE_WINDOW_SECONDS = 5.0
"""Window of the transfer rate."""
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


@dataclass(frozen=True, slots=True)
class DownloadJob:
    """A file to download."""

    repo: str
    revision: str
    path: str
    size: int | None = None
    """Expected; the hub's must be equal if this is given, as `sha256` must."""
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class DownloadState:
    """The progress of a job."""

    job: DownloadJob
    phase: DownloadPhase = DownloadPhase.WAITING
    done_bytes: int = 0
    total_bytes: int | None = None
    rate: float | None = None
    """Bytes per second."""
    eta: float | None = None
    """Seconds."""
    error: LocalspecError | None = None
    path: Path | None = None
    """The file, once it is done."""


OnProgress = Callable[[DownloadState], None]
OnBytesRead = Callable[[int], None]
"""Receives the number of bytes read so far; raises OperationCancelledError to stop."""


def download_file(
    hub: HubClient,
    job: DownloadJob,
    on_progress: OnProgress = lambda _: None,
    *,
    cancel: CancelToken | None = None,
    cache_dir: Path | None = None,
    rate_limiter: RateLimiter | None = None,
) -> Path:
    """The complete, verified file under its final name.

    Raises OperationCancelledError.  The received part is kept, and the next call resumes it.
    """
    _check_names(job)
    cache = cache_dir or hub_cache.cache_root()
    cancel = cancel or CancelToken()
    reporter = _ProgressReporter(job, on_progress)
    existing = _find_verified(cache, job, lambda done: reporter.report_verifying(done, cancel))
    if existing and safe_names.COMMIT_HASH.fullmatch(job.revision):
        return reporter.report_done(existing)
    reporter.report("checking", 0)
    try:
        metadata = hub.get_file_metadata(job.repo, job.revision, job.path, cancel)
    except OfflineError:
        if existing is None:
            raise
        return reporter.report_done(existing)
    _check_expected_file(job, metadata)
    file = CachedFile(cache, job.repo, metadata.commit, job.path, metadata.digest, metadata.size)
    reporter.total = metadata.size
    with (
        hub_cache.explain_disk_errors(cache),
        file.lock(cancel, lambda: reporter.report("waiting", 0)),
    ):
        file.create_folders()
        if not _adopt_existing(file, lambda done: reporter.report_verifying(done, cancel)):
            limiter = rate_limiter or RateLimiter()
            _transfer(file, ResumableTransfer(hub, file, reporter.report, cancel, limiter))
        file.write_ref(job.revision)
    return reporter.report_done(file.pointer_path)


def _transfer(cached_file: CachedFile, transfer: ResumableTransfer) -> None:
    cached_file.check_disk_space()
    transfer.run()
    cached_file.publish()
    if _SHA256.fullmatch(cached_file.digest):
        local_files.mark_verified(cached_file.pointer_path, cached_file.digest)


def _check_names(job: DownloadJob) -> None:
    safe_names.check_repo(job.repo)
    safe_names.check_revision(job.revision)
    safe_names.check_gguf_path(job.path)


def _find_verified(cache: Path, job: DownloadJob, on_bytes_read: OnBytesRead) -> Path | None:
    """The cached file, if its size and digest are right."""
    path = hub_cache.find_cached(cache, job.repo, job.revision, job.path)
    if path is None or job.size not in (None, path.stat().st_size):
        return None
    return path if _has_digest(path, job.sha256 or path.resolve().name, on_bytes_read) else None


def _adopt_existing(cached_file: CachedFile, on_bytes_read: OnBytesRead) -> bool:
    """Whether a correct file exists under its final name; deletes a wrong one."""
    if not cached_file.adopt_existing():
        return False
    if _has_digest(cached_file.pointer_path, cached_file.digest, on_bytes_read):
        return True
    cached_file.delete()
    return False


def _has_digest(path: Path, digest: str, on_bytes_read: OnBytesRead) -> bool:
    """Reads the file unless its checksum is recorded: other programs may verify less."""
    file_stat = local_model.stat_gguf(path)
    if not _SHA256.fullmatch(digest) or file_stat is None:
        return file_stat is not None
    if checksum_cache.lookup(checksum_cache.load(), file_stat) == digest:
        return True
    if local_files.compute_sha256(path, lambda done, _: on_bytes_read(done)) != digest:
        return False
    local_files.mark_verified(path, digest)
    return True


def _check_expected_file(job: DownloadJob, metadata: HubFileMetadata) -> None:
    """Raise ChecksumError if the hub's file is not the expected one."""
    same_size = job.size in (None, metadata.size)
    if not same_size or (job.sha256 is not None and job.sha256 != metadata.digest):
        raise ChecksumError(
            f"{job.path} on the hub is not the expected file: "
            f"{metadata.size} bytes, sha256 {metadata.digest[:12]}….",
            f"It may have been replaced. Check {job.repo}; name the file itself to download it.",
        )


class _ProgressReporter:
    """Reports the state of one job, at most ten times per second in the same phase."""

    def __init__(self, job: DownloadJob, on_progress: OnProgress) -> None:
        self.total = job.size
        self._state = DownloadState(job, total_bytes=job.size)
        self._on_progress = on_progress
        self._last_report = -_MIN_REPORT_INTERVAL
        self._samples: deque[tuple[float, int]] = deque()

    def report(self, phase: str, done: int) -> None:
        now = monotonic()
        if phase == DownloadPhase.LOADING:
            self._add_sample(now, done)
        same = phase == self._state.phase and self.total == self._state.total_bytes
        if same and now - self._last_report < _MIN_REPORT_INTERVAL:
            return
        self._last_report = now
        rate = self._rate() if phase == DownloadPhase.LOADING else None
        remaining = None if self.total is None else self.total - done
        eta = remaining / rate if rate and remaining is not None else None
        self._state = replace(
            self._state,
            phase=DownloadPhase(phase),
            done_bytes=done,
            total_bytes=self.total,
            rate=rate,
            eta=eta,
        )
        self._on_progress(self._state)

    def report_verifying(self, done: int, cancel: CancelToken) -> None:
        cancel.raise_if_cancelled()
        self.report("verifying", done)

    def report_done(self, path: Path) -> Path:
        size = path.stat().st_size
        job = self._state.job
        self._on_progress(
            DownloadState(job, DownloadPhase.DONE, done_bytes=size, total_bytes=size, path=path)
        )
        return path

    def _add_sample(self, now: float, done: int) -> None:
        if self._samples and done < self._samples[-1][1]:  # the transfer started over
            self._samples.clear()
        self._samples.append((now, done))
        while now - self._samples[0][0] > _RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def _rate(self) -> float | None:
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - start) if end > start else None


_FINAL_PHASES = {
    DownloadPhase.DONE,
    DownloadPhase.FAILED,
    DownloadPhase.CANCELLED,
    DownloadPhase.PAUSED,
}


@dataclass(slots=True)
class _QueuedDownload:
    state: DownloadState
    cancel: CancelToken
    """Of the current run; reports of earlier, cancelled runs are ignored."""
    started_cancel: CancelToken | None = None
    """Of the run that a worker thread has started."""


class DownloadQueue:
    """Runs jobs in order, a few in parallel, on worker threads.  All methods are thread-safe."""

    def __init__(
        self,
        hub: HubClient,
        cache_dir: Path | None = None,
        max_parallel: int = 2,
        limit_bytes_s: float | None = None,
    ) -> None:
        self._hub = hub
        self._cache_dir = cache_dir
        self._rate_limiter = RateLimiter(limit_bytes_s)
        self._max_parallel = max_parallel
        self._entries: dict[DownloadJob, _QueuedDownload] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0

    def add(self, job: DownloadJob) -> None:
        """Append a job; if it is already queued, `retry` it."""
        with self._changed:
            if job not in self._entries:
                self._entries[job] = _QueuedDownload(
                    DownloadState(job, total_bytes=job.size), CancelToken()
                )
                self._start_worker()
                return
        self.retry(job)

    def pause(self, job: DownloadJob) -> None:
        self._stop(job, DownloadPhase.PAUSED)

    def cancel(self, job: DownloadJob) -> None:
        """The received part stays in the cache as a leftover."""
        self._stop(job, DownloadPhase.CANCELLED)

    def resume(self, job: DownloadJob) -> None:
        self._restart(job, {DownloadPhase.PAUSED})

    def retry(self, job: DownloadJob) -> None:
        self._restart(job, {DownloadPhase.FAILED, DownloadPhase.CANCELLED, DownloadPhase.PAUSED})

    def set_rate_limit(self, bytes_s: float | None) -> None:
        """Limit all downloads together; None removes the limit."""
        self._rate_limiter.limit = bytes_s

    def states(self) -> tuple[DownloadState, ...]:
        with self._changed:
            return tuple(entry.state for entry in self._entries.values())

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; returns whether no job is waiting or running."""
        with self._changed:
            return self._changed.wait_for(self._idle, seconds)

    def close(self) -> None:
        """Stop all jobs; received parts are kept."""
        with self._changed:
            self._closed = True
            for entry in self._entries.values():
                entry.cancel.cancel()
            self._changed.notify_all()

    def _idle(self) -> bool:
        return all(entry.state.phase in _FINAL_PHASES for entry in self._entries.values())

    def _stop(self, job: DownloadJob, phase: DownloadPhase) -> None:
        with self._changed:
            entry = self._entries.get(job)
            if entry is None or entry.state.phase in (DownloadPhase.DONE, DownloadPhase.FAILED):
                return
            entry.cancel.cancel()
            entry.state = replace(entry.state, phase=phase, rate=None, eta=None)
            self._changed.notify_all()

    def _restart(self, job: DownloadJob, phases: set[DownloadPhase]) -> None:
        with self._changed:
            entry = self._entries.get(job)
            if entry is not None and entry.state.phase in phases:
                entry.cancel = CancelToken()
                entry.state = replace(entry.state, phase=DownloadPhase.WAITING, error=None)
                self._start_worker()

    def _start_worker(self) -> None:
        """Requires the lock."""
        if self._running < self._max_parallel and not self._closed:
            self._running += 1
            threading.Thread(target=self._work, name="download", daemon=True).start()

    def _work(self) -> None:
        """Worker thread: run jobs until none is waiting."""
        while True:
            with self._changed:
                entry = self._next_waiting()
                if entry is None:
                    self._running -= 1
                    return
                job, cancel = entry.state.job, entry.cancel
                entry.started_cancel = cancel
                entry.state = replace(entry.state, phase=DownloadPhase.CHECKING)
            self._run(entry, job, cancel)

    def _next_waiting(self) -> _QueuedDownload | None:
        if self._closed:
            return None
        for entry in self._entries.values():
            not_started = entry.started_cancel is not entry.cancel
            if not_started and entry.state.phase is DownloadPhase.WAITING:
                return entry
        return None

    def _run(self, entry: _QueuedDownload, job: DownloadJob, cancel: CancelToken) -> None:
        def report(state: DownloadState) -> None:
            with self._changed:
                if entry.cancel is cancel and not cancel.is_cancelled():
                    entry.state = state
                    self._changed.notify_all()

        def report_failure(error: LocalspecError) -> None:
            failed = DownloadPhase.FAILED
            report(replace(entry.state, phase=failed, rate=None, eta=None, error=error))

        try:
            download_file(
                self._hub,
                job,
                report,
                cancel=cancel,
                cache_dir=self._cache_dir,
                rate_limiter=self._rate_limiter,
            )
        except OperationCancelledError:
            pass
        except LocalspecError as error:
            report_failure(error)
        except Exception as error:  # a bug ends this download, not the queue
            report_failure(
                LocalspecError(f"The download failed: {error!r}.", "Please report this.")
            )
