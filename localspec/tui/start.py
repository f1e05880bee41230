"""Starts the app where there is a terminal for it, and says what it ended with."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence

from textual.screen import Screen

from localspec import config
from localspec.errors import UsageError
from localspec.protocol.events import Event, Round
from localspec.tui import glyphs, themes, welcome
from localspec.tui.app import LocalspecApp
from localspec.tui.chats import Chats
from localspec.tui.options import Options
from localspec.tui.runner import Runner
from localspec.tui.screens.replay import ReplayScreen


def run(first: Callable[[Options], Screen[None]] | None = None) -> int:
    """Show the app until it is quit; the exit code."""
    wanted = options()
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


def options() -> Options:
    """From the person's configuration and what the terminal says of itself."""
    known = config.read()
    theme = known.theme
    if theme is not None and theme not in themes.NAMES:
        raise UsageError(f"There is no theme {theme!r}.", f"Known: {', '.join(themes.NAMES)}.")
    wanted = Options(
        glyphs=glyphs.suited(known.ascii),
        colour=not os.environ.get("NO_COLOR"),
        keymap=known.keys,
        overflow=known.overflow,
        chats=Chats(private=known.private),
        download_limit=known.download_limit * 1e6 if known.download_limit else None,
        first_run=welcome.due(),
    )
    if theme is not None:
        wanted.theme = theme
    return wanted
