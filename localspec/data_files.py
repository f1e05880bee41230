"""Files in the data folder: small JSON files, locks, and surviving a power failure."""

from __future__ import annotations

import errno
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from localspec import paths

_T = TypeVar("_T")

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_json(name: str, kind: type[_T]) -> _T | None:
    """None if the file in the data folder is missing or unreadable, or has no `kind`."""
    try:
        body = json.loads((paths.data_dir() / name).read_text(encoding="utf-8"))
        return msgspec.convert(body, kind, str_keys=True)
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        return None


def write_json(name: str, body: Any) -> bool:
    """Replace the file atomically; return False if it cannot be written."""
    path = paths.data_dir() / name
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        # Each by itself: parents that mkdir creates do not get the mode.
        for folder in (paths.data_dir(), path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            new.write_text(json.dumps(body), encoding="utf-8")
            new.replace(path)
            return True
        finally:
            new.unlink(missing_ok=True)
    return False


def sync_folder(folder: Path) -> None:
    """Make new file names survive a power failure. Raises OSError.

    Windows and some network shares have no such call.
    """
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


class FileLock:
    """A held lock; `close`, or the end of the process, releases it."""

    def __init__(self, file: int, is_exclusive: bool = True) -> None:
        """`is_exclusive` is False if the disk does not support locks.

        Another process may hold it then, too.
        """
        self._file = file
        self.is_exclusive = is_exclusive

    def close(self) -> None:
        """May be called more than once."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def lock(path: Path) -> FileLock | None:
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
