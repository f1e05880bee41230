"""Exclusive file locks; the system releases them when the process ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FileLock:
    """A held lock; `close` releases it."""

    def __init__(self, file: int, is_exclusive: bool = True) -> None:
        self._file = file
        self.is_exclusive = is_exclusive
        """False if the disk does not support locks: another process may hold it too."""

    def close(self) -> None:
        """Release the lock. May be called more than once."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def acquire(path: Path) -> FileLock | None:
    """Lock the file; None if another process holds the lock. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        _take(file)
    except (BlockingIOError, PermissionError):
        os.close(file)
        return None
    except OSError:
        return FileLock(file, is_exclusive=False)
    return FileLock(file)
