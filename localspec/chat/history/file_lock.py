"""One process at a time: a lock on a file, which the system drops when its process ends."""

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
    """Something that only this process may change until `close`."""

    def __init__(self, file: int, is_exclusive: bool = True) -> None:
        self._file = file
        self.is_exclusive = is_exclusive
        """False on a disk that knows no locks: another process may hold it, too."""

    def close(self) -> None:
        """Let go; more than once does no harm."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def acquire(path: Path) -> FileLock | None:
    """Hold what the file stands for; None where somebody else does.  Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        _take(file)
    except (BlockingIOError, PermissionError):
        os.close(file)
        return None
    except OSError:
        return FileLock(file, is_exclusive=False)
    return FileLock(file)
