"""One file of the hub onto this disk: found, resumed, verified, and named last."""

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
"""Seconds over which the rate is taken."""
_MIN_REPORT_INTERVAL = 0.1
"""Seconds between two reports of the same phase."""


class DownloadPhase(StrEnum):
    """What a download is doing."""

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
    """A file to fetch.  What the catalogue knows of it must agree with the hub."""

    repo: str
    revision: str
    path: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class DownloadState:
    """How far a job is."""

    job: DownloadJob
    phase: DownloadPhase = DownloadPhase.WAITING
    done_bytes: int = 0
    """Bytes."""
    total_bytes: int | None = None
    rate: float | None = None
    """Bytes a second."""
    eta: float | None = None
    """Seconds."""
    error: LocalspecError | None = None
    path: Path | None = None
    """Where the file lies, when it is done."""


OnProgress = Callable[[DownloadState], None]
OnBytesRead = Callable[[int], None]
"""Hears how many bytes were read; raises Stopped where nobody wants them any more."""


def download_file(
    hub: HubClient,
    job: DownloadJob,
    on_progress: OnProgress = lambda _: None,
    *,
    cancel: CancelToken | None = None,
    cache_dir: Path | None = None,
    rate_limiter: RateLimiter | None = None,
) -> Path:
    """The file under its final name, whole and verified.  Raises Stopped when called off.

    What had come by then is kept, and the next call goes on from there.
    """
    _check_job(job)
    cache = cache_dir or hub_cache.cache_root()
    cancel = cancel or CancelToken()
    teller = _ProgressReporter(job, on_progress)
    kept = _find_verified(cache, job, lambda done: teller.report_verifying(done, cancel))
    if kept and safe_names.COMMIT_HASH.fullmatch(job.revision):
        return teller.report_done(kept)
    teller.report("checking", 0)
    try:
        facts = hub.get_file_metadata(job.repo, job.revision, job.path, cancel)
    except OfflineError:
        if kept is None:
            raise
        return teller.report_done(kept)
    _check_expected_file(job, facts)
    place = CachedFile(cache, job.repo, facts.commit, job.path, facts.digest, facts.size)
    teller.total = facts.size
    with (
        hub_cache.explain_disk_errors(cache),
        place.lock(cancel, lambda: teller.report("waiting", 0)),
    ):
        place.create_folders()
        if not _adopt_existing(place, lambda done: teller.report_verifying(done, cancel)):
            place.check_disk_space()
            ResumableTransfer(
                hub, place, teller.report, cancel, rate_limiter or RateLimiter()
            ).run()
            place.publish()
            _mark_verified(place)
        place.write_ref(job.revision)
    return teller.report_done(place.pointer_path)


def _check_job(job: DownloadJob) -> None:
    safe_names.check_repo(job.repo)
    safe_names.check_revision(job.revision)
    safe_names.check_gguf_path(job.path)


def _find_verified(cache: Path, job: DownloadJob, on_bytes_read: OnBytesRead) -> Path | None:
    """The file, if it is here, of the right size, and what its digest promises."""
    found = hub_cache.find_cached(cache, job.repo, job.revision, job.path)
    if found is None or job.size not in (None, found.stat().st_size):
        return None
    return found if _has_digest(found, job.sha256 or found.resolve().name, on_bytes_read) else None


def _adopt_existing(cached_file: CachedFile, on_bytes_read: OnBytesRead) -> bool:
    """Whether the right file is here under its final name.  A wrong one is taken away."""
    if not cached_file.adopt_existing():
        return False
    if _has_digest(cached_file.pointer_path, cached_file.digest, on_bytes_read):
        return True
    cached_file.delete()
    return False


def _has_digest(path: Path, digest: str, on_bytes_read: OnBytesRead) -> bool:
    """Others, who check less, may have put it there: it is read once, and that is remembered."""
    about = local_model.stat_gguf(path)
    if not _SHA256.fullmatch(digest) or about is None:
        return about is not None
    if checksum_cache.lookup(checksum_cache.load(), about) == digest:
        return True
    if local_files.compute_sha256(path, lambda done, _: on_bytes_read(done)) != digest:
        return False
    local_files.mark_verified(path, digest)
    return True


def _mark_verified(cached_file: CachedFile) -> None:
    if _SHA256.fullmatch(cached_file.digest):
        local_files.mark_verified(cached_file.pointer_path, cached_file.digest)


def _check_expected_file(job: DownloadJob, metadata: HubFileMetadata) -> None:
    """Raise ChecksumError where the hub's file is not the one that was meant."""
    size = job.size in (None, metadata.size)
    if not size or (job.sha256 is not None and job.sha256 != metadata.digest):
        raise ChecksumError(
            f"{job.path} on the hub is not the file that was expected: "
            f"{metadata.size} bytes, sha256 {metadata.digest[:12]}….",
            f"It may have been replaced.  Look at {job.repo}, and name the file itself to take it.",
        )


class _ProgressReporter:
    """Says how far one job is, and how fast; ten times a second at most."""

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
        left = None if self.total is None else self.total - done
        eta = left / rate if rate and left is not None else None
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
        """While a file that is here is read."""
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
        if self._samples and done < self._samples[-1][1]:  # a fresh start
            self._samples.clear()
        self._samples.append((now, done))
        while now - self._samples[0][0] > _RATE_WINDOW_SECONDS:
            self._samples.popleft()

    def _rate(self) -> float | None:
        (start, first), (end, last) = self._samples[0], self._samples[-1]
        return (last - first) / (end - start) if end > start else None


# --- Downloads one after another, a few at once, on threads of their own; with pause and resume.

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
    """Of the present run: one that was called off has no say any more."""
    started_cancel: CancelToken | None = None
    """Of the run that a thread has begun."""


class DownloadQueue:
    """The jobs, in the order of their adding.  Any thread may call any method."""

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
        """At the end; one that is there already is tried again if it had failed."""
        with self._changed:
            if job not in self._entries:
                self._entries[job] = _QueuedDownload(
                    DownloadState(job, total_bytes=job.size), CancelToken()
                )
                self._start_worker()
                return
        self.retry(job)

    def pause(self, job: DownloadJob) -> None:
        """Stop it for now; what has come is kept."""
        self._stop(job, DownloadPhase.PAUSED)

    def cancel(self, job: DownloadJob) -> None:
        """Stop it for good; what has come is kept until it is removed from the store."""
        self._stop(job, DownloadPhase.CANCELLED)

    def resume(self, job: DownloadJob) -> None:
        self._restart(job, {DownloadPhase.PAUSED})

    def retry(self, job: DownloadJob) -> None:
        self._restart(job, {DownloadPhase.FAILED, DownloadPhase.CANCELLED, DownloadPhase.PAUSED})

    def set_rate_limit(self, bytes_s: float | None) -> None:
        """The most that all downloads together may take; None is no limit."""
        self._rate_limiter.limit = bytes_s

    def states(self) -> tuple[DownloadState, ...]:
        with self._changed:
            return tuple(entry.state for entry in self._entries.values())

    def wait(self, seconds: float) -> bool:
        """Whether nothing is left to do, after so many seconds at most."""
        with self._changed:
            return self._changed.wait_for(self._idle, seconds)

    def close(self) -> None:
        """Stop all; what has come is kept."""
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
        """Under the lock: one more thread, where there are not enough."""
        if self._running < self._max_parallel and not self._closed:
            self._running += 1
            threading.Thread(target=self._work, name="download", daemon=True).start()

    def _work(self) -> None:
        """On a thread: one job after another, until none waits."""
        while True:
            with self._changed:
                entry = self._next_waiting()
                if entry is None:
                    self._running -= 1
                    return
                job, stop = entry.state.job, entry.cancel
                entry.started_cancel = stop
                entry.state = replace(entry.state, phase=DownloadPhase.CHECKING)
            self._run(entry, job, stop)

    def _next_waiting(self) -> _QueuedDownload | None:
        if self._closed:
            return None
        fresh = (
            entry for entry in self._entries.values() if entry.started_cancel is not entry.cancel
        )
        return next((entry for entry in fresh if entry.state.phase is DownloadPhase.WAITING), None)

    def _run(self, entry: _QueuedDownload, job: DownloadJob, stop: CancelToken) -> None:
        def say(state: DownloadState) -> None:
            with self._changed:
                if entry.cancel is stop and not stop.is_cancelled():
                    entry.state = state
                    self._changed.notify_all()

        try:
            download_file(
                self._hub,
                job,
                say,
                cancel=stop,
                cache_dir=self._cache_dir,
                rate_limiter=self._rate_limiter,
            )
        except OperationCancelledError:
            pass
        except LocalspecError as error:
            say(replace(entry.state, phase=DownloadPhase.FAILED, rate=None, eta=None, error=error))
        except Exception as error:  # a fault of ours ends this download, not the queue
            wrong = LocalspecError(f"The download failed: {error!r}.", "Please report this.")
            say(replace(entry.state, phase=DownloadPhase.FAILED, rate=None, eta=None, error=wrong))
