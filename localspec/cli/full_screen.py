"""The app, as commands open it: the only file of the command line that imports it.

Commands import this file when they open the app, not before: the app and Textual take
200 ms to import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from localspec.protocol.events import Event
from localspec.tui import app
from localspec.tui.screens.serve import ServeScreen

if TYPE_CHECKING:
    from localspec.serve.http_server import ServerThread


def open_home(flags: Mapping[str, str]) -> int:
    """Run the app, and return its exit code. `flags` as in `config.resolve`."""
    return app.run(flags=flags)


def open_replay(events: Sequence[Event]) -> int:
    """Run the app on the replay of an events file."""
    return app.replay(events)


def open_server_board(server: ServerThread, flags: Mapping[str, str]) -> int:
    """Run the app on the board of a server."""
    return app.run(lambda options: ServeScreen(server, options), flags)
