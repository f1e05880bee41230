"""A thread that owns one engine and runs its jobs in order.

Callers only wait for results. So other threads, event loops and Ctrl+C cannot interrupt a command
to the engine.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

from localspec import hint_rewriting
from localspec.api.answer import Answer, Piece, build_answer, split_pieces
from localspec.chat.answer import GeneratedAnswer
from localspec.chat.context_window import run_request
from localspec.chat.settings import LoadedModel
from localspec.errors import LocalspecError, UsageError
from localspec.launch import MeasuredEngine
from localspec.protocol.events import EngineReady, Notice
from localspec.protocol.wire import GenerateCommand
from localspec.worker.engine_process import EngineProcess

_STOP_TIMEOUT = 2.0
"""Seconds for an answer to stop, before its engine process is closed."""
_JOIN_TIMEOUT = 10.0
"""Seconds that `close` waits for the thread."""
_TURN_POLL_SECONDS = 0.05
"""Seconds between two checks whether one that waits for its turn was cancelled."""
POLL_SECONDS = 0.5
"""Seconds between two checks of a waiting thread: on Windows, a wait blocks Ctrl+C."""

T = TypeVar("T")


class EngineJob(Generic[T]):
    """Work for the engine thread, with its result or error."""

    def __init__(self, work: Callable[[MeasuredEngine], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self.stop_requested = False
        self.notices: list[Notice] = []
        self.on_update: Callable[[], None] = lambda: None
        """Called in the engine thread after every event."""

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self) -> T:
        """Wait for the end and return the value. Raises what the work raised."""
        while not self._done.wait(POLL_SECONDS):
            pass
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    # --- called in the engine thread ------------------------------------------------------

    def run(self, engine: MeasuredEngine) -> None:
        self._value = self._work(engine)

    def finish(self, error: BaseException | None = None) -> None:
        self._error = error
        self._done.set()
        self.on_update()


class AnswerJob(EngineJob[Answer]):
    """Generates an answer and streams its pieces."""

    def __init__(
        self, build_request: Callable[[EngineReady], tuple[GenerateCommand, LoadedModel]]
    ) -> None:
        super().__init__(self._generate_answer)
        self._build_request = build_request
        self.pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        """None marks the end."""

    def finish(self, error: BaseException | None = None) -> None:
        super().finish(error)
        self.pieces.put(None)
        self.on_update()

    def _generate_answer(self, engine: MeasuredEngine) -> Answer:
        request, loaded = self._build_request(engine.ready)
        generated = GeneratedAnswer()
        events = run_request(engine, request, lambda: self.stop_requested)
        try:
            for event in () if self.stop_requested else events:
                generated.add(event)
                for piece in split_pieces(event):
                    self.pieces.put(piece)
                self.on_update()
        except LocalspecError as error:
            error.said = generated.text
            raise
        return build_answer(generated, request, engine.ready, loaded, self.notices)


class EngineTurns:
    """Turns at an engine that others use too, such as a chat: first come, first served."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tickets: deque[object] = deque()
        """The first one has the turn."""

    @property
    def is_free(self) -> bool:
        return not self._tickets

    @contextmanager
    def take(self, is_cancelled: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Wait for the turn, and keep it for the block. False if it was cancelled before."""
        ticket = object()
        with self._changed:
            self._tickets.append(ticket)
            while self._tickets[0] is not ticket and not is_cancelled():
                self._changed.wait(_TURN_POLL_SECONDS)
            has_turn = self._tickets[0] is ticket
        try:
            yield has_turn
        finally:
            with self._changed:
                self._tickets.remove(ticket)
                self._changed.notify_all()


class EngineFactory(Protocol):
    """Loads the pair. `on_worker` receives the process before it loads."""

    def __call__(
        self, on_worker: Callable[[EngineProcess], None], notify: Callable[[Notice], None]
    ) -> MeasuredEngine: ...


class EngineThread:
    """Runs jobs in order. Loads the pair again if its process has exited."""

    def __init__(
        self,
        load_engine: EngineFactory,
        rewrite_hint: Callable[[str], str] = hint_rewriting.for_python,
        turns: EngineTurns | None = None,
    ) -> None:
        """`turns`: at an engine that others use too; it is not closed here."""
        self._load_engine, self._rewrite_hint = load_engine, rewrite_hint
        self._jobs: queue.SimpleQueue[EngineJob[Any] | None] = queue.SimpleQueue()
        self._turns, self._owns_engine = turns or EngineTurns(), turns is None
        self._lock = threading.RLock()  # reentrant: garbage collection may call `stop` inside it
        self._current_job: EngineJob[Any] | None = None
        self._engine: MeasuredEngine | None = None
        self._loading_worker: EngineProcess | None = None
        self._pid = os.getpid()
        self.closed = False
        self.ready: EngineReady | None = None
        """The ready event of the last loaded engine."""
        self._thread = threading.Thread(target=self._run, name="localspec", daemon=True)
        _running_threads.add(self)
        self._thread.start()

    def submit(self, job: EngineJob[Any]) -> None:
        """Queue a job. Raises UsageError if the thread is closed or in another process."""
        with self._lock:
            if self.closed:
                raise _closed_error()
            if self._is_forked():
                raise UsageError(
                    "This LLM was created in another process.", "Create one in this process."
                )
            self._jobs.put(job)

    def stop(self, job: EngineJob[Any] | None = None) -> None:
        """Request the end of a job, or of the current job. Does not wait."""
        if self._is_forked():
            return
        with self._lock:  # otherwise the next job might be stopped
            job = job or self._current_job
            if job is None:
                return
            job.stop_requested = True
            if job is self._current_job and self._engine is not None:
                self._engine.stop()

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
        self.end()
        if threading.current_thread() is self._thread:
            return
        if self._loading_worker is None:
            self._thread.join(_STOP_TIMEOUT)
        engine = self._loading_worker or self._engine
        if engine is not None and self._owns_engine:
            engine.close()
        self._thread.join(_JOIN_TIMEOUT)

    def _is_forked(self) -> bool:
        """Whether this is a copy in a forked process, where the thread does not exist."""
        return os.getpid() != self._pid

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if self.closed:
                    job.finish(_closed_error())
                else:
                    self._run_job(job)
                del job  # otherwise the last answer stays in memory while idle
            self._close_engine()
        finally:
            _running_threads.discard(self)

    def _run_job(self, job: EngineJob[Any]) -> None:
        error: BaseException | None = None
        try:
            with self._turns.take(lambda: job.stop_requested or self.closed) as has_turn:
                if has_turn:
                    self._run_in_turn(job)
        except BaseException as failure:  # raised in the caller's thread
            error = _closed_error() if self.closed else failure
            if isinstance(error, LocalspecError):
                error.hint = self._rewrite_hint(error.hint)
        job.finish(error)

    def _run_in_turn(self, job: EngineJob[Any]) -> None:
        engine = self._ensure_engine(job)
        with self._lock:
            self._current_job = job
        try:
            job.run(engine)
        finally:
            with self._lock:
                self._current_job = None

    def _ensure_engine(self, job: EngineJob[Any]) -> MeasuredEngine:
        if self._engine is not None and not self._engine.worker.alive:
            self._close_engine()
            job.notices.append(
                Notice("warning", "loaded-again", "The engine stopped and was loaded again.")
            )
        if self._engine is None:
            try:
                self._engine = self._load_engine(self._set_loading_worker, job.notices.append)
            finally:
                self._loading_worker = None
            self.ready = self._engine.ready
        return self._engine

    def _set_loading_worker(self, process: EngineProcess) -> None:
        self._loading_worker = process
        if self.closed:  # closed just before the process was created
            process.close()

    def _close_engine(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None and self._owns_engine:
            engine.close()


def _closed_error() -> UsageError:
    return UsageError("This LLM is closed.", "Create another: LLM(…).")


_running_threads: set[EngineThread] = set()


@atexit.register
def _close_all() -> None:
    """Close all engines at exit. First end all of them, so that they shut down in parallel."""
    threads = tuple(_running_threads)
    for thread in threads:
        thread.end()
    for thread in threads:
        thread.close()
