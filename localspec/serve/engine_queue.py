"""Requests before the engine: in order, bounded, and stopped when their client leaves."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from localspec.api.engine_thread import EngineFactory, EngineJob, EngineThread, EngineTurns
from localspec.chat.context_window import run_request
from localspec.errors import PromptTooLongError
from localspec.launch import MeasuredEngine
from localspec.protocol.events import EngineReady, Event
from localspec.protocol.wire import CountCommand, GenerateCommand
from localspec.serve import api_error
from localspec.serve.api_error import ApiError

T = TypeVar("T")
MAX_WAITING = 16
"""Default number of requests that wait behind the one that is answered."""
_MAX_RETRY_SECONDS = 30


class AnswerEvents:
    """The events of one answer of the engine thread, for an asyncio task."""

    def __init__(self, build: Callable[[MeasuredEngine], GenerateCommand]) -> None:
        self._build = build
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._updated = asyncio.Event()
        self.job: EngineJob[None] = EngineJob(self._generate)
        self.job.on_update = self._wake

    @property
    def has_ended(self) -> bool:
        """Whether no more events will come."""
        return self.job.is_done and not self._events

    async def next_batch(self, timeout: float) -> list[Event]:
        """The events since the last call; none after `timeout` seconds, or at the end.

        Raises ApiError if the answer failed.
        """
        if not self._events and not self.job.is_done:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._updated.wait()
            self._updated.clear()
        if not self._events and self.job.is_done:
            self.job.result()
        batch = []
        while self._events:
            batch.append(self._events.popleft())
        return batch

    # --- in the engine thread -------------------------------------------------------------

    def _generate(self, engine: MeasuredEngine) -> None:
        if self.job.stop_requested:
            return
        command = self._build(engine)
        try:
            for event in run_request(engine, command, lambda: self.job.stop_requested):
                self._events.append(event)
                self._wake()
        except PromptTooLongError:
            raise _context_exceeded(engine, command) from None

    def _wake(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._updated.set)


def _context_exceeded(engine: MeasuredEngine, command: GenerateCommand) -> ApiError:
    n_prompt = len(command.prompt_tokens) or engine.count(
        CountCommand(command.text, command.messages, command.template, command.think)
    )
    n_ctx = int(engine.ready.settings["target"]["n_ctx"])
    return api_error.context_exceeded(n_prompt + len(command.begun), n_ctx)


class EngineQueue:
    """One engine and the requests that wait for it. Used by the event loop's thread only."""

    def __init__(
        self,
        load_engine: EngineFactory,
        max_waiting: int = MAX_WAITING,
        turns: EngineTurns | None = None,
    ) -> None:
        """`turns`: as of `EngineThread`."""
        self._thread = EngineThread(load_engine, lambda hint: hint, turns)
        self._max_admitted = max_waiting + 1
        self._admitted = 0
        self._mean_seconds = 1.0
        self._failures = 0
        """Consecutive failures of the engine."""
        self.ready: EngineReady | None = None
        self.is_closing = False
        self._jobs: set[EngineJob[Any]] = set()

    async def load(self) -> EngineReady:
        """Load the pair. Raises the engine's error."""
        self.ready = await self._run(lambda engine: engine.ready)
        return self.ready

    def admit(self) -> Admission:
        """Take a place in the queue. Raises ApiError if it is full, or while loading."""
        if self.is_closing:
            raise api_error.shutting_down()
        if self.ready is None:
            raise api_error.loading()
        if self._admitted >= self._max_admitted:
            seconds = min(_MAX_RETRY_SECONDS, max(1, math.ceil(self._mean_seconds)))
            raise ApiError(
                429,
                f"The queue is full: {self._admitted - 1} requests are waiting.",
                name="queue_full",
                headers={"Retry-After": str(seconds)},
            )
        return Admission(self)

    def submit(self, job: EngineJob[Any]) -> None:
        self._jobs.add(job)
        self._thread.submit(job)

    def stop(self, job: EngineJob[Any]) -> None:
        """After the round in progress; a job that has not begun never begins."""
        self._thread.stop(job)

    def forget(self, job: EngineJob[Any]) -> None:
        """Called after the end of a job."""
        self._jobs.discard(job)

    def record_failure(self, error: Exception) -> ApiError:
        """The error for the client; after the second one in a row it should not try again."""
        if self.is_closing:
            return api_error.shutting_down()
        failure = api_error.from_engine(error, may_retry=self._failures == 0)
        self._failures = self._failures + 1 if failure.status == 500 else 0
        return failure

    def record_success(self) -> None:
        self._failures = 0

    async def run(self, work: Callable[[MeasuredEngine], T]) -> T:
        """Run short work in its turn. Raises ApiError."""
        with self.admit():
            try:
                return await self._run(work)
            except ApiError:
                raise
            except Exception as error:
                raise self.record_failure(error) from None

    async def _run(self, work: Callable[[MeasuredEngine], T]) -> T:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        job = EngineJob(work)

        def on_update() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

        job.on_update = on_update
        self.submit(job)
        try:
            await done.wait()
            return job.result()
        finally:
            self.stop(job)
            self.forget(job)

    def stop_all(self) -> None:
        """Refuse new requests and stop all others."""
        self.is_closing = True
        for job in tuple(self._jobs):
            self.stop(job)

    def end(self) -> None:
        """Begin to close the engine; does not wait."""
        self._thread.end()

    def close(self) -> None:
        """Close the engine and wait for it."""
        self._thread.close()


class Admission:
    """A place in the queue, from a request's arrival to the end of its work in the engine."""

    def __init__(self, queue: EngineQueue) -> None:
        self._queue = queue
        self.position = queue._admitted
        """Number of requests before this one."""
        self._began = time.monotonic()
        self._is_open = True
        queue._admitted += 1

    def release(self) -> None:
        if self._is_open:
            self._is_open = False
            queue = self._queue
            queue._admitted -= 1
            seconds = (time.monotonic() - self._began) / (self.position + 1)
            queue._mean_seconds = 0.7 * queue._mean_seconds + 0.3 * seconds

    def __enter__(self) -> Admission:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
