"""Servers that are connected in the background: none delays another, none is leaked."""

import threading

from localspec.tools.background_connections import BackgroundConnections
from localspec.tools.server_settings import ServerSettings
from localspec.tools.toolbox import Toolbox

MISSING = ServerSettings("missing", command="no-such-program-anywhere")
DISABLED = ServerSettings("idle", command="no-such-program-anywhere", enabled=False)


def test_a_server_that_fails_is_reported_once_and_stays_in_the_list() -> None:
    changed = threading.Event()
    connections = BackgroundConnections(Toolbox(), changed.set)

    connections.start([MISSING, DISABLED])
    connections.wait()

    assert changed.is_set()
    (notice,) = connections.take_notices()
    assert notice.message
    assert connections.take_notices() == []
    assert [state.phase for state in connections.states] == ["failed", "disabled"]
    assert [state.name for state in connections.list_missing()] == ["missing"]
    assert connections.list_missing()[0].why == notice.message
    assert connections.connecting == []


def test_nothing_is_started_without_servers() -> None:
    connections = BackgroundConnections(Toolbox())
    connections.start([])
    connections.wait()
    connections.close()
    assert connections.states == []
