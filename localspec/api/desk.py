"""One engine and those who wait for it: one job after another, in a thread of its own.

So threads, event loops and Ctrl+C never meet in the middle of a command to the engine: they only
ever wait for what comes out, and may stop waiting.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from localspec import flags
from localspec.api.jobs import Job
from localspec.errors import LocalspecError, UsageError
from localspec.launch import Remembering
from localspec.protocol.events import Notice, Ready
from localspec.worker.client import Worker

_GRACE = 2.0
"""Seconds that an answer has to stop before its engine is closed under it."""
_PATIENCE = 10.0
"""Seconds that whoever closes waits for the thread's end."""


class Opener(Protocol):
    """Loads the pair; `hold` gets the process before it loads, `say` what is to be told."""

    def __call__(
        self, hold: Callable[[Worker], None], say: Callable[[Notice], None]
    ) -> Remembering: ...


class Desk:
    """Does jobs in the order in which they came, and loads the pair again where it has died."""

    def __init__(self, opener: Opener) -> None:
        self._opener = opener
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # garbage may be collected, and stop a job, inside of it
        self._current: Job[Any] | None = None
        self._engine: Remembering | None = None
        self._loading: Worker | None = None
        self._pid = os.getpid()
        self.closed = False
        self.ready: Ready | None = None
        """Of the engine that was loaded last."""
        self._thread = threading.Thread(target=self._serve, name="localspec", daemon=True)
        _serving.add(self)
        self._thread.start()

    def submit(self, job: Job[Any]) -> None:
        """Do this when its turn comes.  Raises UsageError where nobody would."""
        with self._lock:
            if self.closed:
                raise _closed()
            if self._elsewhere():
                raise UsageError("This LLM was made by another process.", "Make one in this one.")
            self._jobs.put(job)

    def stop(self, job: Job[Any] | None = None) -> None:
        """End a job, or the one in progress, as soon as the engine heeds it.  Does not wait."""
        if self._elsewhere():
            return
        with self._lock:  # so that it is not the next one that is stopped
            job = job or self._current
            if job is None:
                return
            job.stopped = True
            if job is self._current and self._engine is not None:
                self._engine.stop()

    def end(self) -> None:
        """Take no more jobs, and end the engine after the current one is stopped.

        Does not wait: garbage may be collected in any thread, the engine's own included.
        """
        with self._lock:
            if not self.closed:
                self.closed = True
                self.stop()
                self._jobs.put(None)

    def close(self) -> None:
        """The same, and wait until the engine is gone."""
        if self._elsewhere():
            return
        self.end()
        if threading.current_thread() is self._thread:
            return
        if self._loading is None:
            self._thread.join(_GRACE)
        busy = self._loading or self._engine
        if busy is not None:
            busy.close()
        self._thread.join(_PATIENCE)

    def _elsewhere(self) -> bool:
        """Whether this is a copy, in a process that was forked: the thread is not."""
        return os.getpid() != self._pid

    # --- the thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if self.closed:
                    job.end(_closed())
                else:
                    self._do(job)
                del job  # else the last answer is kept while there is nothing to do
            self._put_away()
        finally:
            _serving.discard(self)

    def _do(self, job: Job[Any]) -> None:
        error: BaseException | None = None
        try:
            engine = self._loaded(job)
            with self._lock:
                self._current = job
            job.carry_out(engine)
        except BaseException as failure:  # it is the caller's, on another thread
            error = _closed() if self.closed else failure
            if isinstance(error, LocalspecError):
                error.hint = flags.in_python(error.hint)
        with self._lock:
            self._current = None
        job.end(error)

    def _loaded(self, job: Job[Any]) -> Remembering:
        """The engine; loaded again where its process has ended."""
        if self._engine is not None and not self._engine.worker.alive:
            self._put_away()
            job.told.append(Notice("warning", "loaded-again", "The engine had to be loaded again."))
        if self._engine is None:
            try:
                self._engine = self._opener(self._hold, job.told.append)
            finally:
                self._loading = None
            self.ready = self._engine.ready
        return self._engine

    def _hold(self, process: Worker) -> None:
        self._loading = process
        if self.closed:  # before there was anything to close
            process.close()

    def _put_away(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def _closed() -> UsageError:
    return UsageError("This LLM is closed.", "Make another: LLM(…).")


_serving: set[Desk] = set()


@atexit.register
def _close_all() -> None:
    """When the interpreter ends, engines do: all at once, and before it complains of them."""
    desks = tuple(_serving)
    for desk in desks:
        desk.end()
    for desk in desks:
        desk.close()
