"""Runs the HTTP API on a socket: uvicorn with our own limits, signals and end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import uvicorn
from msgspec import Struct, field

from localspec.errors import UsageError
from localspec.launch.engine_host import EngineHost
from localspec.protocol.events import EngineReady
from localspec.serve.access_rules import AccessRules
from localspec.serve.connection import HEADER_SECONDS, ClientConnection
from localspec.serve.engine_queue import MAX_WAITING, EngineQueue
from localspec.serve.http_app import ApiServer
from localspec.serve.request_metrics import RequestActivity, ServerActivity
from localspec.serve.served_model import ServedModel

DEFAULT_PORT = 8080  # Where Zed's llama.cpp provider looks by itself.
_END_TIMEOUT = 0.8  # Seconds for the running streams to end after Ctrl+C.
_BACKLOG = 512
_LOOPBACK_OF_ALL = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Address that stands for all of this computer -> one that a client can use."""


class ServerOptions(Struct, frozen=True):
    models: tuple[ServedModel, ...]  # Of several, the first is loaded at the start.
    rules: AccessRules = field(default_factory=AccessRules)
    port: int = DEFAULT_PORT
    max_waiting: int = MAX_WAITING


class HttpServer:
    """Serves until `stop`. Create it before the event loop runs."""

    def __init__(
        self,
        options: ServerOptions,
        host: EngineHost,
        on_end: Callable[[RequestActivity], None] = lambda _: None,
        *,
        owns_host: bool = True,
    ) -> None:
        """Bind the port. Raises UsageError if that is not possible.

        `owns_host`: close its engine at the end.
        """
        self._options = options
        self._socket = _bind(options.rules.host, options.port)
        self.port: int = self._socket.getsockname()[1]
        self.activity = ServerActivity(on_end)
        self.served = options.models[0]
        self._queue = EngineQueue(host, options.max_waiting)
        self._owns_host = owns_host
        self.api = ApiServer(options.models, self._queue, self.activity, options.rules)
        config = uvicorn.Config(
            self.api.app,
            http=ClientConnection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=int(HEADER_SECONDS),
            timeout_graceful_shutdown=1,
            backlog=_BACKLOG,
        )
        # Without a handler, their warnings would go to standard error.
        for name in ("uvicorn", "asyncio"):
            logging.getLogger(name).addHandler(logging.NullHandler())
        self._uvicorn = uvicorn.Server(config)
        self._uvicorn.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        self._is_stopped = False
        self._stop_requested: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def url(self) -> str:
        host = self._options.rules.host
        host = _LOOPBACK_OF_ALL.get(host, host)
        if ":" in host:
            host = f"[{host}]"
        return f"http://{host}:{self.port}"

    async def serve(
        self, on_ready: Callable[[EngineReady], None] = lambda _: None
    ) -> None:
        """Serve until `stop`; requests before the pair is loaded get status 503.

        Raises the engine's error if the pair cannot be loaded.
        """
        self._loop = asyncio.get_running_loop()
        # The log shows what fails by the status of the request.
        self._loop.set_exception_handler(lambda *_: None)
        self._stop_requested = asyncio.Event()
        if self._is_stopped:
            self._stop_requested.set()
        serving = asyncio.ensure_future(self._uvicorn.serve(sockets=[self._socket]))
        loading = asyncio.ensure_future(self._load(on_ready))
        stopping = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()
            await stopping
        finally:
            self._queue.stop_all()
            self.api.reading.stop()
            if self._owns_host:
                self._queue.host.end()
            loading.cancel()
            stopping.cancel()
            await self._end_connections(serving)

    async def _end_connections(self, serving: asyncio.Future[None]) -> None:
        """Let the stopped answers tell their clients, then close what is still open."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT):
                while self.activity.running:
                    await asyncio.sleep(0.01)
        self._uvicorn.should_exit = True
        with suppress(TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(_END_TIMEOUT):
                await asyncio.shield(serving)
        self._uvicorn.force_exit = True
        await asyncio.gather(serving, return_exceptions=True)

    async def _load(self, on_ready: Callable[[EngineReady], None]) -> None:
        ready = await self._queue.load()
        self.api.set_ready(ready)
        on_ready(ready)

    def set_host(self, host: EngineHost) -> None:
        """Use another host, which its owner has loaded again."""
        self._queue.host = host

    def stop(self) -> None:
        """Begin to end; from any thread, or a signal handler."""
        self._is_stopped = True
        loop = self._loop
        event = self._stop_requested
        if loop is not None and event is not None:
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Close the engine and the port, and wait for them."""
        if self._owns_host:
            self._queue.host.close()
        self._socket.close()


class ServerThread:
    """Runs a server in a thread of its own, from the start on."""

    def __init__(self, server: HttpServer) -> None:
        self.url = server.url
        self.activity = server.activity
        self.ready: EngineReady | None = None
        self.served = server.served
        self._server = server
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="localspec serve")
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        def on_ready(ready: EngineReady) -> None:
            self.ready = ready

        try:
            asyncio.run(self._server.serve(on_ready))
        except BaseException as error:  # `close` raises it, in the caller's thread.
            self._error = error

    def close(self) -> None:
        """End the server and wait for it. Raises what has ended it."""
        self._server.stop()
        self._thread.join()
        self._server.close()
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def stop_on_signals(server: HttpServer) -> Iterator[None]:
    """The first Ctrl+C, or SIGTERM, ends the server; a second Ctrl+C ends the process."""

    def handle(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        server.stop()

    before_interrupt = signal.signal(signal.SIGINT, handle)
    before_terminate = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before_interrupt)
        signal.signal(signal.SIGTERM, before_terminate)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        is_dual = host == "::" and socket.has_dualstack_ipv6()
        return socket.create_server(
            (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual
        )
    except OSError as error:
        problem = (error.strerror or str(error)).partition(" (while ")[0]
        hint = "Give --host an address of this computer, or leave it out."
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            hint = "Add --port 0: a free port is chosen."
        message = f"The server cannot listen on {host} port {port}: {problem}."
        raise UsageError(message, hint) from error
