"""Streamed answers: an iterator of pieces that can be closed early."""

from __future__ import annotations

import queue
from types import TracebackType

from localspec.api.answer import Answer, Piece
from localspec.api.engine_thread import POLL_SECONDS, AnswerJob, EngineThread


class Stream:
    """The pieces of an answer, in order.

    The engine continues even if the stream is not read. Leaving a `with` block, `close()` or
    deleting the stream stops the answer; so does Ctrl+C while waiting for a piece.
    """

    def __init__(self, engine_thread: EngineThread, job: AnswerJob, owner: object) -> None:
        self._engine_thread, self._job = engine_thread, job
        self._owner = owner
        """Keeps the LLM alive as long as its stream."""
        self._closed = False

    @property
    def answer(self) -> Answer:
        """Wait for the end and return the whole answer; for a closed stream, the part so far.

        Raises as `LLM.generate`.
        """
        return self._job.result()

    def stop(self) -> None:
        """Stop the answer, from any thread. Pieces already written are still returned."""
        self._engine_thread.stop(self._job)

    def close(self) -> None:
        """Stop the answer and return no more pieces. From any thread; does not wait."""
        self._closed = True
        self._engine_thread.stop(self._job)

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        """Raises as `LLM.generate`."""
        try:
            piece = None if self._closed else self._next()
        except BaseException:
            self._engine_thread.stop(self._job)
            raise
        if piece is not None:
            return piece
        if not self._closed:
            self._job.result()  # raises the job's error
        raise StopIteration

    def _next(self) -> Piece | None:
        while not self._closed:
            try:
                piece = self._job.pieces.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if piece is None:
                self._job.pieces.put(None)  # for further calls
            return piece
        return None

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
        self._engine_thread.stop(self._job)
