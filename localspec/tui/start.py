"""Starts the app where there is a terminal for it, and says what it ended with."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping, Sequence

from textual.screen import Screen

from localspec import config
from localspec.protocol.events import Event, Round
from localspec.tui import preferring, rebinding, welcome
from localspec.tui.app import LocalspecApp
from localspec.tui.chats import Chats
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.replay import ReplayScreen


def run(
    first: Callable[[Options], Screen[None]] | None = None, flags: Mapping[str, str] | None = None
) -> int:
    """Show the app until it is quit; the exit code.  `flags`: see `config.look`."""
    wanted = options(flags)
    runner = Runner()
    spare_pauses()
    app = LocalspecApp(wanted, runner, (lambda: first(wanted)) if first else None)
    try:
        app.run()
    finally:
        runner.close(wait=3.0)
    return app.return_code or 0


def replay(events: Sequence[Event]) -> int:
    """Show the rounds of a recording."""
    rounds = [event for event in events if isinstance(event, Round)]
    return run(lambda wanted: ReplayScreen("", rounds, wanted))


def spare_pauses() -> None:
    """Collect garbage rarely, and never look at what was there at the start again.

    By Python's own rule all objects are looked at twice a second while an answer streams, which
    holds the screen up for 40 to 80 ms.
    """
    gc.freeze()
    gc.set_threshold(5_000, 20, 100)


def options(flags: Mapping[str, str] | None = None) -> Options:
    """From the person's configuration and what the terminal says of itself.  Never raises."""
    view = config.look(flags=flags, ids=frozenset(rebinding.BY_ID))
    wanted = Options(
        colour=not os.environ.get("NO_COLOR"),
        chats=Chats(),
        flags=flags or {},
        first_run=welcome.due(),
    )
    preferring.take_over(wanted, view)
    return wanted
