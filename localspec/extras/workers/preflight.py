"""Checks workers before an engine connects.

llama.cpp would abort or hang where this refuses.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable
from statistics import median

from msgspec import Struct

from localspec.errors import EngineError, Hint, InUseError, LocalspecError, UsageError
from localspec.extras.workers.address import WorkerAddress, parse_address
from localspec.extras.workers.wire import (
    DATA,
    DATA_BYTES,
    GREETING,
    PING,
    PONG,
    WorkerStatus,
)
from localspec.machine import installed_llama_cpp
from localspec.protocol.json_values import from_json, parse_object
from localspec.sanitize import sanitize

_CONNECT_SECONDS = 3.0
_REPLY_SECONDS = 5.0
_MAX_REPLY = 64 * 1024
_N_PINGS = 9


class WorkerReport(Struct, frozen=True):
    """A worker that can be used, and how fast the connection to it is."""

    address: WorkerAddress
    status: WorkerStatus
    round_trip_ms: float
    bytes_per_second: float


def check_all(
    addresses: Iterable[str],
    on_unusable: Callable[[LocalspecError], None] | None = None,
) -> tuple[WorkerReport, ...]:
    """Reports of the workers that can be used.

    `on_unusable` receives the reason for each other one. Without it, raises as `check`.
    """
    reports: list[WorkerReport] = []
    for address in addresses:
        try:
            reports.append(check(parse_address(address)))
        except LocalspecError as error:
            if on_unusable is None:
                raise
            on_unusable(error)
    return tuple(reports)


def check(address: WorkerAddress) -> WorkerReport:
    """Ask a worker for its status, and time the connection.

    Raises EngineError, InUseError or UsageError with the reason why it cannot be used.
    """
    try:
        with _connect(address) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            status = _ask_status(line, address)
            _refuse_unusable(status, address)
            pings = [_time_reply(line, PING) for _ in range(_N_PINGS)]
            data = DATA + bytes(DATA_BYTES)
            # The first transfer widens TCP's window, so the second is faster.
            transfers = [_time_reply(line, data) for _ in range(2)]
    except TimeoutError as error:
        raise _unreachable(address, "it does not answer") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise _unreachable(address, reason) from error
    return WorkerReport(
        address=address,
        status=status,
        round_trip_ms=1e3 * median(pings),
        bytes_per_second=DATA_BYTES / max(min(transfers), 1e-6),
    )


def find_silent(addresses: Iterable[str]) -> tuple[str, ...]:
    """The workers that do not answer: they, or the connection to them, are gone."""
    silent: list[str] = []
    for address in map(parse_address, addresses):
        try:
            with _connect(address) as line:
                _ask_status(line, address)
        except (OSError, UsageError):
            silent.append(str(address))
    return tuple(silent)


def _connect(address: WorkerAddress) -> socket.socket:
    line = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
    line.settimeout(_REPLY_SECONDS)
    return line


def _ask_status(line: socket.socket, address: WorkerAddress) -> WorkerStatus:
    """Raises UsageError if what listens there is no worker, OSError."""
    line.sendall(GREETING)
    until = time.monotonic() + _REPLY_SECONDS
    reply = b""
    while not reply.endswith(b"\n") and len(reply) < _MAX_REPLY:
        part = _receive_before(line, 4096, until)
        if not part:
            break
        reply += part
    try:
        return from_json(WorkerStatus, parse_object(reply))
    except (ValueError, RecursionError):
        raise UsageError(
            f"What listens on {address} is not a localspec worker.",
            "Start one on that computer: localspec worker",
        ) from None


def _receive_before(line: socket.socket, size: int, until: float) -> bytes:
    """The next bytes. Raises TimeoutError at `until`.

    With the socket's own timeout, a worker that sends a byte a second would never end.
    """
    line.settimeout(max(0.001, until - time.monotonic()))
    return line.recv(size)


def _refuse_unusable(status: WorkerStatus, address: WorkerAddress) -> None:
    """Raises EngineError, InUseError or UsageError."""
    own = installed_llama_cpp.version()
    # llama.cpp's protocol does not check that both sides number operations alike.
    if status.llama_cpp != own:
        theirs = sanitize(status.llama_cpp, multiline=False)
        raise UsageError(
            f"The worker {address} has llama-cpp-python {theirs}, this computer {own}.",
            "Install the same version on both.",
        )
    if status.is_busy:
        raise InUseError(
            f"The worker {address} is in use: it serves one localspec at a time.",
            "Wait, or quit the localspec that uses it.",
        )
    if not status.devices:
        raise EngineError(
            f"The worker {address} has no device to offer.", "See its own screen."
        )


def _time_reply(line: socket.socket, message: bytes) -> float:
    """The seconds until a message is answered with PONG."""
    began = time.perf_counter()
    line.sendall(message)
    until = time.monotonic() + _REPLY_SECONDS
    reply = b""
    while len(reply) < len(PONG):
        part = _receive_before(line, len(PONG) - len(reply), until)
        if not part:
            raise ConnectionResetError(0, "the connection was closed")
        reply += part
    return time.perf_counter() - began


def _unreachable(address: WorkerAddress, reason: str) -> EngineError:
    return EngineError(
        f"The worker {address} cannot be reached: {sanitize(reason, multiline=False)}.",
        Hint(
            "Is localspec worker running there, and the port open? Or leave {workers} out."
        ),
    )
