"""Streams a range of a hub file on a thread that can be abandoned at once; errors for
users.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from queue import Empty, Full, Queue
from socket import SHUT_RDWR
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

from localspec.errors import (
    AccessDeniedError,
    DownloadError,
    LocalspecError,
    NotFoundError,
    OfflineError,
)
from localspec.models.hub.cancellation import (
    POLL_INTERVAL,
    CancelToken,
    RetryableError,
    RetryPolicy,
)
from localspec.sanitize import sanitize

OFFLINE_HINT = "Go online and try again. Downloaded models work offline."
LOGIN_HINT = "The network may require a login: open any web page in a browser to see."
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class _StreamAbandonedError(Exception):
    """By the consumer."""


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
        self._items: Queue[Any] = Queue(64)
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

        Raises the reader's error, OperationCancelledError, or RetryableError after a
        stall.
        """
        end = (
            monotonic()
            + self._retry_policy.connect_timeout
            + self._retry_policy.stall_timeout
        )
        while True:
            self._cancel.raise_if_cancelled()
            try:
                item = self._items.get(timeout=POLL_INTERVAL)
            except Empty:
                if monotonic() > end:
                    raise RetryableError("The hub does not respond.") from None
                continue
            if isinstance(item, Exception):
                raise network_error(item, self._address.endpoint) from item
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
        # the hub creates a new link
        if is_elsewhere and status in (
            401,
            403,
            404,
            410,
        ):
            raise RetryableError("The link to the file has expired.")
        raise error_for_status(status, headers, *self._address[:2])

    def _read(self) -> None:
        """On the reader thread."""
        with suppress(_StreamAbandonedError):
            try:
                self._receive()
            except Exception as error:  # raised in the consuming thread
                self._enqueue(error)

    def _receive(self) -> None:
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        (start, end), policy = self._range, self._retry_policy
        headers = {**self._address.headers, "Accept-Encoding": "identity"}
        if start or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        timeout = httpx.Timeout(policy.stall_timeout, connect=policy.connect_timeout)
        # One client per stream: shutting down this connection cannot affect another
        # stream.
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
        """Never blocks: shuts the socket down, which ends a blocked read; closing it
        would not.
        """
        self._is_abandoned.set()
        with suppress(Exception):
            network = self._response.extensions["network_stream"]
            network.get_extra_info("socket").shutdown(SHUT_RDWR)


# --- errors


def network_error(error: Exception, endpoint: str) -> LocalspecError:
    """The error to raise instead; RetryableError if a retry may help."""
    from huggingface_hub.utils import httpx  # noqa: PLC0415  slow

    if isinstance(error, LocalspecError):
        return error
    if "CERTIFICATE" in str(error):
        return _certificate_error(str(error), endpoint)
    is_unreachable = isinstance(
        error, (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
    )
    is_setting_wrong = isinstance(error, (ImportError, ValueError, httpx.InvalidURL))
    proxy = _find_proxy(endpoint)
    if proxy and (is_unreachable or is_setting_wrong):
        return _proxy_error(error, endpoint, *proxy, is_unreachable=is_unreachable)
    if is_unreachable:
        return OfflineError(f"{endpoint} cannot be reached.", OFFLINE_HINT)
    if isinstance(error, httpx.TransportError):
        is_stalled = isinstance(error, httpx.TimeoutException)
        reason = (
            "The hub does not respond." if is_stalled else "The connection was lost."
        )
        return RetryableError(reason)
    return DownloadError(
        f"The request to the hub failed: {type(error).__name__}.", OFFLINE_HINT
    )


def _find_proxy(endpoint: str) -> tuple[str, str] | None:
    """The variable that sets the proxy of an address, and the proxy without a password."""
    url = urlsplit(endpoint)
    if proxy_bypass(url.hostname or ""):
        return None
    for name in (f"{url.scheme}_proxy", "all_proxy"):
        for variable in (name, name.upper()):
            if proxy := os.environ.get(variable):
                return variable, sanitize(
                    re.sub(r"//[^/@]*@", "//", proxy), multiline=False
                )
    return None


def _proxy_error(
    error: Exception, endpoint: str, variable: str, proxy: str, *, is_unreachable: bool
) -> LocalspecError:
    if is_unreachable:
        return OfflineError(
            f"{endpoint} cannot be reached through the proxy {proxy} of {variable}.",
            f"Check the proxy, or unset {variable}. Downloaded models work offline.",
        )
    is_missing = isinstance(error, ImportError)
    reason = (
        "SOCKS needs the package socksio" if is_missing else "it is no http:// proxy"
    )
    hint = f"Set {variable} to an http:// proxy, or unset it."
    return DownloadError(
        f"The proxy {proxy} of {variable} cannot be used: {reason}.", hint
    )


def error_for_status(
    status: int, headers: Mapping[str, str], endpoint: str, repo: str
) -> LocalspecError:
    """The error for an HTTP status, and the hub's error code among the headers."""
    code = headers.get("X-Error-Code", "")
    page = f"{endpoint}/{repo}"
    if code == "GatedRepo":
        hint = f"Open {page}, accept them, then log in with `hf auth login` or set HF_TOKEN."
        message = f"{repo} is gated: its owner requires you to accept terms first."
        return AccessDeniedError(message, hint)
    revision_hint = f"See {page}/tree/main, or omit the revision."
    not_found = {
        "RevisionNotFound": (f"{repo} has no such revision.", revision_hint),
        "EntryNotFound": (f"{repo} has no such file.", f"See {page}/tree/main."),
        "RepoNotFound": (
            f"The hub has no {repo}, or it is private.",
            "Check the name; for a private one, log in with `hf auth login` or set HF_TOKEN.",
        ),
    }
    if status == 404 or code in not_found:
        return NotFoundError(*not_found.get(code, not_found["RepoNotFound"]))
    if status in (401, 403):
        hint = "Log in again with `hf auth login`, or check HF_TOKEN."
        return AccessDeniedError(f"The hub denies access to {repo} ({status}).", hint)
    message = f"The hub returned status {status}."
    if status in (408, 425, 429) or status >= 500:
        return RetryableError(message, retry_after=_retry_after(headers))
    return DownloadError(message, f"See {page}.")


def not_a_hub_error(endpoint: str) -> DownloadError:
    """For example a captive portal, which answers all requests with its login page."""
    return DownloadError(f"The server at {endpoint} is not a model hub.", LOGIN_HINT)


def _certificate_error(message: str, endpoint: str) -> DownloadError:
    """The message shows today's date: a wrong clock makes certificates seem invalid."""
    now = datetime.now().astimezone()
    today = f"{now.day} {now:%B %Y}"
    for sign, problem in (
        ("not yet valid", "is not valid yet"),
        ("has expired", "has expired"),
    ):
        if sign in message:
            return DownloadError(
                f"The certificate of {endpoint} {problem}: this computer's date is {today}.",
                "Correct the date and try again.",
            )
    return DownloadError(
        f"The certificate of {endpoint} is not accepted.",
        "Check this computer's date, and whether a proxy intercepts connections.",
    )


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by Retry-After (a number or a date) or the RateLimit headers."""
    from huggingface_hub.utils import parse_ratelimit_headers  # noqa: PLC0415

    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    if value:
        try:
            return max(
                0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
            )
        except (ValueError, TypeError):
            return None
    limit = parse_ratelimit_headers(headers)
    return None if limit is None else float(limit.reset_in_seconds)
