"""Files in the data folder: replacing them, small JSON files, locks, power failures."""

from __future__ import annotations

import errno
import glob
import json
import os
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from localspec import paths

_T = TypeVar("_T")
_StructT = TypeVar("_StructT", bound=msgspec.Struct)

_MAX_JSON_BYTES = 16_000_000
"""The largest are headers, of which few have a million characters."""
_NAME_LENGTH = 40
"""Characters of its name that a new file has: a name may be as long as the disk allows."""
_WRITING_SECONDS = 60.0
"""A new file that is older is no longer being written."""

if sys.platform == "win32":
    import msvcrt

    def _take(file: int) -> None:
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _take(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def read_json(name: str, kind: type[_StructT]) -> _StructT | None:
    """None if the file in the data folder is missing or unreadable, or has no `kind`.

    A list or a table is read by `read_list` or `read_table`, item by item.
    """
    return _convert(_load(name), kind)


def read_list(name: str, item: type[_T]) -> list[_T]:
    """The items of a list in the data folder; empty if the file is missing or damaged.

    What is no `item` is left out. So one wrong item loses none of the others.
    """
    body = _load(name)
    if not isinstance(body, list):
        return []
    converted = [_convert(each, item) for each in body]
    return [each for each in converted if each is not None]


def read_table(name: str, value: type[_T]) -> dict[str, _T]:
    """Values by name, as `read_list` reads items."""
    body = _load(name)
    if not isinstance(body, dict):
        return {}
    converted = {key: _convert(each, value) for key, each in body.items()}
    return {key: each for key, each in converted.items() if each is not None}


def _load(name: str) -> Any:
    """None if the file is missing, is too large, or is no JSON."""
    try:
        with open_regular(paths.data_dir() / name) as file:
            body = file.read(_MAX_JSON_BYTES + 1)
        if len(body) > _MAX_JSON_BYTES:
            return None
        return json.loads(body.decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def open_regular(path: Path) -> BinaryIO:
    """Open the file for reading. Raises OSError, also if it is no regular file.

    Opening a pipe would otherwise wait until another program writes to it.
    """
    file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115
    try:
        check_regular(file.fileno(), path)
    except BaseException:
        file.close()
        raise
    return file


def check_regular(file: int, path: Path) -> None:
    """Raise OSError if the open file is a pipe or a device."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def open_without_waiting(path: str, flags: int) -> int:
    """An opener for `open`: a pipe that no other program has open is an error.

    Otherwise, opening it would wait for that program.
    """
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o600)


def _convert(body: Any, kind: type[_T]) -> _T | None:
    try:
        return msgspec.convert(body, kind, str_keys=True)
    except (ValueError, RecursionError):  # ValidationError is a ValueError
        return None


def write_json(name: str, body: Any) -> bool:
    """Replace the file atomically; return False if it cannot be written."""
    path = paths.data_dir() / name
    with suppress(OSError):
        # Each by itself: parents that mkdir creates do not get the mode.
        for folder in (paths.data_dir(), path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(body).encode("ascii"))
        return True
    return False


def replace_file(
    path: Path, data: bytes, *, mode: int = 0o600, is_durable: bool = False
) -> None:
    """Replace the file atomically. Raises OSError; then it is unchanged.

    A process that is killed meanwhile leaves a new file beside it, which the next one
    that replaces the file removes. `is_durable`: the data survive a power failure.
    """
    prefix = f".{path.name[:_NAME_LENGTH]}-"
    _remove_abandoned(path.parent, prefix)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)
    new = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        new.chmod(mode)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove the new files of processes that were killed while they wrote."""
    for file in folder.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > _WRITING_SECONDS:
                file.unlink()


def write_mark(file: Path, text: str) -> None:
    """Write a file that only has to exist. Does nothing if it cannot be written.

    The text may name a file whose name is no UTF-8: it says so by a question mark.
    """
    line = f"{text}\n".encode(errors="replace")
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(file, "wb", opener=open_without_waiting) as new:
            new.write(line)


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
