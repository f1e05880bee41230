"""Signals in a chat: Ctrl+C stops an answer, and what ends the chat leaves the terminal whole."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_TWICE = 1.0
"""Seconds in which a second Ctrl+C quits."""
_HUNG_UP = 129


class Stopper:
    """When Ctrl+C stopped the last answer."""

    def __init__(self) -> None:
        self._at: float | None = None

    @property
    def pressed(self) -> bool:
        return self._at is not None

    @property
    def ms(self) -> float | None:
        """Since it was pressed."""
        return None if self._at is None else (time.monotonic() - self._at) * 1e3

    @property
    def recent(self) -> bool:
        """Whether another now is the second of two."""
        return self._at is not None and time.monotonic() - self._at < _TWICE

    @contextmanager
    def during(self, stop: Callable[[], None]) -> Iterator[None]:
        """While an answer comes: the first calls `stop`, the second is a KeyboardInterrupt."""
        self._at = None

        def pressed(*_: int | FrameType | None) -> None:
            if self._at is not None:
                raise KeyboardInterrupt
            self._at = time.monotonic()
            stop()

        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def ending_well() -> Iterator[None]:
    """SIGTERM and a closed terminal become SystemExit: readline and the engine are put in order."""

    def end(number: int, _: FrameType | None) -> None:
        if number != signal.SIGTERM:
            _let_go()
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        _let_go()  # the terminal is gone, and its signal still to come
        raise SystemExit(_HUNG_UP) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _let_go() -> None:
    """Nobody is there to read."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        with suppress(OSError):
            os.dup2(nowhere, stream)
