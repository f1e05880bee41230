"""Opens connections to servers. The package `mcp` is imported here, when one is opened."""

from __future__ import annotations

import importlib.util
import ipaddress
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from localspec import config, install_hints
from localspec.errors import LocalspecError, OfflineError, ToolServerError
from localspec.tools.server_settings import ServerSettings

if TYPE_CHECKING:
    from localspec.extras.tools.connection import ServerConnection

_PACKAGE = "mcp>=2.3"


def begin(server: ServerSettings) -> ServerConnection:
    """Begin to connect. Raises ToolServerError or OfflineError."""
    if importlib.util.find_spec("mcp") is None:
        raise ToolServerError(
            "Servers of tools need the package mcp.",
            f"Install it: {install_hints.install_command(_PACKAGE)}",
        )
    if server.url and not _is_this_computer(server.url) and _is_offline():
        raise OfflineError(
            f"The server {server.name} is not on this computer, and offline mode is on.",
            "Turn offline mode off to use it.",
        )
    from localspec.extras.tools.connection import (  # noqa: PLC0415  a second
        ServerConnection,
    )

    connection = ServerConnection(server)
    connection.start()
    return connection


def connect(server: ServerSettings) -> ServerConnection:
    """Connect and list the tools. Raises as `begin` does."""
    connection = begin(server)
    try:
        connection.wait_until_ready()
    except BaseException:
        connection.close()
        raise
    return connection


def connect_all(
    servers: Sequence[ServerSettings],
) -> Iterator[tuple[ServerSettings, ServerConnection | LocalspecError]]:
    """Connect them at the same time, and give each, or why it failed, in order.

    A connection is closed when the next one is asked for.
    """
    begun: list[ServerConnection | LocalspecError] = []
    try:
        for server in servers:
            try:
                begun.append(begin(server))
            except LocalspecError as error:
                begun.append(error)
        for server, connection in zip(servers, begun, strict=True):
            if isinstance(connection, LocalspecError):
                yield server, connection
                continue
            try:
                connection.wait_until_ready()
            except LocalspecError as error:
                yield server, error
            else:
                yield server, connection
            connection.close()
    finally:
        for connection in begun:
            if not isinstance(connection, LocalspecError):
                connection.close()


def _is_offline() -> bool:
    return bool(config.resolve().get("network.offline"))


def _is_this_computer(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
