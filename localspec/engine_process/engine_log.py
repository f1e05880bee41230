"""Collects an engine's stderr: the last lines in memory, all lines in engine.log."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from localspec import data_files, paths
from localspec.sanitize import sanitize

_MAX_LINES_KEPT = 200
_MAX_LINE_LENGTH = 4096
_MAX_FILE_BYTES = 1_000_000
"""If engine.log is larger, it is renamed to engine.log.1 and a new one begins."""
_READ_SIZE = 65536


def log_path() -> Path:
    return paths.DataFile.ENGINE_LOG.path


class EngineLog:
    """The log of one engine process. Errors of the log file are ignored."""

    def __init__(self, pid: int) -> None:
        self.last_lines: deque[str] = deque(maxlen=_MAX_LINES_KEPT)
        self._pid = pid
        self._file = log_path()

    def drain(self, pipe: IO[bytes]) -> None:
        """Read the pipe until its end; a full pipe would block the engine."""
        with suppress(ValueError, OSError):
            for batch in read_batches(pipe, _MAX_LINE_LENGTH, truncate=True):
                lines = [
                    sanitize(line.decode("utf-8", "replace"), multiline=False)
                    for line in batch
                ]
                self.last_lines += lines
                self.append(lines)

    def append(self, lines: Sequence[str]) -> None:
        """Append to the file only.

        It is one write, because other processes write to the file too.
        """
        prefix = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._pid} "
        text = "".join(f"{prefix}{line}\n" for line in lines)
        with suppress(OSError):
            _append_to_file(self._file, text.encode("utf-8", "replace"))


def _append_to_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(OSError):  # no file yet, or another process has it open on Windows
        if path.stat().st_size > _MAX_FILE_BYTES:
            path.replace(paths.DataFile.OLDER_ENGINE_LOG.path)
    file = data_files.open_without_waiting(
        str(path), os.O_WRONLY | os.O_APPEND | os.O_CREAT
    )
    try:
        os.write(file, data)
    finally:
        os.close(file)


def read_batches(
    pipe: IO[bytes], max_length: int, *, truncate: bool = False
) -> Iterator[list[bytes]]:
    """Lists of lines that arrived together, from an unbuffered pipe.

    A line longer than `max_length` is truncated, or raises ValueError.
    """
    rest = b""
    while data := pipe.read(_READ_SIZE):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield lines
        if len(rest) > max_length:
            if not truncate:
                raise ValueError("line too long")
            rest = rest[:max_length]
    if rest:
        yield [rest]
