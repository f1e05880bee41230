"""Downloads one after another, a few at once, on threads of their own; with pause and resume."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.errors import LocalspecError
from localspec.models.download import Job, Phase, State, fetch
from localspec.models.hub.errand import Stop, Stopped
from localspec.models.hub.transfer import Throttle
from localspec.models.remote import Hub

_OVER = {Phase.DONE, Phase.FAILED, Phase.CANCELLED, Phase.PAUSED}


@dataclass(slots=True)
class _Entry:
    state: State
    stop: Stop
    """Of the present run: one that was called off has no say any more."""
    taken: Stop | None = None
    """Of the run that a thread has begun."""


class Queue:
    """The jobs, in the order of their adding.  Any thread may call any method."""

    def __init__(
        self,
        hub: Hub,
        store_dir: Path | None = None,
        at_once: int = 2,
        limit_bytes_s: float | None = None,
    ) -> None:
        self._hub = hub
        self._store = store_dir
        self._throttle = Throttle(limit_bytes_s)
        self._at_once = at_once
        self._entries: dict[Job, _Entry] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0

    def add(self, job: Job) -> None:
        """At the end; one that is there already is tried again if it had failed."""
        with self._changed:
            if job not in self._entries:
                self._entries[job] = _Entry(State(job, total=job.size), Stop())
                self._go_on()
                return
        self.retry(job)

    def pause(self, job: Job) -> None:
        """Stop it for now; what has come is kept."""
        self._end(job, Phase.PAUSED)

    def cancel(self, job: Job) -> None:
        """Stop it for good; what has come is kept until it is removed from the store."""
        self._end(job, Phase.CANCELLED)

    def resume(self, job: Job) -> None:
        self._again(job, {Phase.PAUSED})

    def retry(self, job: Job) -> None:
        self._again(job, {Phase.FAILED, Phase.CANCELLED, Phase.PAUSED})

    def limit(self, bytes_s: float | None) -> None:
        """The most that all downloads together may take; None is no limit."""
        self._throttle.limit = bytes_s

    def states(self) -> tuple[State, ...]:
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
                entry.stop.set()
            self._changed.notify_all()

    def _idle(self) -> bool:
        return all(entry.state.phase in _OVER for entry in self._entries.values())

    def _end(self, job: Job, phase: Phase) -> None:
        with self._changed:
            entry = self._entries.get(job)
            if entry is None or entry.state.phase in (Phase.DONE, Phase.FAILED):
                return
            entry.stop.set()
            entry.state = replace(entry.state, phase=phase, rate=None, eta=None)
            self._changed.notify_all()

    def _again(self, job: Job, phases: set[Phase]) -> None:
        with self._changed:
            entry = self._entries.get(job)
            if entry is not None and entry.state.phase in phases:
                entry.stop = Stop()
                entry.state = replace(entry.state, phase=Phase.WAITING, error=None)
                self._go_on()

    def _go_on(self) -> None:
        """Under the lock: one more thread, where there are not enough."""
        if self._running < self._at_once and not self._closed:
            self._running += 1
            threading.Thread(target=self._work, name="download", daemon=True).start()

    def _work(self) -> None:
        """On a thread: one job after another, until none waits."""
        while True:
            with self._changed:
                entry = self._next()
                if entry is None:
                    self._running -= 1
                    return
                job, stop = entry.state.job, entry.stop
                entry.taken = stop
                entry.state = replace(entry.state, phase=Phase.CHECKING)
            self._run(entry, job, stop)

    def _next(self) -> _Entry | None:
        if self._closed:
            return None
        fresh = (entry for entry in self._entries.values() if entry.taken is not entry.stop)
        return next((entry for entry in fresh if entry.state.phase is Phase.WAITING), None)

    def _run(self, entry: _Entry, job: Job, stop: Stop) -> None:
        def say(state: State) -> None:
            with self._changed:
                if entry.stop is stop and not stop.is_set():
                    entry.state = state
                    self._changed.notify_all()

        try:
            fetch(self._hub, job, say, stop=stop, store_dir=self._store, throttle=self._throttle)
        except Stopped:
            pass
        except LocalspecError as error:
            say(replace(entry.state, phase=Phase.FAILED, rate=None, eta=None, error=error))
        except Exception as error:  # a fault of ours ends this download, not the queue
            wrong = LocalspecError(f"The download failed: {error!r}.", "Please report this.")
            say(replace(entry.state, phase=Phase.FAILED, rate=None, eta=None, error=wrong))
