"""The crash log: the traceback of the last bug, without any text of a chat."""

from __future__ import annotations

import traceback

from localspec import data_files
from localspec.paths import DataFile


def write_crash_log(error: BaseException | None) -> str:
    """Replaces crash.log by the traceback; returns a sentence that says where it is.

    Textual's own traceback shows local variables, such as the messages of a chat.
    """
    log = DataFile.CRASH_LOG.path
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lines = traceback.format_exception(error)
        with open(log, "wb", opener=data_files.open_without_waiting) as file:
            file.write("".join(lines).encode(errors="replace"))
    except OSError:
        return "Set LOCALSPEC_DEBUG=1 to see the traceback."
    return f"Details: {log}"
