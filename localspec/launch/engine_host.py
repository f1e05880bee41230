"""A thread that owns one engine and runs jobs with it: first come, first served.

Callers only wait for results. So other threads, event loops and Ctrl+C cannot interrupt
a command to the engine.
"""

from __future__ import annotations

import atexit
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from localspec.errors import DoesNotFitError, OutOfMemoryError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.launch import idle_tasks
from localspec.launch.engine_client import EngineClient
from localspec.launch.start import Engine, StartEngine, start_engine
from localspec.protocol.events import EngineReady, Notice
from localspec.protocol.wire import LoadEvent

if TYPE_CHECKING:
    import asyncio

POLL_SECONDS = 0.5
"""A waiting thread wakes so often: on Windows, a longer wait would block Ctrl+C."""
_STOP_TIMEOUT = 2.0
"""Seconds for an answer to stop, before its engine process is closed."""
_JOIN_TIMEOUT = 10.0  # Seconds that `close` waits for the thread.
_PERSON_POLL_SECONDS = 0.05
"""Seconds between two checks whether a person has answered a job's question."""

T = TypeVar("T")


class EngineJob(Generic[T]):
    """Work for an `EngineHost`'s thread, its outputs, and its result or error."""

    def __init__(self, work: Callable[[Engine], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self._outputs: list[Any] = []
        self._lock = threading.Lock()
        self.has_begun = False
        self.is_withdrawn = False
        self.stop_requested = False
        self.model = ""  # The name of its pair, where the host has several.
        self.notices: list[Notice] = []
        """What was said when the pair was loaded, if this job did that."""
        self.on_update: Callable[[], object] = lambda: None
        """Called in the host's thread: if `take` has something, and at the end."""

    def make_update_event(self) -> asyncio.Event:
        """An event of the running loop, set by each update from now on."""
        import asyncio  # noqa: PLC0415  slow to import

        updated = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_update() -> None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(updated.set)

        self.on_update = on_update
        return updated

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether it is done and all outputs are taken."""
        return self._done.is_set() and not self._outputs

    def result(self) -> T:
        """Wait for the end and return the value. Raises what the work raised."""
        while not self._done.wait(POLL_SECONDS):
            pass
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    def take(self) -> list[Any]:
        """The outputs since the last call."""
        with self._lock:
            outputs = self._outputs
            self._outputs = []
        return outputs

    # --- called in the host's thread
    # ------------------------------------------------------

    def put(self, output: Any) -> None:
        with self._lock:
            self._outputs.append(output)
            is_first = len(self._outputs) == 1
        if is_first:
            self.on_update()

    def notify(self, event: LoadEvent) -> None:
        """Receives the events of loading the pair."""
        if isinstance(event, Notice):
            self.notices.append(event)

    def run(self, engine: Engine) -> None:
        self._value = self._work(engine)

    def finish(self, error: BaseException | None = None) -> None:
        self._error = error
        self._done.set()
        self.on_update()


class EngineHost:
    """Runs jobs in order.

    It loads the pair for the first one, and again if its process has exited. It never
    loads two pairs at a time: each is fitted to the memory that the others leave.
    """

    def __init__(
        self,
        request: SettingsRequest,
        *,
        probe: bool,
        start: StartEngine = start_engine,
        after: EngineHost | None = None,
        reloads: bool = True,
    ) -> None:
        """`start` loads the pair once `after` is closed: both may not fit.

        Without `reloads`, jobs get an engine that has exited as it is.
        """
        self._request = request
        self._probe = probe
        self._start = start
        self._after = after
        self._reloads = reloads
        self._requests: Mapping[str, SettingsRequest] = {}
        """The requests of several pairs by name; empty if there is one."""
        self._keep = 1
        self._name = ""  # The name of the pair of `engine`.
        self._idle_seconds: float | None = None
        self._others: dict[str, tuple[Engine, float]] = {}
        """Other loaded pairs with the time of their last use, the oldest first."""
        self._jobs: queue.SimpleQueue[EngineJob[Any] | None] = queue.SimpleQueue()
        """None ends the thread."""
        # It is reentrant because garbage collection may call `stop` inside it.
        self._lock = threading.RLock()
        self._current_job: EngineJob[Any] | None = None
        self._loading_engine: Engine | None = None
        self._pid = os.getpid()
        self.engine: Engine | None = None
        self.closed = False
        self.ready: EngineReady | None = None
        """What the engine that was loaded last has reported."""
        self._thread = threading.Thread(target=self._run, name="localspec", daemon=True)
        _running_hosts.add(self)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._current_job is not None or not self._jobs.empty()

    @property
    def is_lost(self) -> bool:
        """Whether no job can run any more."""
        has_exited = self.engine is not None and not self.engine.alive
        return self.closed or (has_exited and not self._reloads)

    def add_pairs(
        self,
        requests: Mapping[str, SettingsRequest],
        keep: int,
        idle_seconds: float | None,
    ) -> None:
        """Run jobs of other pairs too, by name; the first pair is that of the host.

        At most `keep` pairs stay loaded. One that is not used for `idle_seconds` is
        unloaded.
        """
        self._requests = requests
        self._keep = keep
        self._idle_seconds = idle_seconds
        self._name = next(iter(requests))

    def is_loaded(self, name: str) -> bool:
        """Whether a pair is loaded; a host of one pair ignores the name."""
        engine: Engine | None
        if name == self._name or not self._requests:
            engine = self.engine
        else:
            engine, _ = self._others.get(name, (None, 0.0))
        return engine is not None and engine.alive

    def submit(self, job: EngineJob[Any]) -> None:
        """Queue a job.

        Raises UsageError if the host is closed or in another process.
        """
        with self._lock:
            if self.closed:
                raise _closed_error()
            if self._is_forked():
                raise UsageError(
                    "This LLM was created in another process.",
                    "Create one in this process.",
                )
            self._jobs.put(job)

    def withdraw(self, job: EngineJob[Any]) -> bool:
        """Drop a job that waits; nothing ends it. False if it has begun."""
        with self._lock:
            job.is_withdrawn = not job.has_begun
            return job.is_withdrawn

    def stop(self, job: EngineJob[Any] | None = None) -> None:
        """Request the end of a job, or of the current job. Does not wait."""
        if self._is_forked():
            return
        with self._lock:  # Otherwise the next job might be stopped.
            job = job or self._current_job
            if job is None:
                return
            job.stop_requested = True
            if job is self._current_job and self.engine is not None:
                self.engine.stop()

    def end(self) -> None:
        """Refuse new jobs, stop the current one, then close the engine.

        Does not wait: garbage collection may call this in any thread, even in this one.
        """
        with self._lock:
            if not self.closed:
                self.closed = True
                self.stop()
                self._jobs.put(None)

    def close(self) -> None:
        """`end`, and wait until the engine process is closed."""
        if self._is_forked():
            return
        _running_hosts.discard(self)
        self.end()
        if threading.current_thread() is self._thread or not self._holds_memory:
            return
        if self._loading_engine is None:
            self._thread.join(_STOP_TIMEOUT)
        engine = self._loading_engine or self.engine
        if engine is not None:
            engine.close()
        self._thread.join(_JOIN_TIMEOUT)

    @property
    def _holds_memory(self) -> bool:
        """Whether this host, or the one that it waits for, has an engine process.

        A closed host creates none. If there is none, nobody has to wait for the checks
        that its thread may still make.
        """
        if self._others:
            return True
        holders = (self.engine, self._loading_engine, self._after)
        return any(each is not None for each in holders)

    def _is_forked(self) -> bool:
        """Whether it is a copy in a forked process, which has no such thread."""
        return os.getpid() != self._pid

    # --- the thread
    # -----------------------------------------------------------------------

    def run_others(self, is_over: Callable[[], bool]) -> None:
        """Run waiting jobs until `is_over`.

        A job calls it that waits for a person, and not for the engine.
        """
        own_job = self._current_job
        self._current_job = None
        while not is_over() and not self.closed:
            with suppress(queue.Empty):
                job = self._jobs.get(timeout=_PERSON_POLL_SECONDS)
                if job is None:
                    self._jobs.put(None)  # `_run` needs it, to end.
                    break
                self._run_job(job)
        self._current_job = own_job

    def _run(self) -> None:
        try:
            if self._after is not None and self._after._holds_memory:
                self._after._thread.join()
            self._after = None
            while (job := self._next_job()) is not None:
                self._run_job(job)
                del job  # Otherwise the last answer stays in memory while idle.
            self._close_engines()
        finally:
            _running_hosts.discard(self)

    def _next_job(self) -> EngineJob[Any] | None:
        """Wait for a job.

        Meanwhile do idle work, and unload what is not used for long.
        """
        with suppress(queue.Empty), self._work_while_idle():
            # Without `_idle_seconds` it waits as long as it takes.
            return self._jobs.get(timeout=self._idle_seconds)
        self._close_engines()
        return self._jobs.get()

    def _work_while_idle(self) -> AbstractContextManager[None]:
        if self._probe and isinstance(self.engine, EngineClient):
            return idle_tasks.work_while_idle(Path(self._request.load.target))
        return nullcontext()

    def _run_job(self, job: EngineJob[Any]) -> None:
        with self._lock:
            if job.is_withdrawn:
                return
            job.has_begun = True
            self._current_job = job
        error: BaseException | None = None
        try:
            if self.closed:
                raise _closed_error()
            job.run(self._ensure_engine(job))
        except BaseException as failure:  # It is raised in the caller's thread.
            error = _closed_error() if self.closed else failure
        with self._lock:
            self._current_job = None
        job.finish(error)

    def _ensure_engine(self, job: EngineJob[Any]) -> Engine:
        name = job.model if job.model in self._requests else self._name
        self._switch_to(name)
        if self._reloads and self.engine is not None and not self.engine.alive:
            self._close_engine()
            message = "The engine stopped and was loaded again."
            job.notify(Notice("warning", "loaded-again", message))
        while self.engine is None:
            try:
                self.engine = self._start(
                    self._request,
                    probe=self._probe,
                    notify=job.notify,
                    on_worker=self._set_loading_engine,
                )
            except (DoesNotFitError, OutOfMemoryError):
                if not self._others:
                    raise
                self._close_oldest()  # Then it is tried again.
            finally:
                self._loading_engine = None
        self.ready = self.engine.ready
        return self.engine

    def _switch_to(self, name: str) -> None:
        """Make `engine` that of a pair, or None if the pair must be loaded.

        Other pairs make room for it.
        """
        now = time.monotonic()
        if name != self._name:
            if self.engine is not None:
                self._others[self._name] = self.engine, now
            self._name = name
            self._request = self._requests[name]
            self.engine, _ = self._others.pop(name, (None, 0.0))
        idle_seconds = self._idle_seconds or math.inf
        while self._others:
            _, last_use = next(iter(self._others.values()))
            is_unused = now - last_use > idle_seconds
            if len(self._others) < self._keep and not is_unused:
                break
            self._close_oldest()

    def _close_oldest(self) -> None:
        name = next(iter(self._others))
        engine, _ = self._others.pop(name)
        engine.close()

    def _set_loading_engine(self, engine: Engine) -> None:
        self._loading_engine = engine
        if self.closed:  # It was closed just before the process was created.
            engine.close()

    def _close_engines(self) -> None:
        while self._others:
            self._close_oldest()
        self._close_engine()

    def _close_engine(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None  # Not earlier: `close` waits for it.


def _closed_error() -> UsageError:
    return UsageError("This LLM is closed.", "Create another: LLM(…).")


_running_hosts: set[EngineHost] = set()


@atexit.register
def _close_all() -> None:
    """Close all engines at exit.

    First end all of them, so that they shut down in parallel.
    """
    hosts = tuple(_running_hosts)
    for host in hosts:
        host.end()
    for host in hosts:
        host.close()
