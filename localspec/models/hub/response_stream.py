"""Streams a range of a hub file on a thread that can be abandoned at once."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from socket import SHUT_RDWR
from time import monotonic
from typing import Any, NamedTuple

from localspec.models.hub import hub_errors
from localspec.models.hub.cancellation import (
    POLL_INTERVAL,
    CancelToken,
    RetryableError,
    RetryPolicy,
)

_MAX_QUEUED_CHUNKS = 64  # Chunks of at most 64 KiB.
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class StreamAddress(NamedTuple):
    endpoint: str
    repo: str
    url: str
    headers: dict[str, str]


class ResponseStream:
    """Iterates over received chunks."""

    start = 0  # Offset of the first chunk in the file; 0 if the server ignores Range.
    file_size: int | None = None  # According to the response.

    def __init__(
        self,
        address: StreamAddress,
        start: int,
        end: int | None,
        cancel: CancelToken,
        retry_policy: RetryPolicy,
    ) -> None:
        """The bytes from `start` to `end`, exclusive; None is the end of the file."""
        self._address, self._range = address, (start, end)
        self._cancel, self._retry_policy = cancel, retry_policy
        self._items: Queue[Any] = Queue(_MAX_QUEUED_CHUNKS)
        """The response, its chunks, and None at the end; or an error."""
        self._is_abandoned = threading.Event()
        self._response: Any = None

    def open(self) -> None:
        """Send the request; raises unless the response is the file's body."""
        threading.Thread(target=self._read, name="body", daemon=True).start()
        self._check_response(self._next_item())

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._next_item()) is not None:
            yield chunk

    def _next_item(self) -> Any:
        """The next item of the reader thread.

        Raises the reader's error, OperationCancelledError, or RetryableError after a stall.
        """
        end = monotonic() + self._retry_policy.connect_timeout + self._retry_policy.stall_timeout
        while True:
            self._cancel.raise_if_cancelled()
            try:
                item = self._items.get(timeout=POLL_INTERVAL)
            except Empty:
                if monotonic() > end:
                    raise RetryableError("The hub does not respond.") from None
                continue
            if isinstance(item, Exception):
                raise hub_errors.network_error(item, self._address.endpoint) from item
            return item

    def _check_response(self, response: Any) -> None:
        """Set `start` and `file_size`."""
        headers, status = response.headers, response.status_code
        if headers.get("Content-Encoding", "identity") != "identity":
            raise RetryableError("The server used an encoding that was not requested.")
        length = headers.get("Content-Length", "")
        if status == 200:
            self.file_size = int(length) if length.isdigit() else None
            return
        content_range = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if status == 206 and content_range:
            self.start = int(content_range[1])
            self.file_size = None if content_range[2] == "*" else int(content_range[2])
            return
        if status == 206:
            raise RetryableError("The server did not give the range of its answer.")
        if status == 416:
            raise RetryableError("The server has no such bytes: the file has changed.")
        first = response.history[0] if response.history else response
        is_elsewhere = first.url.netloc != response.url.netloc
        if is_elsewhere and status in (401, 403, 404, 410):
            # a new request to the hub creates a new link
            raise RetryableError("The link to the file has expired.")
        raise hub_errors.error_for_status(status, headers, *self._address[:2])

    def _read(self) -> None:
        try:
            self._receive()
        except Exception as error:  # raised in the consuming thread
            with suppress(_StreamAbandonedError):
                self._enqueue(error)

    def _receive(self) -> None:
        """On the reader thread: send the request, and queue the response."""
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        (start, end), policy = self._range, self._retry_policy
        headers = {**self._address.headers, "Accept-Encoding": "identity"}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        timeout = httpx.Timeout(policy.stall_timeout, connect=policy.connect_timeout)
        # One client per stream: shutting down this connection cannot affect another stream.
        with (
            httpx.Client(follow_redirects=True, timeout=timeout) as client,
            client.stream("GET", self._address.url, headers=headers) as response,
        ):
            self._response = response
            self._enqueue(response)
            if response.status_code in (200, 206):
                for chunk in response.iter_raw():
                    self._enqueue(chunk)
        self._enqueue(None)

    def _enqueue(self, item: object) -> None:
        while not self._is_abandoned.is_set():
            with suppress(Full):
                self._items.put(item, timeout=POLL_INTERVAL)
                return
        raise _StreamAbandonedError

    def abandon(self) -> None:
        """Never blocks: shuts the socket down, which ends a blocked read; closing it would not."""
        self._is_abandoned.set()
        with suppress(Exception):
            network = self._response.extensions["network_stream"]
            network.get_extra_info("socket").shutdown(SHUT_RDWR)


class _StreamAbandonedError(Exception):
    """By the consumer."""
