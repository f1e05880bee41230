"""When the engine last got anywhere: whoever watches it for a hang looks here."""

from __future__ import annotations

import time

_last_progress = time.monotonic()


def record_progress() -> None:
    """Something was done."""
    global _last_progress  # noqa: PLW0603  one engine a process
    _last_progress = time.monotonic()


def seconds_since_progress() -> float:
    """Seconds since."""
    return time.monotonic() - _last_progress
