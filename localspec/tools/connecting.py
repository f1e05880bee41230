"""Connects the servers of tools by a client that a folder of `extras/` provides.

A row of `TOOL_CONNECTORS` is the path of a `Connector`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from localspec import extras
from localspec.errors import LocalspecError, ToolServerError
from localspec.tools.server_settings import ServerSettings
from localspec.tools.tool_types import ToolProvider

Connector = Callable[[ServerSettings], ToolProvider]
"""Connects a server and lists its tools. Raises LocalspecError."""
ConnectedServer = tuple[ServerSettings, ToolProvider | LocalspecError]
"""A server, and its connection or why there is none."""
_MAX_AT_ONCE = 16


def connect_servers(servers: Sequence[ServerSettings]) -> list[ConnectedServer]:
    """Connect the servers that are enabled, at the same time, in their order.

    It takes as long as the slowest of them, and at most its timeout.
    """
    enabled = [server for server in servers if server.enabled]
    if not enabled:
        return []
    connectors: list[Connector] = extras.load("TOOL_CONNECTORS")
    if not connectors:
        missing = ToolServerError(
            "This localspec has no client for servers of tools.",
            "Install it whole: pip install 'localspec[tools]'",
        )
        return [(server, missing) for server in enabled]
    connect = connectors[0]

    def try_to_connect(server: ServerSettings) -> ConnectedServer:
        try:
            return server, connect(server)
        except LocalspecError as error:
            return server, error

    n_threads = min(len(enabled), _MAX_AT_ONCE)
    with ThreadPoolExecutor(n_threads, thread_name_prefix="connect") as pool:
        return list(pool.map(try_to_connect, enabled))
