"""Waiting for an answer in an event loop, which goes on in the meantime."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from localspec.api.answer import Answer, Piece
from localspec.api.engine_thread import AnswerJob, EngineJob, EngineThread


async def await_answer(engine_thread: EngineThread, job: AnswerJob) -> Answer:
    """The whole answer; a task that is cancelled ends it."""
    news = _submit(engine_thread, job)
    try:
        while not job.is_done:
            await _wait_for_update(news)
    finally:
        engine_thread.stop(job)  # nothing to stop where it has ended
    return job.result()


async def stream_pieces(engine_thread: EngineThread, job: AnswerJob) -> AsyncGenerator[Piece, None]:
    """Its pieces; leaving early ends it."""
    news = _submit(engine_thread, job)
    try:
        while True:
            try:
                piece = job.pieces.get_nowait()
            except queue.Empty:
                await _wait_for_update(news)
                continue
            if piece is None:
                job.result()  # raises what went wrong
                return
            yield piece
    finally:
        engine_thread.stop(job)


async def _wait_for_update(updated: asyncio.Event) -> None:
    await updated.wait()
    updated.clear()


def _submit(engine_thread: EngineThread, job: EngineJob[Any]) -> asyncio.Event:
    """Is set whenever there is something new."""
    news, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(news.set)

    job.on_update = wake
    engine_thread.submit(job)
    return news
