"""Whether a process is gone."""

from __future__ import annotations

import os
import time

import psutil


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether no such process is left, a zombie neither, within that time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def ended(pid: int, seconds: float) -> bool:
    """As `gone`, but an orphan may still wait for the system's init to bury it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False
