"""A worker: offers this computer's devices to one localspec at a time.

It listens on one port and looks at how each connection begins (`wire.py`). It answers a
question of localspec itself, and forwards a connection of llama.cpp to a child process,
in which llama.cpp's RPC server runs. The child is replaced when its client leaves:
otherwise it might still compute for that client, and malformed requests abort it.
"""

from __future__ import annotations

import json
import math
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from localspec import child_process
from localspec.errors import EngineError, UsageError
from localspec.extras.workers.wire import (
    DATA,
    DATA_BYTES,
    GREETING,
    HELLO,
    HELLO_SIZE,
    PING,
    PONG,
    RequestMeter,
    WorkerDevice,
    WorkerStatus,
)
from localspec.machine import installed_llama_cpp
from localspec.machine.cpu_and_ram import choose_n_threads
from localspec.protocol.json_values import from_json, to_plain
from localspec.sanitize import sanitize

_START_SECONDS = 60.0  # For a child to start: a driver may have to wake a GPU.
_GREETING_SECONDS = 5.0  # For a connection to show what it is.
_STATUS_SECONDS = 30.0  # For all that follows a greeting.
_LEAVING_SECONDS = 0.5
"""Before it answers that it is busy, a worker waits so long for its client to leave."""
_REPLACING_SECONDS = 4.0
"""It waits so long if the client has left, and its child is being replaced."""
_HANDOVER_SECONDS = 10.0
"""A connection of llama.cpp waits so long for the one before.

llama.cpp's client connects once to count the devices, and again to load a model.
"""
_LOOK_BYTES = 4096
"""A client that sent no more has allocated nothing: its child serves the next one."""
_MAX_CONNECTIONS = 32
_CHUNK = 1 << 18


class WorkerSettings(Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free.
    devices: tuple[str, ...] = ()
    """Names of ggml's devices; empty: all GPUs, or the CPU without one."""
    memory: float | None = None  # GiB that clients may use; None: what is free.
    threads: int | None = None

    @property
    def memory_limit(self) -> int | None:
        """`memory` in bytes."""
        return None if self.memory is None else int(self.memory * (1 << 30))


class WorkerActivity(Struct, frozen=True):
    """What a worker did since it started."""

    client: str = ""  # Address of the connected computer; empty if there is none.
    received: int = 0
    sent: int = 0
    n_round_trips: int = 0  # Requests that were answered.
    n_passes: int = 0
    n_layers: int = 0  # Layers whose weights the connected client has sent.


class WorkerServer:
    """Listens as soon as it is made; `serve` accepts connections until `close`."""

    def __init__(
        self,
        settings: WorkerSettings,
        library: Path,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Raises UsageError if it cannot listen there, EngineError if a child fails."""
        self._settings = settings
        self._library = library
        self._notify = notify
        self._busy = threading.Lock()
        """Held while a client of llama.cpp is connected, or the child is replaced."""
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._client = ""
        self._received = 0
        self._sent = 0
        self._n_round_trips = 0
        self._meter = RequestMeter()
        self._is_answer_due = False
        """Whether the last bytes were a request's: the next answer ends a round trip."""
        self._is_closed = False
        self._listener = _listen(settings.host, settings.port)
        try:
            self._child = ServingChild(settings, library)
        except BaseException:
            self._listener.close()
            raise

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def activity(self) -> WorkerActivity:
        n_layers = 0
        if self._client:
            n_layers = len(self._meter.layers)
        return WorkerActivity(
            client=self._client,
            received=self._received,
            sent=self._sent,
            n_round_trips=self._n_round_trips,
            n_passes=self._meter.n_passes,
            n_layers=n_layers,
        )

    @property
    def devices(self) -> tuple[WorkerDevice, ...]:
        return self._child.devices

    def serve(self) -> None:
        """Accept connections until `close` is called."""
        while not self._is_closed:
            try:
                client, address = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.1)  # out of descriptors: let others end
                continue
            if not self._connections.acquire(blocking=False):
                client.close()
                continue
            answering = threading.Thread(
                target=self._answer, args=(client, address[0]), daemon=True
            )
            answering.start()

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._child.close()

    def _answer(self, client: socket.socket, host: str) -> None:
        try:
            with closing(client), suppress(OSError):
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                client.settimeout(_GREETING_SECONDS)
                first = _receive(client, 1)
                if first == HELLO[:1]:
                    hello = first + _receive(client, HELLO_SIZE - 1)
                    if len(hello) == HELLO_SIZE and hello.startswith(HELLO):
                        self._answer_llama_cpp(client, host, hello)
                elif first == GREETING[:1]:
                    greeting = first + _receive(client, len(GREETING) - 1)
                    if greeting == GREETING:
                        self._answer_status(client)
        finally:
            self._connections.release()

    def _answer_status(self, client: socket.socket) -> None:
        client.settimeout(_STATUS_SECONDS)
        patience = _LEAVING_SECONDS if self._client else _REPLACING_SECONDS
        is_free = self._busy.acquire(timeout=patience)
        devices = self._child.devices
        if is_free:
            devices = self._child.ask_devices()
            self._busy.release()
        status = WorkerStatus(
            llama_cpp=installed_llama_cpp.version(),
            is_busy=not is_free,
            devices=devices,
            memory_limit=self._settings.memory_limit,
        )
        client.sendall(json.dumps(to_plain(status)).encode() + b"\n")
        question = _receive(client, len(PING))
        while question in (PING, DATA):
            if question == DATA:
                _receive(client, DATA_BYTES)
            client.sendall(PONG)
            question = _receive(client, len(PING))

    def _answer_llama_cpp(self, client: socket.socket, host: str, hello: bytes) -> None:
        """Forward a connection to the child until one of both ends it."""
        if not self._busy.acquire(timeout=_HANDOVER_SECONDS):
            return
        before = self._received
        try:
            client.settimeout(None)
            with closing(self._connect_child()) as server:
                server.sendall(hello)
                self._meter.start_client()
                self._client = host
                answers = threading.Thread(
                    target=_pump,
                    args=(server, client, self._count_answer),
                    daemon=True,
                )
                answers.start()
                _pump(client, server, self._count_request)
                answers.join()
        finally:
            self._client = ""
            has_sent_a_model = self._received - before > _LOOK_BYTES
            if has_sent_a_model or not self._child.is_alive:
                self._replace_child(host)
            self._busy.release()

    def _count_request(self, data: memoryview) -> None:
        self._received += len(data)
        self._meter.feed(data)
        self._is_answer_due = True

    def _count_answer(self, data: memoryview) -> None:
        self._sent += len(data)
        if self._is_answer_due:
            self._n_round_trips += 1
            self._is_answer_due = False

    def _connect_child(self) -> socket.socket:
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                server = socket.create_connection(("127.0.0.1", self._child.port), 5)
            except ConnectionRefusedError:  # it announces its devices before it listens
                if time.monotonic() > until or not self._child.is_alive:
                    raise
                time.sleep(0.02)
            else:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                server.settimeout(None)
                return server

    def _replace_child(self, host: str) -> None:
        ending = ""
        if not self._child.is_alive:
            ending = ": the serving process ended, and is started again"
        self._notify(f"{host} disconnected{ending}")
        self._child.close()
        if not self._is_closed:
            try:
                self._child = ServingChild(self._settings, self._library)
            except EngineError as error:
                self._notify(f"{error.message} {error.hint}")


class ServingChild:
    """The process that runs llama.cpp's RPC server on a port of 127.0.0.1."""

    def __init__(self, settings: WorkerSettings, library: Path) -> None:
        """Raises EngineError."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._lock = threading.Lock()
        # The arguments that serving_child.py describes. A parent's pid of 0 stands for
        # none: the child ends with its standard input.
        arguments = [
            "0",
            str(library),
            str(self.port),
            str(choose_n_threads(settings.threads)),
            str(settings.memory_limit or 0),
            *settings.devices,
        ]
        module = ("-P", "-m", "localspec.extras.workers.serving_child")
        self._process = child_process.start([sys.executable, *module, *arguments])
        self._log: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        try:
            self.devices = self._read_devices()
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask_devices(self) -> tuple[WorkerDevice, ...]:
        """The devices with what is free now; as last known if it does not answer."""
        with self._lock, suppress(OSError, ValueError, EngineError):
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
            self.devices = self._read_devices()
        return self.devices

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read_devices(self) -> tuple[WorkerDevice, ...]:
        assert self._process.stdout is not None
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            code = self._process.wait()
            reason = self._log[-1] if self._log else f"exit code {code}"
            raise EngineError(
                f"This computer's devices cannot be served: {sanitize(reason, multiline=False)}.",
                "Check them: localspec doctor",
            )
        devices: list[WorkerDevice] = []
        for device in from_json(list[WorkerDevice], json.loads(line)):
            name = sanitize(device.name, multiline=False).strip()
            description = sanitize(device.description, multiline=False).strip()
            devices.append(replace(device, name=name, description=description))
        return tuple(devices)

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr, suppress(OSError, ValueError):
            for line in iter(stderr.readline, b""):
                self._log = [*self._log[-20:], line.decode("utf-8", "replace").strip()]


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if sys.platform != "win32":  # there it would let two programs listen
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"Cannot listen on {sanitize(host, multiline=False)}:{port}: {reason}.",
            "Choose another --port, or an address of this computer.",
        ) from error
    return listener


def _receive(source: socket.socket, size: int) -> bytes:
    """Receive `size` bytes, or fewer if the connection ends.

    The socket's timeout holds for all bytes together. Raises TimeoutError.
    """
    seconds = source.gettimeout()
    until = math.inf if seconds is None else time.monotonic() + seconds
    received = bytearray()
    while len(received) < size:
        if received and time.monotonic() > until:
            raise TimeoutError
        part = source.recv(min(size - len(received), _CHUNK))
        if not part:
            break
        received += part
    return bytes(received)


def _pump(
    source: socket.socket, sink: socket.socket, count: Callable[[memoryview], None]
) -> None:
    """Forward bytes until one of both connections ends, and end the other one, too."""
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    try:
        while n := source.recv_into(buffer):
            count(view[:n])
            sink.sendall(view[:n])
    except OSError:
        pass
    finally:
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
