"""Checks workers before an engine connects: llama.cpp would abort or hang where this
refuses.
"""

from __future__ import annotations

import json
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
from localspec.protocol.json_values import from_json
from localspec.sanitize import sanitize

_CONNECT_SECONDS = 3.0
_REPLY_SECONDS = 5.0
_MAX_REPLY = 64 * 1024
_N_PINGS = 9


class WorkerReport(Struct, frozen=True):
    """A worker that can be used, and the line to it."""

    address: WorkerAddress
    status: WorkerStatus
    round_trip_ms: float
    bytes_per_second: float


def check_all(
    addresses: Iterable[str],
    on_unusable: Callable[[LocalspecError], None] | None = None,
) -> tuple[WorkerReport, ...]:
    """Those that can be used; `on_unusable` receives the reason for each other one.

    Without `on_unusable`, raises as `check`.
    """
    reports = []
    for address in addresses:
        try:
            reports.append(check(parse_address(address)))
        except LocalspecError as error:
            if on_unusable is None:
                raise
            on_unusable(error)
    return tuple(reports)


def check(address: WorkerAddress) -> WorkerReport:
    """Raises EngineError, InUseError or UsageError with the reason why it cannot be
    used.
    """
    try:
        with socket.create_connection(
            (address.host, address.port), _CONNECT_SECONDS
        ) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.settimeout(_REPLY_SECONDS)
            status = _ask_status(line, address)
            _refuse_unusable(status, address)
            pings = [_time_reply(line, PING) for _ in range(_N_PINGS)]
            ping = median(pings)
            # The first transfer widens TCP's window.
            transfer = min(
                _time_reply(line, DATA + bytes(DATA_BYTES)) for _ in range(2)
            )
            return WorkerReport(
                address, status, 1e3 * ping, DATA_BYTES / max(transfer, 1e-6)
            )
    except TimeoutError as error:
        raise _unreachable(address, "it does not answer") from error
    except OSError as error:
        raise _unreachable(address, (error.strerror or str(error)).lower()) from error


def find_silent(addresses: Iterable[str]) -> tuple[str, ...]:
    """Those that do not answer: their computer, or the line to it, is gone."""
    silent = []
    for address in map(parse_address, addresses):
        try:
            with socket.create_connection(
                (address.host, address.port), _CONNECT_SECONDS
            ) as line:
                line.settimeout(_REPLY_SECONDS)
                _ask_status(line, address)
        except (OSError, UsageError):
            silent.append(str(address))
    return tuple(silent)


def _ask_status(line: socket.socket, address: WorkerAddress) -> WorkerStatus:
    line.sendall(GREETING)
    reply, until = b"", time.monotonic() + _REPLY_SECONDS
    while not reply.endswith(b"\n") and len(reply) < _MAX_REPLY:
        if not (part := _receive_before(line, 4096, until)):
            break
        reply += part
    try:
        return from_json(WorkerStatus, json.loads(reply))
    except (ValueError, RecursionError):
        raise UsageError(
            f"What listens on {address} is not a localspec worker.",
            "Start one on that computer: localspec worker",
        ) from None


def _receive_before(line: socket.socket, size: int, until: float) -> bytes:
    """Some bytes, also from one that sends them slowly.

    Raises TimeoutError at `until`.
    """
    line.settimeout(max(0.001, until - time.monotonic()))
    return line.recv(size)


def _refuse_unusable(status: WorkerStatus, address: WorkerAddress) -> None:
    own = installed_llama_cpp.version()
    if status.llama_cpp != own:  # the protocol has no other check of the operations
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
    """Seconds."""
    began = time.perf_counter()
    line.sendall(message)
    reply, until = b"", time.monotonic() + _REPLY_SECONDS
    while len(reply) < len(PONG):
        if not (part := _receive_before(line, len(PONG) - len(reply), until)):
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
