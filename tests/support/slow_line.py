"""A TCP proxy that delays, limits and counts: a network between two ports of this computer."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    round_trip_ms: float
    bytes_per_second: float


class SlowLine:
    """Forwards connections to `target` as a line would; up is towards the target.

    A chunk leaves when those before it have left, at the line's rate, and arrives half a round trip
    later.
    """

    def __init__(self, target: tuple[str, int], line: Line) -> None:
        self._target, self._line = target, line
        self.sent_up = self.sent_down = self.n_turns = 0
        """Turns: changes of the direction from up to down, which is one round trip each."""
        self._last_direction = ""
        self._is_cut = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """As if the cable were pulled: connections stay open, and nothing arrives any more."""
        self._is_cut.set()

    def close(self) -> None:
        for end in (self._listener, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target)
                except ConnectionRefusedError:
                    client.close()
                    continue
                self._open += (client, server)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for source, sink, direction in ((client, server, "up"), (server, client, "down")):
                    chunks: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    for pump, args in (
                        (self._receive, (source, chunks, direction)),
                        (self._deliver, (sink, chunks)),
                    ):
                        threading.Thread(target=pump, args=args, daemon=True).start()

    def _receive(
        self, source: socket.socket, chunks: queue.SimpleQueue[tuple[float, bytes]], direction: str
    ) -> None:
        departed = 0.0
        with suppress(OSError):
            while chunk := source.recv(1 << 16):
                self._count(direction, len(chunk))
                rate_seconds = len(chunk) / self._line.bytes_per_second
                departed = max(time.monotonic(), departed) + rate_seconds
                chunks.put((departed + self._line.round_trip_ms / 2e3, chunk))
        chunks.put((0.0, b""))

    def _deliver(self, sink: socket.socket, chunks: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with suppress(OSError):
            while (item := chunks.get())[1]:
                time.sleep(max(0.0, item[0] - time.monotonic()))
                if not self._is_cut.is_set():
                    sink.sendall(item[1])
            sink.shutdown(socket.SHUT_RDWR)

    def _count(self, direction: str, n: int) -> None:
        if direction == "up":
            self.sent_up += n
        else:
            self.sent_down += n
            self.n_turns += self._last_direction == "up"
        self._last_direction = direction
