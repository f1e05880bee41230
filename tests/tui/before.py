"""A computer where localspec has been started before."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def been_here(data: Path) -> None:
    """The screen that is shown once ever was shown; where that can be kept."""
    with suppress(OSError):
        data.mkdir(parents=True, exist_ok=True)
        (data / "welcomed").touch()
