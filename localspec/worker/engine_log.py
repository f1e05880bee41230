"""What an engine writes on its stderr: the last lines at hand, all of them in a file."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from localspec import paths
from localspec.sanitize import sanitize

_MAX_LINES_KEPT = 200
_MAX_LINE_LENGTH = 4096
_MAX_FILE_BYTES = 1_000_000
"""Bytes of engine.log, more or less; then it becomes engine.log.1, and a new one begins."""


def log_path() -> Path:
    return paths.data_dir() / "engine.log"


class EngineLog:
    """One engine's words.  A file that cannot be written is done without."""

    def __init__(self, pid: int) -> None:
        self.last_lines: deque[str] = deque(maxlen=_MAX_LINES_KEPT)
        self._pid = pid
        self._file = log_path()

    def drain(self, pipe: IO[bytes]) -> None:
        """Keep the pipe empty until it ends, or a full one would stop the engine."""
        with suppress(ValueError, OSError):
            for batch in PipeLines(pipe, _MAX_LINE_LENGTH, truncate=True).batches():
                lines = [
                    sanitize(line.decode("utf-8", "replace"), multiline=False) for line in batch
                ]
                self.last_lines += lines
                self.append(lines)

    def append(self, lines: Sequence[str]) -> None:
        """Into the file alone; in one write, for other processes have it open too."""
        begin = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._pid} "
        text = "".join(f"{begin}{line}\n" for line in lines)
        with suppress(OSError):
            _append_to_file(self._file, text.encode("utf-8", "replace"))


def _append_to_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # none yet, or Windows has it open elsewhere
        if path.stat().st_size > _MAX_FILE_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(opened, data)
    finally:
        os.close(opened)


# --- Lines of an unbuffered pipe, none longer than agreed.

_READ_SIZE = 65536


class PipeLines:
    """Iterates over a pipe's lines; a longer one is cut, or a ValueError."""

    def __init__(self, pipe: IO[bytes], max_length: int, *, truncate: bool = False) -> None:
        self._pipe = pipe
        self._max_length, self._truncate = max_length, truncate

    def __iter__(self) -> Iterator[bytes]:
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[bytes]]:
        """What arrived together."""
        held = b""
        while data := self._pipe.read(_READ_SIZE):
            *lines, held = (held + data).split(b"\n")
            if lines:
                yield lines
            if len(held) > self._max_length:
                if not self._truncate:
                    raise ValueError("a line without an end")
                held = held[: self._max_length]
        if held:
            yield [held]
