"""A picture of the app as it stands, and waiting until it stands as it should."""

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
            raise TimeoutError("the app did not get there")
        await pilot.pause(0.05)


async def still(pilot: Pilot[Any]) -> None:
    """Until nothing changes any more."""
    shown, same = "", 0
    while same < 3:
        await pilot.pause(0.15)
        now = pilot.app.export_screenshot()
        same = same + 1 if now == shown else 0
        shown = now


def svg(app: App[Any], name: str) -> str:
    """Without the random name that each export gets: a picture made again differs less."""
    return re.sub(r"terminal-\d+-", f"localspec-{name}-", app.export_screenshot(title="localspec"))
