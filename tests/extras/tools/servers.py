"""Settings of servers for tests."""

import sys
from pathlib import Path
from typing import Any

from localspec.tools.server_settings import ServerSettings

SCRIPT = Path(__file__).with_name("hostile_server.py")


def hostile_server(
    behaviour: str, name: str = "test", **settings: Any
) -> ServerSettings:
    values: dict[str, Any] = {
        "command": sys.executable,
        "args": (str(SCRIPT), behaviour),
        "timeout": 60.0,
    }
    return ServerSettings(name, **values | settings)
