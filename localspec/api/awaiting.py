"""Waiting for an answer in an event loop, which goes on in the meantime."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from localspec.api.answer import Answer, Piece
from localspec.api.desk import Desk
from localspec.api.jobs import Answering, Job


async def answer(desk: Desk, job: Answering) -> Answer:
    """The whole answer; a task that is cancelled ends it."""
    news = _submitted(desk, job)
    try:
        while not job.ended:
            await _heard(news)
    finally:
        desk.stop(job)  # nothing to stop where it has ended
    return job.result()


async def pieces(desk: Desk, job: Answering) -> AsyncGenerator[Piece, None]:
    """Its pieces; leaving early ends it."""
    news = _submitted(desk, job)
    try:
        while True:
            try:
                piece = job.pieces.get_nowait()
            except queue.Empty:
                await _heard(news)
                continue
            if piece is None:
                job.result()  # raises what went wrong
                return
            yield piece
    finally:
        desk.stop(job)


async def _heard(news: asyncio.Event) -> None:
    await news.wait()
    news.clear()


def _submitted(desk: Desk, job: Job[Any]) -> asyncio.Event:
    """Is set whenever there is something new."""
    news, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(news.set)

    job.wake = wake
    desk.submit(job)
    return news
