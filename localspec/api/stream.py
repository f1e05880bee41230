"""An answer while it is written: an iterator of pieces that can be closed early."""

from __future__ import annotations

import queue
from types import TracebackType

from localspec.api.answer import Answer, Piece
from localspec.api.engine_thread import POLL_SECONDS, AnswerJob, EngineThread


class Stream:
    """Pieces of an answer, in order.

    The engine writes on while nobody looks.  Leaving a `with` block, `close()`, or letting go of
    the stream ends the answer; so does Ctrl+C while waiting for a piece.
    """

    def __init__(self, engine_thread: EngineThread, job: AnswerJob, owner: object) -> None:
        self._engine_thread, self._job = engine_thread, job
        self._owner = owner
        """The engine's owner must live as long as its stream."""
        self._closed = False

    @property
    def answer(self) -> Answer:
        """The whole answer; waits for its end.  Of a closed stream what had come by then.

        Raises as `LLM.generate`.
        """
        return self._job.result()

    def stop(self) -> None:
        """End the answer; pieces that were written by then still come.  From any thread."""
        self._engine_thread.stop(self._job)

    def close(self) -> None:
        """End the answer and give no more pieces.  From any thread; does not wait."""
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
            self._job.result()  # raises what went wrong
        raise StopIteration

    def _next(self) -> Piece | None:
        while not self._closed:
            try:
                piece = self._job.pieces.get(timeout=POLL_SECONDS)
            except queue.Empty:
                continue
            if piece is None:
                self._job.pieces.put(None)  # for whoever asks again
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
