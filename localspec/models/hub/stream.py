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
from localspec.models.hub import refusals
from localspec.models.hub.errand import TICK, Broken, Patience, Stop

_AHEAD = 64
"""Chunks of at most 64 KiB that may wait to be written."""
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True, slots=True)
class Request:
    """Which bytes of which file."""

    endpoint: str
    repo: str
    url: str
    headers: dict[str, str]
    start: int = 0
    end: int | None = None
    """Exclusive; None is all there is."""


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    headers: Any
    elsewhere: bool
    """Whether another server than the hub gave it."""


class Stream:
    """Chunks as they come.  Leaving it never waits, whatever the connection does."""

    start = 0
    """The first byte's place in the file: not the one asked for where the server knows no Range."""
    total: int | None = None
    """The file's size, as this answer has it."""

    def __init__(self, request: Request, stop: Stop, patience: Patience) -> None:
        self._request = request
        self._stop = stop
        self._patience = patience
        self._box: Queue[_Head | bytes | Exception | None] = Queue(_AHEAD)
        self._left = threading.Event()
        self._response: Any = None

    def __enter__(self) -> Stream:
        threading.Thread(target=self._read, name="body", daemon=True).start()
        try:
            head = self._next()
            assert isinstance(head, _Head)
            self._judge(head)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def __iter__(self) -> Iterator[bytes]:
        while (chunk := self._next()) is not None:
            assert isinstance(chunk, bytes)
            yield chunk

    def _next(self) -> _Head | bytes | None:
        """The next thing the reader has; raises what it met, Stopped, or Broken after a stall."""
        end = monotonic() + self._patience.connect + self._patience.stall
        while True:
            self._stop.check()
            try:
                found = self._box.get(timeout=TICK)
            except Empty:
                if monotonic() > end:
                    raise Broken("The hub does not answer.") from None
                continue
            if isinstance(found, Exception):
                raise self._explained(found) from found
            return found

    def _explained(self, error: Exception) -> LocalspecError:
        """On the way a network that is gone may come back."""
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        meant = refusals.explain(error, self._request.endpoint, self._request.repo)
        if isinstance(error, httpx.TransportError) and "CERTIFICATE" not in str(error):
            return meant if isinstance(meant, Broken) else Broken(meant.message)
        return meant

    def _judge(self, head: _Head) -> None:
        """Raise unless this answer is the file's body; find out which part of it."""
        if head.headers.get("Content-Encoding", "identity") != "identity":
            raise Broken("The server sends another encoding than was asked for.")
        length = head.headers.get("Content-Length", "")
        if head.status == 200:
            self.total = int(length) if length.isdigit() else None
            return
        found = _RANGE.fullmatch(head.headers.get("Content-Range", ""))
        if head.status == 206 and found:
            self.start = int(found[1])
            self.total = None if found[2] == "*" else int(found[2])
            return
        if head.status == 206:
            raise Broken("The server does not say which bytes it sends.")
        if head.status == 416:
            raise Broken("The server has no such bytes: the file has changed.")
        raise self._refusal(head)

    def _refusal(self, head: _Head) -> LocalspecError:
        request = self._request
        word = head.headers.get("X-Error-Code", "")
        if head.elsewhere and head.status in (401, 403, 404, 410):
            return Broken("The link to the file has expired.")  # asking again makes a new one
        return refusals.status(head.status, head.headers, (request.endpoint, request.repo, word))

    def _read(self) -> None:
        try:
            self._receive()
        except Exception as error:  # whoever waits is to hear of it
            with suppress(_Left):
                self._put(error)

    def _receive(self) -> None:
        """On the thread: one answer, put into the box as it comes."""
        from huggingface_hub.utils import httpx  # noqa: PLC0415

        asked, patience = self._request, self._patience
        headers = {**asked.headers, "Accept-Encoding": "identity"}
        if asked.start or asked.end is not None:
            last = "" if asked.end is None else asked.end - 1
            headers["Range"] = f"bytes={asked.start}-{last}"
        timeout = httpx.Timeout(patience.stall, connect=patience.connect)
        # A client each: cutting this connection can then never meet another body's.
        with (
            httpx.Client(follow_redirects=True, timeout=timeout) as client,
            client.stream("GET", asked.url, headers=headers) as response,
        ):
            self._response = response
            elsewhere = response.url.netloc != httpx.URL(asked.url).netloc
            self._put(_Head(response.status_code, response.headers, elsewhere))
            if response.status_code in (200, 206):
                for chunk in response.iter_raw():
                    self._put(chunk)
        self._put(None)

    def _put(self, found: _Head | bytes | Exception | None) -> None:
        while not self._left.is_set():
            with suppress(Full):
                self._box.put(found, timeout=TICK)
                return
        raise _Left

    def _leave(self) -> None:
        """Wake the reader, which closes its own connection: closing from here would not wake it."""
        self._left.set()
        with suppress(Exception):
            network = self._response.extensions["network_stream"]
            network.get_extra_info("socket").shutdown(SHUT_RDWR)


class _Left(Exception):  # noqa: N818  not an error
    """Nobody reads any more."""
