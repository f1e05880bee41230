"""Waiting for answers in an asyncio event loop without blocking it."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from localspec.api.answer import Answer, Piece
from localspec.api.engine_thread import AnswerJob, EngineJob, EngineThread


async def await_answer(engine_thread: EngineThread, job: AnswerJob) -> Answer:
    """Wait for the whole answer. Cancelling the task stops the answer."""
    updated = _submit(engine_thread, job)
    try:
        while not job.is_done:
            await _wait_for_update(updated)
    finally:
        engine_thread.stop(job)  # no effect after the end
    return job.result()


async def stream_pieces(engine_thread: EngineThread, job: AnswerJob) -> AsyncGenerator[Piece, None]:
    """Yield the pieces. Closing the generator stops the answer."""
    updated = _submit(engine_thread, job)
    try:
        while True:
            try:
                piece = job.pieces.get_nowait()
            except queue.Empty:
                await _wait_for_update(updated)
                continue
            if piece is None:
                job.result()  # raises the job's error
                return
            yield piece
    finally:
        engine_thread.stop(job)


async def _wait_for_update(updated: asyncio.Event) -> None:
    await updated.wait()
    updated.clear()


def _submit(engine_thread: EngineThread, job: EngineJob[Any]) -> asyncio.Event:
    """Submit the job. Returns an event that is set at every update."""
    updated, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_update() -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(updated.set)

    job.on_update = on_update
    engine_thread.submit(job)
    return updated
