"""Starting engine processes that fail, and waiting for the end of a process."""

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from localspec.engine_process.client import EngineProcess, EngineTimeouts
from localspec.protocol.events import Event, Round

SCRIPT = Path(__file__).with_name("failing_engine.py")


def start_failing(
    phase: str, fault: str, timeouts: EngineTimeouts, kind: str = "scripted"
) -> EngineProcess:
    command = [sys.executable, str(SCRIPT), str(os.getpid()), kind, phase, fault]
    return EngineProcess(lambda: command, timeouts)


def text_of(events: Iterable[Event]) -> str:
    text = ""
    for event in events:
        if isinstance(event, Round):
            text += "".join(token.text for token in event.tokens)
    return text


def ended(pid: int, seconds: float = 30.0, *, is_orphan: bool = True) -> bool:
    """Whether it ends within that time; an orphan may still wait for init to reap it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE and is_orphan:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False
