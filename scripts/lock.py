"""A file lock: one installation at a time."""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def install_lock(lock: Path, say: Callable[[str], None]) -> Iterator[None]:
    with lock.open("a") as handle:
        os.set_inheritable(handle.fileno(), True)
        if not try_lock(handle.fileno()):
            say("another installation of this checkout is running; waiting for it")
            while not try_lock(handle.fileno()):
                time.sleep(0.2)
        yield


def try_lock(handle: int) -> bool:
    """False while another process holds it; True on a file system without locks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno not in (errno.EACCES, errno.EAGAIN)
    return True
