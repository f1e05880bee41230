"""Small JSON files in the data folder: a damaged one counts as missing, errors do not raise."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec import paths


def read_json(name: str) -> Any:
    """None if the file is missing, unreadable or damaged."""
    try:
        return json.loads((paths.data_dir() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_json(name: str, body: Any) -> bool:
    """Replace the file atomically; return False if it cannot be written."""
    path = paths.data_dir() / name
    new = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)
