"""Requests before the engine: in order, bounded, and stopped when their client leaves."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet

from localspec.launch import Engine
from localspec.launch.engine_host import EngineHost, EngineJob
from localspec.protocol.events import EngineReady
from localspec.serve import api_error
from localspec.serve.api_error import ApiError

T = TypeVar("T")
MAX_WAITING = 16
"""Default number of requests that wait behind the one that is answered."""
_MAX_RETRY_SECONDS = 30
_MAX_BATCH = 64  # Outputs of a job that the event loop handles at once.


class AsyncJob(EngineJob[T]):
    """A job of the engine's thread for an asyncio task."""

    def __init__(self, work: Callable[[Engine], T]) -> None:
        super().__init__(work)
        self.updated = self.make_update_event()
        self._taken: deque[Any] = deque()

    @property
    def has_ended(self) -> bool:
        return super().has_ended and not self._taken

    async def wait_for_output(self, timeout: float) -> None:
        """Return when there is an output to take, at the end, or after `timeout` seconds.

        Raises what the work raised, if there is no output before that.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self._has_output() and not self.is_done:
                    await self.updated.wait()
                    self.updated.clear()
        # The job may have put out its last events and ended after the last look.
        if not self._has_output() and self.has_ended:
            self.result()

    async def next_batch(self, timeout: float) -> list[Any]:
        """As `wait_for_output`, and take the outputs; none if there are none.

        At most _MAX_BATCH, whatever has gathered while a client was slow: what is made
        of them holds up the others.
        """
        await self.wait_for_output(timeout)
        n_outputs = min(len(self._taken), _MAX_BATCH)
        return [self._taken.popleft() for _ in range(n_outputs)]

    def _has_output(self) -> bool:
        if not self._taken:
            self._taken.extend(self.take())
        return bool(self._taken)


class EngineQueue:
    """The requests that wait for one engine. Used by the event loop's thread only."""

    def __init__(self, host: EngineHost, max_waiting: int = MAX_WAITING) -> None:
        self.host = host
        self._max_admitted = max_waiting + 1
        self._admitted = 0  # Requests that have a place now.
        self._mean_seconds = 1.0  # Of one request, from its start to its end.
        self._failures = 0  # Consecutive failures of the engine.
        self._is_loaded = False
        self.is_closing = False
        self._jobs: WeakSet[EngineJob[Any]] = WeakSet()

    async def load(self) -> EngineReady:
        """Load the pair, and admit requests from then on. Raises the engine's error."""
        settings = await self._run(lambda engine: engine.ready)
        self._is_loaded = True
        return settings

    def admit(self) -> Admission:
        """Take a place in the queue.

        Raises ApiError if it is full, or while loading.
        """
        if self.is_closing:
            raise api_error.shutting_down()
        if not self._is_loaded:
            raise api_error.loading()
        if self.host.is_lost:
            raise _host_closed()
        if self._admitted >= self._max_admitted:
            seconds = min(_MAX_RETRY_SECONDS, max(1, math.ceil(self._mean_seconds)))
            message = f"The queue is full: {self._admitted - 1} requests are waiting."
            wait = {"Retry-After": str(seconds)}
            raise ApiError(429, message, name="queue_full", headers=wait)
        admission = Admission(self._admitted, self._release)
        self._admitted += 1
        return admission

    def _release(self, seconds: float) -> None:
        self._admitted -= 1
        self._mean_seconds = 0.7 * self._mean_seconds + 0.3 * seconds

    def submit(self, job: EngineJob[Any]) -> None:
        self._jobs.add(job)
        self.host.submit(job)

    def record_failure(self, error: Exception) -> ApiError:
        """The error for the client.

        After the second one in a row the client should not try again.
        """
        if self.is_closing:
            return api_error.shutting_down()
        if self.host.is_lost:
            return _host_closed()
        failure = api_error.from_engine(error, may_retry=self._failures == 0)
        if failure.status == 500:
            self._failures += 1
        else:
            self._failures = 0
        return failure

    def record_success(self) -> None:
        self._failures = 0

    async def run(self, work: Callable[[Engine], T], model: str) -> T:
        """Run short work in its turn, with the engine of a model. Raises ApiError."""
        admission = self.admit()
        try:
            return await self._run(work, model)
        except Exception as error:
            raise self.record_failure(error) from None
        finally:
            admission.release()

    async def _run(self, work: Callable[[Engine], T], model: str = "") -> T:
        job = AsyncJob(work)
        job.model = model
        self.submit(job)
        try:
            await job.updated.wait()
            return job.result()
        finally:
            self.host.stop(job)

    def stop_all(self) -> None:
        """Refuse new requests and stop all others."""
        self.is_closing = True
        for job in tuple(self._jobs):
            self.host.stop(job)


def _host_closed() -> ApiError:
    return ApiError(500, "The engine has stopped. Load the model again in the app: f5.")


class Admission:
    """A place in the queue, from a request's arrival to the end of its work."""

    def __init__(self, position: int, on_release: Callable[[float], None]) -> None:
        """`position`: the number of requests before this one.

        `on_release` receives the seconds of a request. A request that was the third of
        the queue and ended after 6 seconds waited for two others, so it took 2.
        """
        self.position = position
        self._on_release = on_release
        self._began = time.monotonic()
        self._is_open = True

    def release(self) -> None:
        """Leave the queue; does nothing the second time."""
        if self._is_open:
            self._is_open = False
            seconds = time.monotonic() - self._began
            self._on_release(seconds / (self.position + 1))
