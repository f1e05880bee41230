"""The body of one file of the hub, from some byte on, read on a thread that can be left."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from socket import SHUT_RDWR
from time import monotonic
from types import TracebackType
from typing import Any

from localspec.errors import LocalspecError
from localspec.models.hub import hub_errors
from localspec.models.hub.cancellation import (
    POLL_INTERVAL,
    CancelToken,
    RetryableError,
    RetryPolicy,
)

_MAX_QUEUED_CHUNKS = 64
"""Chunks of at most 64 KiB that may wait to be written."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Which bytes of which file."""

    endpoint: str
    repo: str
    url: str
    headers: dict[str, str]
    start: int = 0
    end: int | None = None
    """Exclusive; None is all there is."""


@dataclass(frozen=True, slots=True)
class _ResponseHead:
    status: int
    headers: Any
    is_redirected: bool
    """Whether another server than the hub gave it."""


class ResponseStream:
    """Chunks as they come.  Leaving it never waits, whatever the connection does."""

    start = 0
    """The first byte's place in the file: not the one asked for where the server knows no Range."""
    file_size: int | None = None
    """The file's size, as this answer has it."""

    def __init__(
        self, request: RangeRequest, cancel: CancelToken, retry_policy: RetryPolicy
    ) -> None:
        self._request = request
        self._cancel = cancel
        self._retry_policy = retry_policy
        self._chunks: Queue[_ResponseHead | bytes | Exception | None] = Queue(_MAX_QUEUED_CHUNKS)
        self._is_abandoned = threading.Event()
        self._response: Any = None

    def __enter__(self) -> ResponseStream:
        threading.Thread(target=self._read, name="body", daemon=True).start()
        try:
            head = self._next_item()
            assert isinstance(head, _ResponseHead)
            self._check_response(head)
        except BaseException:
            self._abandon()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._abandon()

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._next_item()) is not None:
            assert isinstance(chunk, bytes)
            yield chunk

    def _next_item(self) -> _ResponseHead | bytes | None:
        """The next thing the reader has; raises what it met, Stopped, or Broken after a stall."""
        end = monotonic() + self._retry_policy.connect_timeout + self._retry_policy.stall_timeout
        while True:
            self._cancel.raise_if_cancelled()
            try:
                found = self._chunks.get(timeout=POLL_INTERVAL)
            except Empty:
                if monotonic() > end:
                    raise RetryableError("The hub does not answer.") from None
                continue
            if isinstance(found, Exception):
                raise self._translate_error(found) from found
            return found

    def _translate_error(self, error: Exception) -> LocalspecError:
        """On the way a network that is gone may come back."""
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        meant = hub_errors.translate_error(error, self._request.endpoint, self._request.repo)
        if isinstance(error, httpx.TransportError) and "CERTIFICATE" not in str(error):
            return meant if isinstance(meant, RetryableError) else RetryableError(meant.message)
        return meant

    def _check_response(self, head: _ResponseHead) -> None:
        """Raise unless this answer is the file's body; find out which part of it."""
        if head.headers.get("Content-Encoding", "identity") != "identity":
            raise RetryableError("The server sends another encoding than was asked for.")
        length = head.headers.get("Content-Length", "")
        if head.status == 200:
            self.file_size = int(length) if length.isdigit() else None
            return
        found = _CONTENT_RANGE.fullmatch(head.headers.get("Content-Range", ""))
        if head.status == 206 and found:
            self.start = int(found[1])
            self.file_size = None if found[2] == "*" else int(found[2])
            return
        if head.status == 206:
            raise RetryableError("The server does not say which bytes it sends.")
        if head.status == 416:
            raise RetryableError("The server has no such bytes: the file has changed.")
        raise self._status_error(head)

    def _status_error(self, head: _ResponseHead) -> LocalspecError:
        request = self._request
        word = head.headers.get("X-Error-Code", "")
        if head.is_redirected and head.status in (401, 403, 404, 410):
            return RetryableError(
                "The link to the file has expired."
            )  # asking again makes a new one
        return hub_errors.error_for_status(
            head.status, head.headers, (request.endpoint, request.repo, word)
        )

    def _read(self) -> None:
        try:
            self._receive()
        except Exception as error:  # whoever waits is to hear of it
            with suppress(_StreamAbandonedError):
                self._enqueue(error)

    def _receive(self) -> None:
        """On the thread: one answer, put into the box as it comes."""
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        asked, patience = self._request, self._retry_policy
        headers = {**asked.headers, "Accept-Encoding": "identity"}
        if asked.start or asked.end is not None:
            last = "" if asked.end is None else asked.end - 1
            headers["Range"] = f"bytes={asked.start}-{last}"
        timeout = httpx.Timeout(patience.stall_timeout, connect=patience.connect_timeout)
        # A client each: cutting this connection can then never meet another body's.
        with (
            httpx.Client(follow_redirects=True, timeout=timeout) as client,
            client.stream("GET", asked.url, headers=headers) as response,
        ):
            self._response = response
            elsewhere = response.url.netloc != httpx.URL(asked.url).netloc
            self._enqueue(_ResponseHead(response.status_code, response.headers, elsewhere))
            if response.status_code in (200, 206):
                for chunk in response.iter_raw():
                    self._enqueue(chunk)
        self._enqueue(None)

    def _enqueue(self, found: _ResponseHead | bytes | Exception | None) -> None:
        while not self._is_abandoned.is_set():
            with suppress(Full):
                self._chunks.put(found, timeout=POLL_INTERVAL)
                return
        raise _StreamAbandonedError

    def _abandon(self) -> None:
        """Wake the reader, which closes its own connection: closing from here would not wake it."""
        self._is_abandoned.set()
        with suppress(Exception):
            network = self._response.extensions["network_stream"]
            network.get_extra_info("socket").shutdown(SHUT_RDWR)


class _StreamAbandonedError(Exception):
    """Nobody reads any more."""
