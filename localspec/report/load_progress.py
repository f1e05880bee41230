"""What a load does, in words: for the app and for `run` on a terminal."""

from __future__ import annotations

from pathlib import PurePath

from localspec.models import model_names
from localspec.protocol.wire import LoadProgress
from localspec.symbols import draw_bar
from localspec.units import duration, percent

_PHASES = {
    "planning": "choosing settings that fit",
    "checking": "checking the file",
    "starting": "starting the engine",
    "reading": "reading",
    "preparing": "preparing the context",
}
_BAR_CELLS = 20
_SHOWN_AFTER_SECONDS = 1.0
"""A shorter load shows no seconds."""


def describe_load(progress: LoadProgress | None, seconds: float) -> str:
    """One line; `seconds` is the time since the load began.

    For example `reading SmolLM2 135M   ████████████          62 %   3 s`.
    """
    parts = ["waiting"]
    if progress is not None:
        parts = [_PHASES[progress.phase]]
        if progress.phase == "reading" and progress.share is not None:
            file = PurePath(progress.file)
            name = model_names.name_files([file])[file]
            bar = draw_bar(progress.share, _BAR_CELLS).ljust(_BAR_CELLS)
            parts = [f"reading {name}", bar, percent(progress.share)]
    if seconds >= _SHOWN_AFTER_SECONDS:
        parts.append(duration(seconds))
    return "   ".join(parts)
