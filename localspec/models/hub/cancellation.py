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

POLL_INTERVAL = 0.1
"""Seconds after which a waiting thread looks up whether it was called off."""


class OperationCancelledError(Exception):
    """The person called it off."""


class CancelToken:
    """Says that something is to end; who pauses on it wakes at once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def raise_if_cancelled(self) -> None:
        """Raise Stopped where it is called off."""
        if self._event.is_set():
            raise OperationCancelledError

    def sleep(self, seconds: float) -> None:
        """Wait that long, or raise Stopped."""
        if self._event.wait(seconds):
            raise OperationCancelledError


class RetryableError(DownloadError):
    """A failure that may pass: the same again, a little later, may work."""

    def __init__(self, message: str, hint: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint or "Run the same command again: it goes on from there.")
        self.retry_after = retry_after
        """Seconds that the hub asks for."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to bear with a network."""

    max_attempts: int = 6
    """In a row without a byte."""
    first_delay: float = 1.0
    """Seconds before the second try; each later one waits twice as long."""
    max_delay: float = 30.0
    max_retry_after: float = 300.0
    """The longest that the hub may ask us to wait."""
    connect_timeout: float = 10.0
    stall_timeout: float = 20.0
    """Seconds without a byte, after which a connection counts as lost."""

    def delay_before_retry(self, attempt: int, error: RetryableError) -> float:
        """Seconds until the next try after so many; raises what broke where that is too long."""
        if attempt >= self.max_attempts or (error.retry_after or 0) > self.max_retry_after:
            raise error
        if error.retry_after is not None:
            return error.retry_after
        return float(min(self.max_delay, self.first_delay * 2 ** (attempt - 1)))


def run_cancellable(call: Callable[[], _T], cancel: CancelToken, timeout: float) -> _T:
    """What `call` gives, in `seconds` at most; raises Stopped as soon as it is called off.

    A thread that is left behind ends when its own call does: DNS and connecting cannot be cut.
    """
    future: Future[_T] = Future()
    threading.Thread(
        target=_complete_future, args=(future, call), name="errand", daemon=True
    ).start()
    end = monotonic() + timeout
    while not future.done():
        cancel.raise_if_cancelled()
        if monotonic() > end:
            raise RetryableError("The hub does not answer.")
        wait([future], timeout=POLL_INTERVAL)
    return future.result()


def retry(call: Callable[[], _T], cancel: CancelToken, policy: RetryPolicy) -> _T:
    """The same again while it is Broken and there is patience."""
    attempt = 1
    while True:
        try:
            return call()
        except RetryableError as broken:
            cancel.sleep(policy.delay_before_retry(attempt, broken))
            attempt += 1


def _complete_future(future: Future[_T], call: Callable[[], _T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # whoever waits is to have it
        future.set_exception(error)
