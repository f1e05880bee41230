"""A server in the app that shares the engine of a chat: their jobs take turns."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from localspec import serve
from localspec.chat.session import ChatSession
from localspec.errors import LocalspecError, UsageError
from localspec.fit.advisor import SettingsRequest
from localspec.launch.engine_host import EngineHost
from localspec.sanitize import sanitize

if TYPE_CHECKING:
    from localspec.serve.http_server import HttpServer


class SharedServer:
    """Serves until `stop`, with the settings that the chat has at the start."""

    def __init__(self, host: EngineHost, session: ChatSession) -> None:
        """Raises UsageError without the packages of the server."""
        assert session.loaded is not None
        self._pair = session.pair
        http_server = serve.import_http_server()

        def listen(port: int) -> HttpServer:
            options = http_server.ServerOptions(
                session.pair,
                sanitize(session.pair.target.stem, multiline=False),
                session.settings,
                template=session.loaded.template_override if session.loaded else None,
                port=port,
            )
            server: HttpServer = http_server.HttpServer(options, host, owns_host=False)
            return server

        try:
            self._server = listen(http_server.DEFAULT_PORT)
        except UsageError:  # the port is in use
            self._server = listen(0)
        self.set_host, self.set_ready = self._server.set_host, self._server.set_ready
        self.thread = http_server.ServerThread(self._server)

    @property
    def port(self) -> int:
        return self._server.port

    def can_serve(self, request: SettingsRequest) -> bool:
        """Whether the pair of a request is the one that is served."""
        files = self._pair.target, self._pair.draft
        return [request.load.target, request.load.draft] == [
            str(path) if path else None for path in files
        ]

    def stop(self) -> None:
        """Does not wait."""

        def close() -> None:
            with suppress(LocalspecError):
                self.thread.close()

        self._server.stop()
        threading.Thread(target=close, daemon=True, name="close server").start()
