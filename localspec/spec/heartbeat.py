"""Time of the engine's last progress, for hang detection."""

from __future__ import annotations

import time

_last_progress = time.monotonic()


def record_progress() -> None:
    global _last_progress  # noqa: PLW0603  one engine a process
    _last_progress = time.monotonic()


def seconds_since_progress() -> float:
    return time.monotonic() - _last_progress
