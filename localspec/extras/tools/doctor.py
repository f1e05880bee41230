"""What `localspec doctor` says about the servers of tools."""

from __future__ import annotations

from collections.abc import Iterator

from localspec.doctor.findings import Finding, ok, problem
from localspec.errors import LocalspecError
from localspec.extras.tools import opening
from localspec.tools import server_settings
from localspec.units import count


def check_servers() -> Iterator[Finding]:
    """Start the servers that are on, and list their tools.

    A server that is reached by an address is only named: the doctor uses no network.
    """
    configured = server_settings.read_servers()
    for error in configured.errors:
        yield problem("tool-settings", error, "localspec config edit")
    processes = []
    for server in configured.servers:
        if not server.enabled:
            yield ok("tools", f"tools of {server.name}: off")
        elif server.url:
            yield ok("tools", f"tools of {server.name}: {server.address}, not tried")
        else:
            processes.append(server)
    for server, opened in opening.connect_all(processes):
        if isinstance(opened, LocalspecError):
            yield problem("tool-server", opened.message, opened.hint)
        else:
            n_tools = count(len(opened.definitions()), "tool")
            yield ok("tools", f"tools of {server.name}: {n_tools}")
