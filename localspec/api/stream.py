"""Answers as jobs of an engine's thread, and their pieces as iterators that can be closed early."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from localspec.api.answer import Answer, Piece, build_answer, python_hint, split_pieces
from localspec.chat.answer import GeneratedAnswer
from localspec.chat.context_window import check_answer
from localspec.chat.settings import LoadedModel
from localspec.errors import LocalspecError
from localspec.launch import Engine
from localspec.launch.engine_host import POLL_SECONDS, EngineHost, EngineJob
from localspec.protocol.events import EngineReady
from localspec.protocol.wire import GenerateCommand

_T = TypeVar("_T")


class PythonJob(EngineJob[_T]):
    """A job whose error names the arguments of Python in its hint."""

    def finish(self, error: BaseException | None = None) -> None:
        """As of every job."""
        if isinstance(error, LocalspecError):
            error.hint = python_hint(error.hint)
        super().finish(error)


class AnswerJob(PythonJob[Answer]):
    """Generates an answer and puts out its pieces."""

    def __init__(
        self, build_request: Callable[[EngineReady], tuple[GenerateCommand, LoadedModel]]
    ) -> None:
        super().__init__(self._generate_answer)
        self._build_request = build_request

    def _generate_answer(self, engine: Engine) -> Answer:
        request, loaded = self._build_request(engine.ready)
        generated = GeneratedAnswer()
        try:
            for event in () if self.stop_requested else engine.generate(request):
                generated.add(event)
                for piece in split_pieces(event):
                    self.put(piece)
                check_answer(engine, event, lambda: self.stop_requested)
        except LocalspecError as error:
            error.said = generated.text
            raise
        return build_answer(generated, request, engine.ready, loaded, self.notices)


class Stream:
    """The pieces of an answer, in order.

    The engine continues even if the stream is not read. Leaving a `with` block, `close()` or
    deleting the stream stops the answer; so does Ctrl+C while waiting for a piece.
    """

    def __init__(self, host: EngineHost, job: AnswerJob, owner: object) -> None:
        self._host, self._job = host, job
        self._owner = owner
        """Keeps the LLM alive as long as its stream."""
        self._pieces: deque[Piece] = deque()
        self._updated = threading.Event()
        self._closed = False
        job.on_update = self._updated.set
        host.submit(job)

    @property
    def answer(self) -> Answer:
        """Wait for the end and return the whole answer; for a closed stream, the part so far.

        Raises as `LLM.generate`.
        """
        return self._job.result()

    def stop(self) -> None:
        """Stop the answer, from any thread. Pieces already written are still returned."""
        self._host.stop(self._job)

    def close(self) -> None:
        """Stop the answer and return no more pieces. From any thread; does not wait."""
        self._closed = True
        self._host.stop(self._job)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """Raises as `LLM.generate`."""
        try:
            while not self._closed:
                self._pieces += self._job.take()
                if self._pieces:
                    return self._pieces.popleft()
                if self._job.has_ended:
                    self._job.result()  # raises the job's error
                    break
                self._updated.wait(POLL_SECONDS)
                self._updated.clear()
        except BaseException:
            self._host.stop(self._job)
            raise
        raise StopIteration

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._host.stop(self._job)


async def stream_pieces(host: EngineHost, job: AnswerJob) -> AsyncGenerator[Piece, None]:
    """Yield the pieces. Closing the generator stops the answer. Raises as `LLM.generate`."""
    import asyncio  # noqa: PLC0415  slow to import

    updated, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_update() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(updated.set)

    job.on_update = on_update
    host.submit(job)
    try:
        while not job.has_ended:
            await updated.wait()
            updated.clear()
            for piece in job.take():
                yield piece
        job.result()  # raises the job's error
    finally:
        host.stop(job)  # no effect after the end
