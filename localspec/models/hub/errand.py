"""Work that can be called off: whoever waits for it leaves at once, whatever it hangs in."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

from localspec.errors import DownloadError

_T = TypeVar("_T")

TICK = 0.1
"""Seconds after which a waiting thread looks up whether it was called off."""


class Stopped(Exception):  # noqa: N818  not an error
    """The person called it off."""


class Stop:
    """Says that something is to end; who pauses on it wakes at once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def check(self) -> None:
        """Raise Stopped where it is called off."""
        if self._event.is_set():
            raise Stopped

    def pause(self, seconds: float) -> None:
        """Wait that long, or raise Stopped."""
        if self._event.wait(seconds):
            raise Stopped


class Broken(DownloadError):  # noqa: N818  what there is, not a kind to tell apart
    """A failure that may pass: the same again, a little later, may work."""

    def __init__(self, message: str, hint: str = "", wait: float | None = None) -> None:
        super().__init__(message, hint or "Run the same command again: it goes on from there.")
        self.wait = wait
        """Seconds that the hub asks for."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to bear with a network."""

    tries: int = 6
    """In a row without a byte."""
    first: float = 1.0
    """Seconds before the second try; each later one waits twice as long."""
    longest: float = 30.0
    asked: float = 300.0
    """The longest that the hub may ask us to wait."""
    connect: float = 10.0
    stall: float = 20.0
    """Seconds without a byte, after which a connection counts as lost."""

    def before(self, attempt: int, broken: Broken) -> float:
        """Seconds until the next try after so many; raises what broke where that is too long."""
        if attempt >= self.tries or (broken.wait or 0) > self.asked:
            raise broken
        if broken.wait is not None:
            return broken.wait
        return float(min(self.longest, self.first * 2 ** (attempt - 1)))


def run(call: Callable[[], _T], stop: Stop, seconds: float) -> _T:
    """What `call` gives, in `seconds` at most; raises Stopped as soon as it is called off.

    A thread that is left behind ends when its own call does: DNS and connecting cannot be cut.
    """
    future: Future[_T] = Future()
    threading.Thread(target=_settle, args=(future, call), name="errand", daemon=True).start()
    end = monotonic() + seconds
    while not future.done():
        stop.check()
        if monotonic() > end:
            raise Broken("The hub does not answer.")
        wait([future], timeout=TICK)
    return future.result()


def persist(call: Callable[[], _T], stop: Stop, patience: Patience) -> _T:
    """The same again while it is Broken and there is patience."""
    attempt = 1
    while True:
        try:
            return call()
        except Broken as broken:
            stop.pause(patience.before(attempt, broken))
            attempt += 1


def _settle(future: Future[_T], call: Callable[[], _T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # whoever waits is to have it
        future.set_exception(error)
