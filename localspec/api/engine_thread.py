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
from typing import Any, Generic, Protocol, TypeVar, cast

from localspec import hints
from localspec.api.answer import Answer, AnswerBuilder, Piece
from localspec.chat.settings import LoadedModel
from localspec.errors import LocalspecError, UsageError
from localspec.launch import MeasuredEngine
from localspec.protocol.events import EngineExit, EngineReady, Notice
from localspec.protocol.wire import GenerateCommand
from localspec.worker import crashes
from localspec.worker.engine_process import EngineProcess

_STOP_TIMEOUT = 2.0
"""Seconds that an answer has to stop before its engine is closed under it."""
_JOIN_TIMEOUT = 10.0
"""Seconds that whoever closes waits for the thread's end."""


class EngineFactory(Protocol):
    """Loads the pair; `hold` gets the process before it loads, `say` what is to be told."""

    def __call__(
        self, on_worker: Callable[[EngineProcess], None], notify: Callable[[Notice], None]
    ) -> MeasuredEngine: ...


class EngineThread:
    """Does jobs in the order in which they came, and loads the pair again where it has died."""

    def __init__(self, load_engine: EngineFactory) -> None:
        self._load_engine = load_engine
        self._jobs: queue.SimpleQueue[EngineJob[Any] | None] = queue.SimpleQueue()
        self._lock = threading.RLock()  # garbage may be collected, and stop a job, inside of it
        self._current_job: EngineJob[Any] | None = None
        self._engine: MeasuredEngine | None = None
        self._loading_worker: EngineProcess | None = None
        self._pid = os.getpid()
        self.closed = False
        self.ready: EngineReady | None = None
        """Of the engine that was loaded last."""
        self._thread = threading.Thread(target=self._run, name="localspec", daemon=True)
        _running_threads.add(self)
        self._thread.start()

    def submit(self, job: EngineJob[Any]) -> None:
        """Do this when its turn comes.  Raises UsageError where nobody would."""
        with self._lock:
            if self.closed:
                raise _closed_error()
            if self._is_forked():
                raise UsageError("This LLM was made by another process.", "Make one in this one.")
            self._jobs.put(job)

    def stop(self, job: EngineJob[Any] | None = None) -> None:
        """End a job, or the one in progress, as soon as the engine heeds it.  Does not wait."""
        if self._is_forked():
            return
        with self._lock:  # so that it is not the next one that is stopped
            job = job or self._current_job
            if job is None:
                return
            job.stop_requested = True
            if job is self._current_job and self._engine is not None:
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
        if self._is_forked():
            return
        self.end()
        if threading.current_thread() is self._thread:
            return
        if self._loading_worker is None:
            self._thread.join(_STOP_TIMEOUT)
        busy = self._loading_worker or self._engine
        if busy is not None:
            busy.close()
        self._thread.join(_JOIN_TIMEOUT)

    def _is_forked(self) -> bool:
        """Whether this is a copy, in a process that was forked: the thread is not."""
        return os.getpid() != self._pid

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                if self.closed:
                    job.finish(_closed_error())
                else:
                    self._run_job(job)
                del job  # else the last answer is kept while there is nothing to do
            self._close_engine()
        finally:
            _running_threads.discard(self)

    def _run_job(self, job: EngineJob[Any]) -> None:
        error: BaseException | None = None
        try:
            engine = self._ensure_engine(job)
            with self._lock:
                self._current_job = job
            job.run(engine)
        except BaseException as failure:  # it is the caller's, on another thread
            error = _closed_error() if self.closed else failure
            if isinstance(error, LocalspecError):
                error.hint = hints.for_python(error.hint)
        with self._lock:
            self._current_job = None
        job.finish(error)

    def _ensure_engine(self, job: EngineJob[Any]) -> MeasuredEngine:
        """The engine; loaded again where its process has ended."""
        if self._engine is not None and not self._engine.worker.alive:
            self._close_engine()
            job.notices.append(
                Notice("warning", "loaded-again", "The engine had to be loaded again.")
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
        if self.closed:  # before there was anything to close
            process.close()

    def _close_engine(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def _closed_error() -> UsageError:
    return UsageError("This LLM is closed.", "Make another: LLM(…).")


_running_threads: set[EngineThread] = set()


@atexit.register
def _close_all() -> None:
    """When the interpreter ends, engines do: all at once, and before it complains of them."""
    desks = tuple(_running_threads)
    for desk in desks:
        desk.end()
    for desk in desks:
        desk.close()


# --- What an engine is to do, and what came of it: made in one thread, done in another.

T = TypeVar("T")

POLL_SECONDS = 0.5
"""Seconds after which a waiting thread looks up: Windows lets no Ctrl+C through before."""


class EngineJob(Generic[T]):
    """Something to be done with an engine; whoever waits gets its value, or its error."""

    def __init__(self, work: Callable[[MeasuredEngine], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        self.stop_requested = False
        """Whether nobody wants more of it."""
        self.notices: list[Notice] = []
        self.on_update: Callable[[], None] = lambda: None
        """Called whenever there is something new."""

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def result(self) -> T:
        """Waits for the end.  Raises what the work raised."""
        while not self._done.wait(POLL_SECONDS):
            pass
        if self._error is not None:
            raise self._error
        return cast(T, self._value)

    # --- for the thread that does it ------------------------------------------------------

    def run(self, engine: MeasuredEngine) -> None:
        self._value = self._work(engine)

    def finish(self, error: BaseException | None = None) -> None:
        self._error = error
        self._done.set()
        self.on_update()


class AnswerJob(EngineJob[Answer]):
    """An answer, whose pieces can be had while it is written."""

    def __init__(
        self, build_request: Callable[[EngineReady], tuple[GenerateCommand, LoadedModel]]
    ) -> None:
        super().__init__(self._generate_answer)
        self._build_request = build_request
        self.pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        """The last is None."""

    def finish(self, error: BaseException | None = None) -> None:
        super().finish(error)
        self.pieces.put(None)
        self.on_update()

    def _generate_answer(self, engine: MeasuredEngine) -> Answer:
        request, loaded = self._build_request(engine.ready)
        made = AnswerBuilder(notices=self.notices)
        try:
            self._receive_events(engine, request, made)
        except LocalspecError as error:
            error.said = made.text
            raise
        return made.build(request, engine.ready, loaded)

    def _receive_events(
        self, engine: MeasuredEngine, request: GenerateCommand, builder: AnswerBuilder
    ) -> None:
        if self.stop_requested:  # before it began
            return
        for event in engine.generate(request):
            for piece in builder.add_event(event):
                self.pieces.put(piece)
            self.on_update()
            if isinstance(event, EngineExit):
                raise crashes.exit_error(event)
            if self.stop_requested:  # perhaps before the engine had anything to stop
                engine.stop()
