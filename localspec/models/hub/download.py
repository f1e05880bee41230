"""Downloads of hub files, resumable and verified, and a queue of them.

A file gets its final name only after its checksum was verified.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from time import monotonic

from localspec.errors import DownloadError, LocalspecError
from localspec.lazy_dataclass import dataclass
from localspec.models import safe_names
from localspec.models.hub.cached_file import CachedFile, DownloadJob, explain_disk_errors
from localspec.models.hub.cancellation import CancelToken, OperationCancelledError
from localspec.models.hub.client import HubClient
from localspec.models.hub.resumable_transfer import RateLimiter, ResumableTransfer
from localspec.models.local_files import checksum_cache, hub_cache

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
class DownloadState:
    job: DownloadJob
    phase: DownloadPhase = DownloadPhase.WAITING
    done_bytes: int = 0
    rate: float | None = None
    """Bytes per second."""
    eta: float | None = None
    """Seconds."""
    error: LocalspecError | None = None
    path: Path | None = None
    """The file, once it is done."""


OnProgress = Callable[[DownloadState], None]


def download_file(
    hub: HubClient,
    job: DownloadJob,
    on_progress: OnProgress = lambda _: None,
    *,
    cancel: CancelToken | None = None,
    cache_dir: Path | None = None,
    rate_limiter: RateLimiter | None = None,
) -> Path:
    """The complete, verified file under its final name; needs no network if it is in the cache.

    Raises OperationCancelledError.  The received part is kept, and the next call resumes it.
    """
    _check_names(job)
    cache = cache_dir or hub_cache.cache_root()
    cancel = cancel or CancelToken()
    reporter = _ProgressReporter(job, on_progress)
    file = CachedFile(cache, job)

    def on_bytes_read(done: int) -> None:
        cancel.raise_if_cancelled()
        reporter.report("verifying", done)

    with explain_disk_errors(cache), file.lock(cancel, lambda: reporter.report("waiting", 0)):
        file.create_folders()
        exists = file.adopt_existing()
        if not exists or not _is_correct(file, on_bytes_read):
            hub.require_online()
            if exists:
                file.delete()
            file.check_disk_space()
            limiter = rate_limiter or RateLimiter()
            ResumableTransfer(hub, file, reporter.report, cancel, limiter).run()
            file.publish()
            if job.file.sha256:
                checksum_cache.save(file.pointer_path, job.file.sha256)
        file.write_ref()
    return reporter.report_done(file.pointer_path)


def _check_names(job: DownloadJob) -> None:
    safe_names.check_repo(job.repo)
    for revision in (job.commit, job.ref):
        if revision is not None:
            safe_names.check_revision(revision)
    safe_names.check_gguf_path(job.file.path)
    if not job.file.digest:
        raise DownloadError(
            f"The hub gives no checksum for {job.file.path}.",
            "The file cannot be verified, so it was not downloaded.",
        )


def _is_correct(file: CachedFile, on_bytes_read: Callable[[int], None]) -> bool:
    """Whether the contents are right: other programs may verify less.  git's are not hashed."""
    sha256 = file.job.file.sha256
    return sha256 is None or checksum_cache.verify(file.pointer_path, sha256, on_bytes_read)


class _ProgressReporter:
    """Reports the state of one job, at most ten times per second in the same phase."""

    def __init__(self, job: DownloadJob, on_progress: OnProgress) -> None:
        self._state = DownloadState(job)
        self._on_progress = on_progress
        self._last_report = -_MIN_REPORT_INTERVAL
        self._samples: deque[tuple[float, int]] = deque()

    def report(self, phase: str, done: int) -> None:
        now = monotonic()
        if phase == DownloadPhase.LOADING:
            self._add_sample(now, done)
        if phase == self._state.phase and now - self._last_report < _MIN_REPORT_INTERVAL:
            return
        self._last_report = now
        rate = self._rate() if phase == DownloadPhase.LOADING else None
        job = self._state.job
        eta = (job.file.size - done) / rate if rate else None
        self._state = DownloadState(job, DownloadPhase(phase), done, rate, eta)
        self._on_progress(self._state)

    def report_done(self, path: Path) -> Path:
        job = self._state.job
        self._on_progress(DownloadState(job, DownloadPhase.DONE, job.file.size, path=path))
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


def _is_removed(state: DownloadState) -> bool:
    return state.path is not None and not os.path.exists(state.path)


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
        """Append a job; if it is already queued, `retry` it.

        One that is done starts again if its file has been removed since.
        """
        with self._changed:
            entry = self._entries.get(job)
            if entry is None or _is_removed(entry.state):
                self._entries[job] = _QueuedDownload(DownloadState(job), CancelToken())
                self._start_worker()
                return
        self.retry(job)

    def pause(self, job: DownloadJob) -> None:
        self._stop(job, DownloadPhase.PAUSED)

    def cancel(self, job: DownloadJob) -> None:
        """The received part stays in the cache as a leftover."""
        self._stop(job, DownloadPhase.CANCELLED)

    def retry(self, job: DownloadJob) -> None:
        """Restart a job that failed, was cancelled or is paused."""
        with self._changed:
            entry = self._entries.get(job)
            if entry is not None and entry.state.phase in _FINAL_PHASES - {DownloadPhase.DONE}:
                entry.cancel = CancelToken()
                entry.state = replace(entry.state, phase=DownloadPhase.WAITING, error=None)
                self._start_worker()

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
