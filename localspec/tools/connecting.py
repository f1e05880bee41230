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


def connect_server(server: ServerSettings) -> ToolProvider | LocalspecError:
    """Connect one server, on this thread. Does not raise."""
    connectors: list[Connector] = extras.load("TOOL_CONNECTORS")
    if not connectors:
        return ToolServerError(
            "This localspec has no client for servers of tools.",
            "Install localspec again, as it was installed.",
        )
    try:
        return connectors[0](server)
    except LocalspecError as error:
        return error


def connect_servers(servers: Sequence[ServerSettings]) -> list[ConnectedServer]:
    """Connect the servers that are enabled, at the same time, in their order.

    It takes as long as the slowest of them, and at most its timeout.
    """
    enabled = [server for server in servers if server.enabled]
    if not enabled:
        return []
    n_threads = min(len(enabled), _MAX_AT_ONCE)
    with ThreadPoolExecutor(n_threads, thread_name_prefix="connect") as pool:
        return list(zip(enabled, pool.map(connect_server, enabled), strict=True))
