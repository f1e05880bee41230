"""The crash log: the traceback of the last bug, without any text of a chat."""

from __future__ import annotations

import traceback

from localspec import paths


def write_crash_log(error: BaseException | None) -> str:
    """Replaces crash.log by the traceback; returns a sentence that says where it is.

    Textual's own traceback shows local variables, such as the messages of a chat.
    """
    log = paths.data_dir() / "crash.log"
    try:
        log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return "Set LOCALSPEC_DEBUG=1 to see the traceback."
    return f"Details: {log}"
