"""Streams a byte range of a hub file, and keeps what is received.

Measured with huggingface-hub 2.4.0 and hf-xet 1.8.0 against the faults of the tests:

* `hf_hub_download` starts at byte 0 after an error, a pause or a kill, because each call
  writes a new temporary file. It compares sizes only, so a damaged file gets its final
  name. A status of 500 or above ends it.
* `http_get` resumes a partial file of ours, but it writes 10 MiB at once: a connection
  that breaks sooner brings nothing. A stall holds its thread for 10 s and a `Retry-After`
  for as long as the hub asks, without a report; a response without end fills the disk.
* hf-xet yields blocks of up to 64 MiB in order and can begin at any byte. A line of
  1 MB/s takes a minute for a block, in which a stall looks the same and a kill loses it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from socket import SHUT_RDWR
from time import monotonic
from typing import Any

from msgspec import Struct

from localspec.models.hub.cancellation import (
    POLL_INTERVAL,
    CancelToken,
    RetryableError,
    RetryPolicy,
)
from localspec.models.hub.network_errors import error_for_status, network_error

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)
"""No file has more than 10^18 bytes; Python refuses to read numbers of 4,301 digits."""
_CONTENT_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_QUEUED_CHUNKS = 64
_EXPIRED_LINK_STATUSES = (401, 403, 404, 410)


class _StreamAbandonedError(Exception):
    """By the consumer."""


class RangeRequest(Struct, frozen=True):
    """A request for the bytes from `start` to `end`, exclusive; None is the end."""

    endpoint: str
    repo: str
    url: str
    headers: dict[str, str]
    start: int = 0
    end: int | None = None


class ResponseStream:
    """Iterates over received chunks; a reader thread receives them.

    The consumer never waits for the network itself: it polls the queue of the reader,
    so a cancelled token ends it within `POLL_INTERVAL`, also in a stall.
    """

    start = 0
    """The offset of the first chunk in the file; 0 if the server ignores Range."""
    file_size: int | None = None
    """According to the response."""

    def __init__(
        self, request: RangeRequest, cancel: CancelToken, retry_policy: RetryPolicy
    ) -> None:
        self._request = request
        self._cancel = cancel
        self._retry_policy = retry_policy
        self._items: Queue[Any] = Queue(_QUEUED_CHUNKS)
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

    def abandon(self) -> None:
        """End the reader thread; never blocks.

        Shuts the socket down, which ends a blocked read; closing it would not.
        """
        self._is_abandoned.set()
        with suppress(Exception):
            network = self._response.extensions["network_stream"]
            network.get_extra_info("socket").shutdown(SHUT_RDWR)

    # --- on the consumer's thread

    def _next_item(self) -> Any:
        """The next item of the reader thread.

        Raises the reader's error, OperationCancelledError, or RetryableError after a
        stall.
        """
        policy = self._retry_policy
        deadline = monotonic() + policy.connect_timeout + policy.stall_timeout
        while True:
            self._cancel.raise_if_cancelled()
            try:
                item = self._items.get(timeout=POLL_INTERVAL)
            except Empty:
                if monotonic() > deadline:
                    raise RetryableError("The hub does not respond.") from None
                continue
            if isinstance(item, Exception):
                raise network_error(item, self._request.endpoint) from item
            return item

    def _check_response(self, response: Any) -> None:
        """Set `start` and `file_size`."""
        headers = response.headers
        status = response.status_code
        if headers.get("Content-Encoding", "identity") != "identity":
            raise RetryableError("The server used an encoding that was not requested.")
        if status == 200:
            length = headers.get("Content-Length", "")
            has_length = _CONTENT_LENGTH.fullmatch(length) is not None
            self.file_size = int(length) if has_length else None
            return
        if status == 206:
            content_range = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if content_range is None:
                raise RetryableError("The server did not give the range of its answer.")
            start, total = content_range.groups()
            self.start = int(start)
            self.file_size = None if total == "*" else int(total)
            return
        if status == 416:
            raise RetryableError("The server has no such bytes: the file has changed.")
        if _is_redirected(response) and status in _EXPIRED_LINK_STATUSES:
            # The hub makes a new link at the next request.
            raise RetryableError("The link to the file has expired.")
        request = self._request
        raise error_for_status(
            status, headers, endpoint=request.endpoint, repo=request.repo
        )

    # --- on the reader thread

    def _read(self) -> None:
        with suppress(_StreamAbandonedError):
            try:
                self._receive()
            except Exception as error:  # raised in the consuming thread
                self._enqueue(error)

    def _receive(self) -> None:
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        policy = self._retry_policy
        timeout = httpx.Timeout(policy.stall_timeout, connect=policy.connect_timeout)
        # One client per stream: shutting down this connection cannot affect another
        # stream.
        with (
            httpx.Client(follow_redirects=True, timeout=timeout) as client,
            client.stream(
                "GET", self._request.url, headers=self._request_headers()
            ) as response,
        ):
            self._response = response
            self._enqueue(response)
            if response.status_code in (200, 206):
                for chunk in response.iter_raw():
                    self._enqueue(chunk)
        self._enqueue(None)

    def _request_headers(self) -> dict[str, str]:
        request = self._request
        headers = {**request.headers, "Accept-Encoding": "identity"}
        if request.end is not None:
            headers["Range"] = f"bytes={request.start}-{request.end - 1}"
        elif request.start:
            headers["Range"] = f"bytes={request.start}-"
        return headers

    def _enqueue(self, item: object) -> None:
        while not self._is_abandoned.is_set():
            with suppress(Full):
                self._items.put(item, timeout=POLL_INTERVAL)
                return
        raise _StreamAbandonedError


def _is_redirected(response: Any) -> bool:
    """Whether another host than the hub sent the response."""
    first = response.history[0] if response.history else response
    return bool(first.url.netloc != response.url.netloc)
