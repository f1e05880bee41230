"""When the engine last got anywhere: whoever watches it for a hang looks here."""

from __future__ import annotations

import time

_at = time.monotonic()


def beat() -> None:
    """Something was done."""
    global _at  # noqa: PLW0603  one engine a process
    _at = time.monotonic()


def still_for() -> float:
    """Seconds since."""
    return time.monotonic() - _at
