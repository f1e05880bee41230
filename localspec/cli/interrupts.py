"""Ctrl+C during a command: the first one stops its work, a second one quits at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Calls `stop` on the first Ctrl+C; yields whether that has happened."""
    is_stopped = False

    def handle(*_: int | FrameType | None) -> None:
        nonlocal is_stopped
        is_stopped = True
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: is_stopped
    finally:
        signal.signal(signal.SIGINT, before)
