"""A queue of downloads on a few threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from localspec.errors import LocalspecError
from localspec.models.hub.cached_file import CachedFile, DownloadJob
from localspec.models.hub.cancellation import CancelToken, OperationCancelledError
from localspec.models.hub.client import HubClient
from localspec.models.hub.download import (
    DownloadPhase,
    DownloadState,
    RateLimiter,
    download_file,
)
from localspec.models.local_files import hub_cache

_RESTARTABLE_PHASES = (
    DownloadPhase.FAILED,
    DownloadPhase.CANCELLED,
    DownloadPhase.PAUSED,
)
_FINAL_PHASES = (DownloadPhase.DONE, *_RESTARTABLE_PHASES)


class _QueuedDownload(Struct):
    state: DownloadState
    cancel: CancelToken
    """Of the current run; reports of earlier, cancelled runs are ignored."""
    started_cancel: CancelToken | None = None
    """Of the run that a worker thread has started."""

    @property
    def is_waiting(self) -> bool:
        """Whether a worker may start it."""
        is_started = self.started_cancel is self.cancel
        return self.state.phase is DownloadPhase.WAITING and not is_started


class DownloadQueue:
    """Runs jobs in order, a few in parallel, on worker threads.

    All methods are thread-safe.
    """

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
        """Guards the entries and the two fields below."""
        self._closed = False
        self._running = 0

    # --- jobs

    def add(self, job: DownloadJob) -> None:
        """Append a job, or `retry` it.

        One that is done starts again if its file was removed.
        """
        with self._changed:
            entry = self._entries.get(job)
            is_new = entry is None
            if entry is not None and entry.state.path is not None:
                is_new = not os.path.exists(entry.state.path)
            if is_new:
                self._entries[job] = _QueuedDownload(DownloadState(job), CancelToken())
                self._start_worker()
                return
        self.retry(job)

    def add_paused(self, job: DownloadJob) -> None:
        """Append a job that an earlier process did not finish.

        Nothing is appended if its file is here.
        """
        file = CachedFile(self._cache_dir or hub_cache.cache_root(), job)
        if file.blob_path.exists():
            return
        done = 0
        if file.partial_path.exists():
            done = file.partial_path.stat().st_size
        state = DownloadState(job, DownloadPhase.PAUSED, done)
        with self._changed:
            self._entries.setdefault(job, _QueuedDownload(state, CancelToken()))

    def pause(self, job: DownloadJob) -> None:
        self._stop(job, DownloadPhase.PAUSED)

    def cancel(self, job: DownloadJob) -> None:
        """The received part stays in the cache as a leftover."""
        self._stop(job, DownloadPhase.CANCELLED)

    def retry(self, job: DownloadJob) -> None:
        """Restart a job that failed, was cancelled or is paused."""
        with self._changed:
            entry = self._entries.get(job)
            if entry is None or entry.state.phase not in _RESTARTABLE_PHASES:
                return
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
            return self._changed.wait_for(self._is_idle, seconds)

    def close(self) -> None:
        """Stop all jobs; received parts are kept."""
        with self._changed:
            self._closed = True
            for entry in self._entries.values():
                entry.cancel.cancel()
            self._changed.notify_all()

    def _is_idle(self) -> bool:
        phases = {entry.state.phase for entry in self._entries.values()}
        return phases.issubset(_FINAL_PHASES)

    def _stop(self, job: DownloadJob, phase: DownloadPhase) -> None:
        with self._changed:
            entry = self._entries.get(job)
            if entry is None:
                return
            if entry.state.phase in (DownloadPhase.DONE, DownloadPhase.FAILED):
                return
            entry.cancel.cancel()
            entry.state = replace(entry.state, phase=phase, rate=None, eta=None)
            self._changed.notify_all()

    # --- workers

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
                cancel = entry.cancel
                entry.started_cancel = cancel
                entry.state = replace(entry.state, phase=DownloadPhase.CHECKING)
            self._run(entry, cancel)

    def _next_waiting(self) -> _QueuedDownload | None:
        """Requires the lock."""
        if self._closed:
            return None
        waiting = (entry for entry in self._entries.values() if entry.is_waiting)
        return next(waiting, None)

    def _run(self, entry: _QueuedDownload, cancel: CancelToken) -> None:
        """One run, whose reports count until it is cancelled."""

        def report(state: DownloadState) -> None:
            with self._changed:
                if entry.cancel is cancel and not cancel.is_cancelled():
                    entry.state = state
                    self._changed.notify_all()

        try:
            download_file(
                self._hub,
                entry.state.job,
                report,
                cancel=cancel,
                cache_dir=self._cache_dir,
                rate_limiter=self._rate_limiter,
            )
        except OperationCancelledError:
            return
        except Exception as error:  # a bug ends this download, not the queue
            if not isinstance(error, LocalspecError):
                error = LocalspecError(
                    f"The download failed: {error!r}.", "Please report this."
                )
            report(
                replace(
                    entry.state,
                    phase=DownloadPhase.FAILED,
                    rate=None,
                    eta=None,
                    error=error,
                )
            )
