"""A worker: offers this computer's devices to one localspec at a time.

It listens on one port, checks how a connection begins, and forwards llama.cpp's to a
child process that has a new one's memory for each client: llama.cpp's server neither
survives every client nor every client it.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from msgspec import Struct, to_builtins

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
from localspec.sanitize import sanitize

_START_SECONDS = 60.0  # For a child to start: a driver may have to wake a GPU.
_GREETING_SECONDS = 5.0  # For a connection to say what it is.
_STATUS_SECONDS = 30.0
_LEAVING_SECONDS = 0.5
_REPLACING_SECONDS = 4.0
"""A worker that is asked waits so long for its client to leave, and for a new child."""
_HANDOVER_SECONDS = 10.0
"""llama.cpp's client connects once to count the devices, and again to load a model."""
# A client that sent less has allocated nothing: its child serves the next one.
_LOOK_BYTES = 4096
_MAX_CONNECTIONS = 32
_CHUNK = 1 << 18


class WorkerSettings(Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free.
    # Names in ggml; empty: all GPUs, or the CPU without one.
    devices: tuple[str, ...] = ()
    memory: float | None = None  # GiB that clients may use; None: what is free.
    threads: int | None = None

    @property
    def memory_limit(self) -> int | None:
        """Bytes."""
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
    """Listens from the beginning; `serve` accepts connections until `close`.

    Raises UsageError if the address cannot be listened on, EngineError if the devices
    cannot be served.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        library: Path,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._library = library
        self._notify = notify
        self._busy = threading.Lock()
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._client = ""
        self._received = 0
        self._sent = 0
        self._n_round_trips = 0
        self._meter = RequestMeter()
        self._is_asked = False
        """Whether the last bytes were a request's, so that the next answer's end a
        round trip.
        """
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
        return WorkerActivity(
            self._client,
            self._received,
            self._sent,
            self._n_round_trips,
            self._meter.n_passes,
            len(self._meter.layers) if self._client else 0,
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
            threading.Thread(
                target=self._answer, args=(client, address[0]), daemon=True
            ).start()

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
                begin = _receive(client, 1)
                if begin == HELLO[:1]:
                    self._answer_llama_cpp(client, host, begin)
                elif (
                    begin == GREETING[:1]
                    and _receive(client, len(GREETING) - 1) == GREETING[1:]
                ):
                    self._answer_status(client)
        finally:
            self._connections.release()

    def _answer_status(self, client: socket.socket) -> None:
        client.settimeout(_STATUS_SECONDS)
        limit = self._settings.memory_limit
        patience = _LEAVING_SECONDS if self._client else _REPLACING_SECONDS
        is_busy = not self._busy.acquire(timeout=patience)
        if is_busy:
            devices = self._child.devices
        else:
            devices = self._child.ask_devices()
            self._busy.release()
        version = installed_llama_cpp.version()
        status = WorkerStatus(version, is_busy, devices, limit)
        client.sendall(json.dumps(to_builtins(status)).encode() + b"\n")
        while (question := _receive(client, len(PING))) in (PING, DATA):
            if question == DATA:
                _receive(client, DATA_BYTES)
            client.sendall(PONG)

    def _answer_llama_cpp(self, client: socket.socket, host: str, begin: bytes) -> None:
        hello = begin + _receive(client, HELLO_SIZE - 1)
        if len(hello) < HELLO_SIZE or not hello.startswith(HELLO):
            return
        if not self._busy.acquire(timeout=_HANDOVER_SECONDS):
            return
        try:
            client.settimeout(None)
            before = self._received
            with closing(self._connect_child()) as server:
                server.sendall(hello)
                self._meter.start_client()
                self._client = host
                answers = threading.Thread(
                    target=self._pump, args=(server, client, False), daemon=True
                )
                answers.start()
                self._pump(client, server, True)
                answers.join()
        finally:
            self._client = ""
            if self._received - before > _LOOK_BYTES or not self._child.is_alive:
                self._replace_child(host)
            self._busy.release()

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

    def _pump(
        self, source: socket.socket, sink: socket.socket, is_request: bool
    ) -> None:
        """Forwards bytes until one of both ends."""
        buffer = bytearray(_CHUNK)
        view = memoryview(buffer)
        try:
            while n := source.recv_into(buffer):
                if is_request:
                    self._received += n
                    self._meter.feed(view[:n])
                else:
                    self._sent += n
                    if self._is_asked:
                        self._n_round_trips += 1
                self._is_asked = is_request
                sink.sendall(view[:n])
        except OSError:
            pass
        finally:  # the other direction ends too
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _replace_child(self, host: str) -> None:
        """A new child with free memory; the old one may still compute for the client
        that left.
        """
        is_alive = self._child.is_alive
        ending = "" if is_alive else ": the serving process ended, and is started again"
        self._notify(f"{host} disconnected{ending}")
        self._child.close()
        if not self._is_closed:
            try:
                self._child = ServingChild(self._settings, self._library)
            except EngineError as error:
                self._notify(f"{error.message} {error.hint}")


class ServingChild:
    """The process that runs llama.cpp's RPC server on a port of 127.0.0.1.

    Raises EngineError.
    """

    def __init__(self, settings: WorkerSettings, library: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        threads = choose_n_threads(settings.threads)
        self._lock = threading.Lock()
        arguments = (
            0,
            library,
            self.port,
            threads,
            settings.memory_limit or 0,
            *settings.devices,
        )
        module = ("-P", "-m", "localspec.extras.workers.serving_child")
        self._process = child_process.start(
            [sys.executable, *module, *map(str, arguments)]
        )
        self._log: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        try:
            self.devices = self._read_devices()
        except EngineError:
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
            self._process.wait()
            reason = (
                self._log[-1] if self._log else f"exit code {self._process.returncode}"
            )
            raise EngineError(
                f"This computer's devices cannot be served: {sanitize(reason, multiline=False)}.",
                "Check them: localspec doctor",
            )
        return tuple(
            WorkerDevice(
                sanitize(str(each["name"]), multiline=False).strip(),
                sanitize(str(each["description"]), multiline=False).strip(),
                str(each["type"]),
                int(each["free"]),
                int(each["total"]),
            )
            for each in json.loads(line)
        )

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
    """Fewer bytes at the end of the connection.

    Its timeout is that of all bytes together.
    """
    parts, seconds = bytearray(), source.gettimeout()
    until = time.monotonic() + (seconds or 0.0)
    while len(parts) < size:
        if parts and seconds is not None and time.monotonic() > until:
            raise TimeoutError
        if not (part := source.recv(min(size - len(parts), _CHUNK))):
            break
        parts += part
    return bytes(parts)
