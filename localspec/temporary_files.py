"""Temporary folders, and files in progress, that no killed process leaves for ever.

Everything temporary is made here or by `data_files.replace_file`, so that each kind has
a rule for what a killed process leaves: see `TemporaryFolder` and `unnamed_file`.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from localspec import data_files
from localspec.data_files import FileLock
from localspec.errors import StorageError

_PREFIX = "localspec-"
_LOCK_NAME = ".lock"
_MAKING_SECONDS = 60.0
"""An older folder without a lock is not being made any more."""
_MAX_TRIES = 100
_LAST_COPY = f"{_PREFIX}copied-"


class TemporaryFolder:
    """A folder of this process, which `close` removes.

    The process keeps a file in it locked. The system frees the lock however the process
    ends, so the next folder that is made finds the abandoned ones and removes them.
    """

    def __init__(self, purpose: str, parent: Path | None = None) -> None:
        """`purpose` is part of its name; without `parent` it is the system's folder.

        Raises OSError.
        """
        base = parent or Path(tempfile.gettempdir())
        remove_abandoned(base)
        self.path, self._lock = _make_locked(f"{_PREFIX}{purpose}-", base)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """May be called more than once."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        # Windows removes no file that is open: the rest goes now.
        shutil.rmtree(self.path, ignore_errors=True)


def _make_locked(prefix: str, base: Path) -> tuple[Path, FileLock]:
    """Make a folder and lock it; another one if somebody removes it before."""
    for _ in range(_MAX_TRIES):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        lock_file = path / _LOCK_NAME
        try:
            lock = data_files.lock(lock_file)
        except FileNotFoundError:
            continue
        except OSError:  # The disk is full, say.
            path.rmdir()
            raise
        if lock is not None and lock_file.exists():
            return path, lock
    raise OSError(errno.EBUSY, "no file in it can be locked", str(base))


def remove_abandoned(base: Path) -> None:
    """Remove the folders of processes that have ended without doing so."""
    for folder in base.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if _is_our_folder(folder):
                _remove_if_abandoned(folder)


def _is_our_folder(path: Path) -> bool:
    """Whether it is a folder, no link to one, and this user's."""
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return False
    return not hasattr(os, "getuid") or found.st_uid == os.getuid()


def _remove_if_abandoned(folder: Path) -> None:
    """Raises OSError."""
    lock_file = folder / _LOCK_NAME
    if not lock_file.exists():
        # It is being made, or its process was killed just then, or it is not ours.
        if time.time() - folder.stat().st_mtime > _MAKING_SECONDS:
            folder.rmdir()  # Only an empty one.
        return
    lock = data_files.lock(lock_file)
    if lock is None:
        return
    with closing(lock):
        # On a disk without locks nobody knows whether its process lives.
        if not lock.is_exclusive:
            return
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)  # As in `TemporaryFolder.close`.


def write_copied_text(text: str) -> Path:
    """Write text that was copied where there is no clipboard; returns the file.

    As with a clipboard only the last copy stays. Raises OSError.
    """
    for earlier in Path(tempfile.gettempdir()).glob(f"{_LAST_COPY}*.txt"):
        with suppress(OSError):
            earlier.unlink()
    handle, name = tempfile.mkstemp(prefix=_LAST_COPY, suffix=".txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return Path(name)


@contextmanager
def unnamed_file(out: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """A path for a file in progress, and a function that gives it its name.

    On Linux the file has no name until then, so even a killed process leaves nothing
    behind. Elsewhere its name is `.NAME.part` until then, which the next file of the
    same name replaces. The function raises StorageError, on Linux also if `out` exists.
    """
    partial = out.with_name(f".{out.name}.part")
    path = str(partial)
    handle: int | None = None
    with suppress(OSError, AttributeError):  # no O_TMPFILE here, or on that disk
        handle = os.open(out.parent, os.O_TMPFILE | os.O_RDWR, 0o644)
        path = f"/proc/{os.getpid()}/fd/{handle}"

    def give_name() -> None:
        try:
            if handle is not None:
                # Only with `src_dir_fd` does Python call linkat, which can follow the
                # link in /proc. The folder itself is ignored for an absolute path.
                os.link(path, out, src_dir_fd=handle, follow_symlinks=True)
            else:
                partial.replace(out)
            data_files.sync_folder(out.parent)
        except OSError as error:
            message = f"{out.name} cannot be written: {error.strerror}."
            raise StorageError(message) from error

    try:
        yield path, give_name
    finally:
        if handle is not None:
            os.close(handle)
        partial.unlink(missing_ok=True)
