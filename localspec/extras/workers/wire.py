"""The protocol between localspec and a worker on another computer.

One port serves it and llama.cpp's RPC protocol. The first byte of a connection tells
them apart: llama.cpp's client begins with HELLO (14), localspec with a line of text.
Anything else is not forwarded.

localspec sends GREETING and receives a `WorkerStatus` as one line of JSON. Then it may
send PING and DATA, each answered with PONG, to time the connection.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

GREETING = b"LOCALSPEC WORKER 1\n"
PING = b"PING\n"
PONG = b"PONG\n"
DATA = b"DATA\n"  # Followed by DATA_BYTES bytes.
DATA_BYTES = 1 << 20
_HELLO_BODY_SIZE = 24
HELLO = bytes([14]) + _HELLO_BODY_SIZE.to_bytes(8, "little")
"""How each connection of llama.cpp's RPC client begins: a command, and the size of the
request's body.
"""
HELLO_SIZE = len(HELLO) + _HELLO_BODY_SIZE


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
    memory_limit: ByteCount | None = None
    """Bytes that clients may use; None: all that is free."""


# --- llama.cpp's requests, as far as a worker reads them

_HEADER_SIZE = 9  # The command (1 byte), and the size of the body (8 bytes).
_SET_TENSOR = 6
_GRAPH_COMPUTE = 10
_GRAPH_RECOMPUTE = 16
_TENSOR_BYTES = 320
"""The body of SET_TENSOR begins with a description of at most so many bytes, which has
the tensor's name. The weights follow it.
"""
_LAYER = re.compile(rb"blk\.(\d+)\.")


class RequestMeter:
    """Counts the passes in a client's requests, and the layers whose weights it sends.

    Of each request it keeps the header; of SET_TENSOR also the tensor's description. It
    skips the rest. For example, a SET_TENSOR with a body of 10,000 bytes is 9 bytes of
    header, 320 of description, and 9,680 that are skipped.
    """

    def __init__(self) -> None:
        self.n_passes = 0  # Of all clients.
        self.start_client()

    def start_client(self) -> None:
        self.layers: set[int] = set()
        self._kept = bytearray()  # The beginning of the current request.
        self._n_to_skip = 0  # Bytes of the current request that are still to come.

    def feed(self, data: memoryview) -> None:
        """Read the next bytes of the client; a request may end anywhere in them."""
        while data:
            if self._n_to_skip:
                n = min(self._n_to_skip, len(data))
                self._n_to_skip -= n
                data = data[n:]
                continue
            n = self._n_to_keep - len(self._kept)
            self._kept += data[:n]
            data = data[n:]
            if len(self._kept) == self._n_to_keep:
                self._count_request()

    @property
    def _n_to_keep(self) -> int:
        """How many bytes of the current request matter, by those that have come."""
        if len(self._kept) < _HEADER_SIZE or self._kept[0] != _SET_TENSOR:
            return _HEADER_SIZE
        return _HEADER_SIZE + min(self._body_size, _TENSOR_BYTES)

    @property
    def _body_size(self) -> int:
        return int.from_bytes(self._kept[1:_HEADER_SIZE], "little")

    def _count_request(self) -> None:
        if self._kept[0] in (_GRAPH_COMPUTE, _GRAPH_RECOMPUTE):
            self.n_passes += 1
        layer = _LAYER.search(self._kept, _HEADER_SIZE)
        if layer:
            self.layers.add(int(layer[1]))
        self._n_to_skip = _HEADER_SIZE + self._body_size - len(self._kept)
        self._kept.clear()
