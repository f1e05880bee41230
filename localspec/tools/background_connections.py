"""Connects the servers of a chat in the background, each on a thread of its own.

So the first prompt appears at once, and a server that hangs delays no other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from localspec.errors import LocalspecError, explain
from localspec.protocol.events import Notice
from localspec.tools import connecting
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import ToolProvider
from localspec.tools.toolbox import Toolbox

ConnectionPhase = Literal["connecting", "connected", "failed", "disabled"]
_POLL_SECONDS = 0.5


class ServerState(Struct, frozen=True):
    """A configured server, and whether its tools can be called."""

    settings: ServerSettings
    phase: ConnectionPhase
    error: LocalspecError | None = None
    """Why it failed."""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def why(self) -> str:
        """Why its tools cannot be called; empty if they can."""
        if self.error is not None:
            return self.error.message
        if self.phase == "connected":
            return ""
        return self.phase


class BackgroundConnections:
    """The configured servers of a chat, on their way into its toolbox.

    All methods may be called from any thread.
    """

    def __init__(
        self, toolbox: Toolbox, on_change: Callable[[], object] = lambda: None
    ) -> None:
        """`on_change` is called on a server's thread when its state has changed."""
        self._toolbox = toolbox
        self._on_change = on_change
        self._lock = threading.Lock()
        self._states: dict[str, ServerState] = {}
        """The state of each server by its name, in the order of the settings."""
        self._threads: list[threading.Thread] = []
        self._notices: list[Notice] = []
        self._is_closed = False

    def start(self, servers: Sequence[ServerSettings]) -> None:
        """Begin to connect those that are enabled. Does not wait.

        The threads are daemons: a program ends although a server does not answer.
        """
        threads: list[threading.Thread] = []
        for server in servers:
            state = ServerState(server, "disabled")
            if server.enabled:
                state = ServerState(server, "connecting")
                thread = threading.Thread(
                    target=self._connect,
                    args=(server,),
                    name=f"connect-{server.name}",
                    daemon=True,
                )
                threads.append(thread)
            with self._lock:
                self._states[server.name] = state
        self._threads += threads
        for thread in threads:
            thread.start()

    def _connect(self, server: ServerSettings) -> None:
        try:
            connected = connecting.connect_server(server)
        except Exception as error:  # The chat would wait for the server for ever.
            connected = explain(error)
        if isinstance(connected, LocalspecError):
            notice = Notice("warning", "tools", connected.message, connected.hint)
            with self._lock:
                self._states[server.name] = ServerState(
                    server, "failed", error=connected
                )
                self._notices.append(notice)
        elif self._add(connected):
            with self._lock:
                self._states[server.name] = ServerState(server, "connected")
        self._on_change()

    def _add(self, provider: ToolProvider) -> bool:
        """Add a provider to the toolbox. If the chat is closed, close it instead.

        Returns whether it was added.
        """
        with self._lock:
            is_added = not self._is_closed
            if is_added:
                self._toolbox.add(provider)
        if not is_added:
            provider.close()
        return is_added

    @property
    def states(self) -> list[ServerState]:
        with self._lock:
            return list(self._states.values())

    @property
    def connecting(self) -> list[str]:
        """The names of the servers that are not connected yet."""
        return [state.name for state in self.states if state.phase == "connecting"]

    def list_missing(self) -> list[ServerState]:
        """The servers whose tools cannot be called now, although they are enabled."""
        return [
            state for state in self.states if state.phase in ("connecting", "failed")
        ]

    def wait(self) -> None:
        """Wait until all are connected, or have failed."""
        for thread in self._threads:
            # On Windows a wait without an end would block Ctrl+C.
            while thread.is_alive():
                thread.join(_POLL_SECONDS)

    def take_notices(self) -> list[Notice]:
        """The failures since the last call."""
        with self._lock:
            notices = self._notices
            self._notices = []
        return notices

    def begin_to_close(self) -> None:
        """Run `close` on a thread. Does not wait.

        The thread is no daemon: a program that exits at once still ends its servers.
        """
        threading.Thread(target=self.close, daemon=False, name="close tools").start()

    def close(self) -> None:
        """End the servers; one that still connects ends as soon as it has connected."""
        with self._lock:
            self._is_closed = True
        self._toolbox.close()
