"""A data folder in which localspec has been started before."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def been_here(data: Path) -> None:
    """Marks the welcome screen as shown; ignores a folder that cannot be written."""
    with suppress(OSError):
        data.mkdir(parents=True, exist_ok=True)
        (data / "welcomed").touch()
