"""The tools of a chat in the app: which servers are connected, and what is shown of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localspec.protocol.events import Notice
from localspec.tools import server_settings
from localspec.tools.background_connections import BackgroundConnections
from localspec.tools.server_settings import ConfiguredServers
from localspec.tools.toolbox import Toolbox
from localspec.tui.notices import show_notice
from localspec.tui.scheduling import run_on_thread
from localspec.tui.text.wrapping import one_line
from localspec.units import count, join_first

if TYPE_CHECKING:
    from localspec.chat.session import ChatSession
    from localspec.tui.screens.chat import ChatScreen

_MAX_NAMED = 3
"""How many providers the note of the message field names."""


class ChatTools:
    """Connects the configured servers, and closes them when the chat is left."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        if screen.session.toolbox is None:
            screen.session.toolbox = Toolbox()
        self.connections = BackgroundConnections(
            self.toolbox, lambda: screen.call_later(self._show_changes)
        )

    @property
    def session(self) -> ChatSession:
        return self._screen.session

    @property
    def toolbox(self) -> Toolbox:
        toolbox = self._screen.session.toolbox
        assert toolbox is not None, "it is made with the chat"
        return toolbox

    def connect(self) -> None:
        """Begin to connect. Does not wait: the settings are read on a thread, too."""

        def work() -> None:
            configured = server_settings.read_servers()
            self._screen.call_later(self._start, configured)

        run_on_thread(self._screen, "tools", work, failed=self._screen.show_warning)

    def _start(self, configured: ConfiguredServers) -> None:
        for error in configured.errors:
            show_notice(self._screen, Notice("warning", "tools", error))
        self.connections.start(configured.servers)
        if configured.servers:
            self._screen.draw()

    def _show_changes(self) -> None:
        for notice in self.connections.take_notices():
            show_notice(self._screen, notice)
        self._screen.draw()

    def close(self) -> None:
        """End the servers. Does not wait."""
        self.connections.begin_to_close()

    @property
    def note(self) -> str:
        """What the message field says: `tools: folder, time`; empty without tools.

        It is empty for a text-completion model, too, which calls none.
        """
        if self.session.completes_text:
            return ""
        providers = [tool.provider for tool in self.toolbox.definitions()]
        parts = []
        if providers:
            names = list(dict.fromkeys(providers))
            parts.append(f"tools: {join_first(names, _MAX_NAMED)}")
        n_connecting = len(self.connections.connecting)
        if n_connecting:
            parts.append(f"connecting {count(n_connecting, 'server')} …")
        return one_line(" · ".join(parts))
