"""What a worker and a localspec on another computer say before llama.cpp's RPC protocol
begins.

One port serves both.  The first byte tells them apart: llama.cpp's client begins with HELLO (14),
localspec with a line of text.  Anything else is not forwarded.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

GREETING = b"LOCALSPEC WORKER 1\n"
"""Asks for a `WorkerStatus`, as one JSON line.

Then `PING` and `DATA` measure the line.
"""
PING = b"PING\n"
PONG = b"PONG\n"
DATA_BYTES = 1 << 20
DATA = b"DATA\n"  # Followed by DATA_BYTES bytes; the answer is PONG.
HELLO = bytes([14]) + (24).to_bytes(8, "little")
"""How each connection of llama.cpp's RPC client begins: command, size of the request.
"""
HELLO_SIZE = len(HELLO) + 24


ByteCount = Annotated[int, Meta(ge=0, lt=2**60)]


class WorkerDevice(Struct, frozen=True):
    """A device that a worker offers."""

    name: str
    description: str
    kind: str
    free: ByteCount
    total: ByteCount


class WorkerStatus(Struct, frozen=True):
    """A worker's answer to GREETING."""

    llama_cpp: str  # Version of llama-cpp-python.
    is_busy: bool
    devices: tuple[WorkerDevice, ...]
    # Bytes that clients may use; None: all that is free.
    memory_limit: ByteCount | None = None


_REQUEST_HEADER = 9  # Of llama.cpp's requests: command, and size of the body (8 bytes).
_SET_TENSOR = 6
_GRAPH_COMPUTE = 10
_GRAPH_RECOMPUTE = 16
_TENSOR_BYTES = 320  # A tensor's description, which has its name, is at most so long.
_LAYER = re.compile(rb"blk\.(\d+)\.")


class RequestMeter:
    """Counts the passes in a client's requests, and the layers whose weights it sends."""

    def __init__(self) -> None:
        self.n_passes = 0  # Of all clients.
        self.start_client()

    def start_client(self) -> None:
        self.layers: set[int] = set()
        self._head = bytearray()
        # Bytes of the current request that are still to come, and do not matter.
        self._n_rest = 0

    def feed(self, data: memoryview) -> None:
        while data:
            if self._n_rest:
                n = min(self._n_rest, len(data))
                self._n_rest -= n
                data = data[n:]
                continue
            n = self._n_wanted - len(self._head)
            self._head += data[:n]
            data = data[n:]
            if len(self._head) == self._n_wanted:
                self._count_request()

    @property
    def _n_wanted(self) -> int:
        if len(self._head) < _REQUEST_HEADER or self._head[0] != _SET_TENSOR:
            return _REQUEST_HEADER
        return _REQUEST_HEADER + min(self._n_body, _TENSOR_BYTES)

    @property
    def _n_body(self) -> int:
        return int.from_bytes(self._head[1:_REQUEST_HEADER], "little")

    def _count_request(self) -> None:
        if self._head[0] in (_GRAPH_COMPUTE, _GRAPH_RECOMPUTE):
            self.n_passes += 1
        named = _LAYER.search(self._head, _REQUEST_HEADER)
        if named:
            self.layers.add(int(named[1]))
        self._n_rest = self._n_body - (len(self._head) - _REQUEST_HEADER)
        self._head.clear()
