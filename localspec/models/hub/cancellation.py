"""Cancellation, time limits and retries of blocking calls."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from localspec.errors import DownloadError
from localspec.units import duration

_T = TypeVar("_T")

POLL_INTERVAL = 0.1
"""Seconds between checks for cancellation."""


class OperationCancelledError(Exception):
    """By the user."""


class CancelToken:
    """Cancels an operation from another thread; ends its `sleep` at once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        self._event.set()

    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def raise_if_cancelled(self) -> None:
        self.sleep(0)

    def sleep(self, seconds: float) -> None:
        """Raises OperationCancelledError as soon as the token is cancelled."""
        if self._event.wait(seconds):
            raise OperationCancelledError


class RetryableError(DownloadError):
    """A temporary failure: a later retry may succeed."""

    def __init__(
        self, message: str, hint: str = "", retry_after: float | None = None
    ) -> None:
        """`retry_after` is the number of seconds that the hub asks to wait."""
        super().__init__(message, hint or "Run the same command again to resume.")
        self.retry_after = retry_after


class RetryPolicy(Struct, frozen=True):
    """Limits and delays of network requests, in seconds.

    With the defaults, six attempts that receive no byte are 1 + 2 + 4 + 8 + 16 s apart.
    """

    max_attempts: int = 6
    """Consecutive attempts that receive no byte."""
    first_delay: float = 1.0
    """Before the second attempt; doubles with each further one."""
    max_delay: float = 30.0
    max_retry_after: float = 300.0
    """If the hub asks to wait longer, the operation fails."""
    connect_timeout: float = 10.0
    stall_timeout: float = 20.0
    """A connection without a byte for this long counts as lost."""

    def delay_before_retry(self, attempt: int, error: RetryableError) -> float:
        """The seconds to wait after attempt number `attempt`.

        Raises `error` if there is no further attempt.
        """
        if attempt >= self.max_attempts:
            raise error
        if error.retry_after is not None:
            if error.retry_after > self.max_retry_after:
                raise error
            return error.retry_after
        doubled = self.first_delay * 2.0 ** (attempt - 1)
        return min(self.max_delay, doubled)


def retry(
    call: Callable[[], _T],
    cancel: CancelToken,
    policy: RetryPolicy,
    on_wait: Callable[[str], object] = lambda _: None,
) -> _T:
    """Repeat `call` after a RetryableError, as far as `policy` allows.

    `on_wait` receives a sentence if the hub asks to wait.
    """
    attempt = 1
    while True:
        try:
            return call()
        except RetryableError as error:
            seconds = policy.delay_before_retry(attempt, error)
            if error.retry_after:
                on_wait(wait_text(seconds))
            cancel.sleep(seconds)
            attempt += 1


def wait_text(seconds: float) -> str:
    return f"The hub is busy and asks to wait {duration(max(1, seconds))}."
