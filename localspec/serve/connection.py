"""A client's connection: what is bounded as long as it lasts, whatever is answered on it.

uvicorn waits for its clients for ever, and closes a connection whose client has only
ended its requests.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

try:
    import resource
except ImportError:  # Windows, where a process may open as many files as it needs.
    resource = None  # type: ignore[assignment]

HEADER_SECONDS = 10.0
"""For the headers of a request, on a new connection or after an answer."""
_STALL_SECONDS = 8.0
"""Without taking a byte of an answer. With the checks, a client is gone after ten."""
_CHECK_SECONDS = 1.0
_MAX_CONNECTIONS = 1000
_SEND_BUFFER_BYTES = 64 * 1024
"""Of the system, for each client. One that reads nothing is noticed when it is full."""
_MAX_PIPELINED_BYTES = 64 * 1024
"""Of later requests, while one is answered."""
_STATUS_BEGIN = b"HTTP/1.1 "  # The beginning of all answers.
PROBE_PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds between the signs of life that a client gets which has ended its requests.

The first one that reaches a client that has left is refused by its system, and the next
one fails. Both systems may be far apart.
"""
HALF_CLOSED = "half_closed"
"""The key in a request's state of an event: its client has ended its requests."""


def max_connections() -> int:
    """Half of the files that this process may open, so that it can still open others."""
    if resource is None:
        return _MAX_CONNECTIONS
    n_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if n_files == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return max(1, min(_MAX_CONNECTIONS, n_files // 2))


class CountingTransport(asyncio.Transport):
    """Counts the bytes that a client has taken, and can send an answer's first ones."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._n_written = 0
        self._n_ahead = 0  # Bytes of the next answer that were sent already.

    @property
    def n_taken(self) -> int:
        """Bytes that have left this process."""
        return self._n_written - self.n_waiting

    @property
    def n_waiting(self) -> int:
        return self._transport.get_write_buffer_size()

    def send_ahead(self) -> None:
        """Send the next byte that every answer begins with, if there is one."""
        byte = _STATUS_BEGIN[self._n_ahead : self._n_ahead + 1]
        if byte:
            self._n_ahead += 1
            self._write(byte)

    def write(self, data: Any) -> None:
        if self._n_ahead and data:
            data = bytes(data)[self._n_ahead :]
            self._n_ahead = 0
        self._write(data)

    def _write(self, data: Any) -> None:
        self._n_written += len(data)
        self._transport.write(data)

    # --- as it is

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class ClientConnection(H11Protocol):
    """Closes connections of clients that do not go on, in every state of a request.

    A client that shuts down its sending side has ended its requests and gets its
    answers. Its system says the same where it has closed its socket, so such a
    connection is probed.
    """

    transport: CountingTransport

    def __init__(
        self, config: Any, server_state: Any, app_state: Any, _loop: Any = None
    ) -> None:
        self._half_closed = asyncio.Event()
        state = {**app_state, HALF_CLOSED: self._half_closed}
        super().__init__(config, server_state, state, _loop)
        self._client_acted_at = self.loop.time()
        """When it connected, sent bytes, or took some, or its answer was complete."""
        self._n_taken = 0
        self._check_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # asyncio sets it only where the listening socket names its protocol; without
        # it, the second packet of an answer waits 40 ms for the client.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        super().connection_made(CountingTransport(transport))
        # Of many that come at once, the first have acted before this is called.
        self._client_acted_at = self.loop.time()
        self._close_one_if_too_many()
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._check_timer, self._probe_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    # --- too many

    def _close_one_if_too_many(self) -> None:
        """Make room for this connection.

        Of the connections that wait for their clients, that goes which has waited
        longest: so idle ones keep nobody out.
        """
        if len(self.connections) <= max_connections():
            return
        waiting: list[ClientConnection] = []
        for each in self.connections:
            if isinstance(each, ClientConnection) and each._waits_for_client:
                waiting.append(each)
        oldest = min(waiting, key=lambda each: (each is self, each._client_acted_at))
        oldest.transport.abort()
        # Its end is reported later, and others may come before.
        self.connections.discard(oldest)

    @property
    def _waits_for_client(self) -> bool:
        """For a request, for the rest of its body, or until it takes its answer."""
        if not self._is_answering or self.transport.n_waiting:
            return True
        return self.cycle.more_body

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # --- too slow

    def _check(self) -> None:
        """Close the connection if its client has not gone on for too long.

        The body of a request has its own limits, and a status for the client.
        """
        now = self.loop.time()
        if self.transport.n_taken != self._n_taken:
            self._n_taken = self.transport.n_taken
            self._client_acted_at = now
        seconds = now - self._client_acted_at
        if self.transport.n_waiting:
            if seconds >= _STALL_SECONDS:
                self.transport.abort()
        elif not self._is_answering and seconds >= HEADER_SECONDS:
            self.transport.close()
        delay = min(_CHECK_SECONDS, HEADER_SECONDS, _STALL_SECONDS)
        self._check_timer = self.loop.call_later(delay, self._check)

    def data_received(self, data: bytes) -> None:
        if self._is_answering:
            self._client_acted_at = self.loop.time()
        super().data_received(data)

    def handle_events(self) -> None:
        """Go on reading while later requests wait, so that the client's end is seen."""
        super().handle_events()
        if self._is_answering and not self.cycle.more_body:
            waiting, _ = self.conn.trailing_data
            if len(waiting) < _MAX_PIPELINED_BYTES:
                self.flow.resume_reading()

    def on_response_complete(self) -> None:
        self._client_acted_at = self.loop.time()
        super().on_response_complete()
        if self._half_closed.is_set():
            self._go_on_half_closed()

    # --- the end of what the client sends

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection if an answer is due."""
        if not self._is_answering or self.cycle.more_body:
            return False
        if not self._half_closed.is_set():
            self._half_closed.set()
            self._go_on_half_closed()
        return True

    def _go_on_half_closed(self) -> None:
        """Answer what was asked before the end, then close the connection."""
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        if self._is_answering:
            self._probe(0)
        else:
            self.transport.close()

    def _probe(self, n_probes: int) -> None:
        """Find out whether the client is still there, by the beginning of its answer.

        A stream that has begun sends comments to the same end.
        """
        if not self._is_answering or self.cycle.response_started:
            return
        self.transport.send_ahead()
        if n_probes < len(PROBE_PAUSES):
            self._probe_timer = self.loop.call_later(
                PROBE_PAUSES[n_probes], self._probe, n_probes + 1
            )
