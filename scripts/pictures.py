"""SVG pictures of the running app, and waiting for its state."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

PATIENCE = 240
"""Seconds."""


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("the app did not reach the expected state")
        await pilot.pause(0.05)


async def still(pilot: Pilot[Any]) -> None:
    """Waits until the screen stops changing."""
    shown, same = "", 0
    while same < 3:
        await pilot.pause(0.15)
        now = pilot.app.export_screenshot()
        same = same + 1 if now == shown else 0
        shown = now


def svg(app: App[Any], name: str) -> str:
    """Replaces the random id of an export, so that a new picture differs less."""
    return re.sub(r"terminal-\d+-", f"localspec-{name}-", app.export_screenshot(title="localspec"))
