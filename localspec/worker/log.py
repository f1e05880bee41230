"""What an engine writes on its stderr: the last lines at hand, all of them in a file."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from localspec import paths
from localspec.clean import clean
from localspec.worker.lines import Lines

_LINES = 200
_LONGEST_LINE = 4096
_LARGEST = 1_000_000
"""Bytes of engine.log, more or less; then it becomes engine.log.1, and a new one begins."""


def file() -> Path:
    return paths.state() / "engine.log"


class Log:
    """One engine's words.  A file that cannot be written is done without."""

    def __init__(self, pid: int) -> None:
        self.lines: deque[str] = deque(maxlen=_LINES)
        self._pid = pid
        self._file = file()

    def drain(self, pipe: IO[bytes]) -> None:
        """Keep the pipe empty until it ends, or a full one would stop the engine."""
        with suppress(ValueError, OSError):
            for batch in Lines(pipe, _LONGEST_LINE, cut=True).batches():
                lines = [clean(line.decode("utf-8", "replace"), multiline=False) for line in batch]
                self.lines += lines
                self.keep(lines)

    def keep(self, lines: Sequence[str]) -> None:
        """Into the file alone; in one write, for other processes have it open too."""
        begin = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._pid} "
        text = "".join(f"{begin}{line}\n" for line in lines)
        with suppress(OSError):
            _append(self._file, text.encode("utf-8", "replace"))


def _append(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # none yet, or Windows has it open elsewhere
        if path.stat().st_size > _LARGEST:
            path.replace(path.with_name(f"{path.name}.1"))
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(opened, data)
    finally:
        os.close(opened)
