"""Streams a range of a hub file on a thread that can be abandoned at once."""

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
"""Chunks of at most 64 KiB."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class RangeRequest:
    endpoint: str
    repo: str
    url: str
    headers: dict[str, str]
    start: int = 0
    end: int | None = None
    """Exclusive; None is the end of the file."""


@dataclass(frozen=True, slots=True)
class _ResponseHead:
    status: int
    headers: Any
    is_redirected: bool
    """Whether the answer came from another server than the hub."""


class ResponseStream:
    """Iterates over received chunks.  Leaving the context never blocks."""

    start = 0
    """Offset of the first chunk in the file; 0 if the server ignores Range."""
    file_size: int | None = None
    """According to the response."""

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
        """The next item of the reader thread.

        Raises the reader's error, OperationCancelledError, or RetryableError after a stall.
        """
        end = monotonic() + self._retry_policy.connect_timeout + self._retry_policy.stall_timeout
        while True:
            self._cancel.raise_if_cancelled()
            try:
                item = self._chunks.get(timeout=POLL_INTERVAL)
            except Empty:
                if monotonic() > end:
                    raise RetryableError("The hub does not respond.") from None
                continue
            if isinstance(item, Exception):
                raise self._translate_error(item) from item
            return item

    def _translate_error(self, error: Exception) -> LocalspecError:
        """During a transfer, all connection errors can be retried."""
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        translated = hub_errors.translate_error(error, self._request.endpoint, self._request.repo)
        is_connection_error = isinstance(error, httpx.TransportError) and "CERTIFICATE" not in str(
            error
        )
        if is_connection_error and not isinstance(translated, RetryableError):
            return RetryableError(translated.message)
        return translated

    def _check_response(self, head: _ResponseHead) -> None:
        """Set `start` and `file_size`; raise unless the response is the file's body."""
        if head.headers.get("Content-Encoding", "identity") != "identity":
            raise RetryableError("The server used an encoding that was not requested.")
        length = head.headers.get("Content-Length", "")
        if head.status == 200:
            self.file_size = int(length) if length.isdigit() else None
            return
        content_range = _CONTENT_RANGE.fullmatch(head.headers.get("Content-Range", ""))
        if head.status == 206 and content_range:
            self.start = int(content_range[1])
            self.file_size = None if content_range[2] == "*" else int(content_range[2])
            return
        if head.status == 206:
            raise RetryableError("The server did not give the range of its answer.")
        if head.status == 416:
            raise RetryableError("The server has no such bytes: the file has changed.")
        raise self._status_error(head)

    def _status_error(self, head: _ResponseHead) -> LocalspecError:
        request = self._request
        code = head.headers.get("X-Error-Code", "")
        if head.is_redirected and head.status in (401, 403, 404, 410):
            # a new request to the hub creates a new link
            return RetryableError("The link to the file has expired.")
        return hub_errors.error_for_status(
            head.status, head.headers, (request.endpoint, request.repo, code)
        )

    def _read(self) -> None:
        try:
            self._receive()
        except Exception as error:  # raised in the consuming thread
            with suppress(_StreamAbandonedError):
                self._enqueue(error)

    def _receive(self) -> None:
        """On the reader thread: send the request, and queue the response."""
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        request, policy = self._request, self._retry_policy
        headers = {**request.headers, "Accept-Encoding": "identity"}
        if request.start or request.end is not None:
            last = "" if request.end is None else request.end - 1
            headers["Range"] = f"bytes={request.start}-{last}"
        timeout = httpx.Timeout(policy.stall_timeout, connect=policy.connect_timeout)
        # One client per stream: shutting down this connection cannot affect another stream.
        with (
            httpx.Client(follow_redirects=True, timeout=timeout) as client,
            client.stream("GET", request.url, headers=headers) as response,
        ):
            self._response = response
            is_redirected = response.url.netloc != httpx.URL(request.url).netloc
            self._enqueue(_ResponseHead(response.status_code, response.headers, is_redirected))
            if response.status_code in (200, 206):
                for chunk in response.iter_raw():
                    self._enqueue(chunk)
        self._enqueue(None)

    def _enqueue(self, item: _ResponseHead | bytes | Exception | None) -> None:
        while not self._is_abandoned.is_set():
            with suppress(Full):
                self._chunks.put(item, timeout=POLL_INTERVAL)
                return
        raise _StreamAbandonedError

    def _abandon(self) -> None:
        """Shut the socket down, which ends a blocked read; closing it here would not."""
        self._is_abandoned.set()
        with suppress(Exception):
            network = self._response.extensions["network_stream"]
            network.get_extra_info("socket").shutdown(SHUT_RDWR)


class _StreamAbandonedError(Exception):
    """The consumer has left the stream."""
