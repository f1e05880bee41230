"""Time of the engine's last progress, for hang detection, and how far a load is."""

from __future__ import annotations

import time
from collections.abc import Callable

_last_progress = time.monotonic()


def record_progress() -> None:
    global _last_progress  # noqa: PLW0603  one engine a process
    _last_progress = time.monotonic()


LoadListener = Callable[[str, float], None]
"""Receives the name of the file that is read, and the share of it that is loaded."""


def _ignore_load(_file: str, _share: float) -> None:
    pass


_load_listener: LoadListener = _ignore_load


def watch_loads(listener: LoadListener) -> None:
    """Report every file that is loaded from now on to `listener`."""
    global _load_listener  # noqa: PLW0603  one engine a process
    _load_listener = listener


def record_load(file: str, share: float) -> None:
    record_progress()
    _load_listener(file, share)


def seconds_since_progress() -> float:
    return time.monotonic() - _last_progress
