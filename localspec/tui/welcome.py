"""Whether the first screen of all is due: once ever, and not where somebody has been before."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from localspec import paths

_TRACES = ("recent.json", "last.json", "measured.sqlite")
"""Left by pairs that were opened."""


def due() -> bool:
    """Nothing in the data folder tells of an earlier time.  Never raises."""
    try:
        names = ("welcomed", *_TRACES)
        return not (paths.chats().exists() or any((paths.state() / n).exists() for n in names))
    except OSError:
        return False


def shown() -> None:
    """Remember it; where nothing can be written, it is shown again."""
    with suppress(OSError):
        file = _mark()
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text("The first screen was shown.\n", encoding="utf-8")


def _mark() -> Path:
    return paths.state() / "welcomed"
